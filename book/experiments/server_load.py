"""When does the server of SmolLM2 keep up, and what happens when it does not?

    python book/experiments/server_load.py            run what is missing of the record
    python book/experiments/server_load.py --confirm  after an edit: run one short row again

OpenAI's client sends requests over loopback at random times (a Poisson process), never waiting for
an answer. Server, engine and client run in one process on a clock of their own: it counts the
processor's seconds, and waiting that nobody computes in is skipped. So the times are those of one
core, whatever else the machine does.
"""

import asyncio
import random
import selectors
import time

import openai
import torch
from record import main

from course_pkg.deployment.admission import Gate, Limits
from course_pkg.deployment.app import create_app
from course_pkg.deployment.server import Server, bind
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine

MODEL = "smollm2-135m"
PROMPT, NEW = 32, 12  # tokens of a request
RUNNING, WAITING = 8, 8  # requests at once
SECONDS = 16.0  # of arrivals
IDS = range(1000, 40_000)
PROBE = {"rate": 0.5, "waiting": WAITING, "seed": 0}


def plan() -> list[dict]:
    """The rows: arrivals per second, places in the queue, and the seed of times and tokens."""
    rates = (0.5, 1, 2, 3, 4, 5, 6, 8)
    rows = [{"rate": rate, "waiting": WAITING, "seed": 0} for rate in rates]
    rows += [{"rate": 6, "waiting": waiting, "seed": 0} for waiting in (0, 32)]
    return rows + [{"rate": rate, "waiting": WAITING, "seed": 1} for rate in rates]


class CoreClock(asyncio.SelectorEventLoop):
    """An event loop whose time is the processor's, plus the waiting that it skips."""

    def __init__(self) -> None:
        self.skipped, self.busy = 0.0, lambda: False
        super().__init__(Skipping(self))

    def time(self) -> float:
        """Seconds of this core."""
        return time.process_time() + self.skipped


class Skipping(selectors.DefaultSelector):
    """Waits for other threads while they compute; otherwise the next timer is due at once."""

    def __init__(self, loop: CoreClock) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list:
        """What is ready."""
        if (ready := super().select(0)) or timeout == 0:
            return ready
        busy = self.loop.busy()
        if (ready := super().select(0.002)) or busy or timeout is None or self.loop.busy():
            return ready
        self.loop.skipped += timeout
        return []


class Task:
    """The engine with SmolLM2, without a prefix cache."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        sizes = {"blocks": 1024, "max_sequences": RUNNING, "prefix_cache": False}
        self.engine = Engine(*load(MODEL), **sizes)
        measure(self, {"rate": 2, "waiting": WAITING, "seed": 9}, seconds=2.0)  # to warm up


def measure(task: Task, key: dict, seconds: float = SECONDS) -> dict:
    """Times of each request: when sent, until its first token and its end; null if refused."""
    generator = random.Random(key["seed"])
    sent, now = [], generator.expovariate(key["rate"])
    while now < seconds:
        sent.append(now)
        now += generator.expovariate(key["rate"])
    prompts = [generator.choices(IDS, k=PROMPT) for _ in sent]
    with asyncio.Runner(loop_factory=CoreClock) as runner:
        answers, request_seconds, end = runner.run(
            serve(task.engine, key["waiting"], sent, prompts)
        )
    return {
        "requests": len(sent),
        "sent_seconds": [round(s, 3) for s in sent],
        "first_seconds": [first for first, _, _ in answers],
        "total_seconds": [total for _, total, _ in answers],
        "retry_after_seconds": [retry for _, _, retry in answers],
        "open_request_seconds": request_seconds,
        "end_seconds": end,
    }


async def serve(engine: Engine, waiting: int, sent: list[float], prompts: list[list[int]]):
    """Send all requests to a server; their times, and the integral of how many were open."""
    loop, limits = asyncio.get_running_loop(), Limits(waiting=waiting)
    app = create_app(engine, MODEL, limits=limits)
    server, gate = Server(app, limits), app.state.gate
    loop.busy = lambda: gate.open > 0
    with bind("127.0.0.1", 0) as bound:
        running = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            await client.models.list()
            start = loop.time()
            watching = asyncio.create_task(watch(gate))
            several = zip(sent, prompts, strict=True)
            answers = await asyncio.gather(*(ask(client, start + s, p) for s, p in several))
            end = loop.time() - start
            watching.cancel()
            [request_seconds] = await asyncio.gather(watching)
        server.close(0)
        await running
    return answers, request_seconds, end


async def watch(gate: Gate) -> float:
    """Requests in the server, summed over time, until it is canceled."""
    loop, total = asyncio.get_running_loop(), 0.0
    last = loop.time()
    try:
        while True:
            await asyncio.sleep(0.02)
            last, before = loop.time(), last
            total += gate.open * (last - before)
    except asyncio.CancelledError:
        return total


async def ask(client: openai.AsyncOpenAI, when: float, prompt: list[int]):
    """Send one request at this time: until its first token, until its end, Retry-After."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(when - loop.time())
    first = None
    try:
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=NEW, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for _ in stream:
            first = first or round(loop.time() - when, 3)
    except openai.RateLimitError as refused:
        return None, None, int(refused.response.headers["retry-after"])
    return first, round(loop.time() - when, 3), None


if __name__ == "__main__":
    settings = {
        "model": MODEL, "prompt": PROMPT, "new": NEW, "running": RUNNING, "waiting": WAITING,
        "arrival_seconds": SECONDS,
    }  # fmt: skip
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings)
