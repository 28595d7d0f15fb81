"""Static, dynamic and continuous batching of SmolLM2: timelines, stalls, throughput and latency.

    python book/experiments/continuous_batching.py            run what is missing of the record
    python book/experiments/continuous_batching.py --confirm  after an edit: run one short row again

Run it with OMP_NUM_THREADS=1. The clock is the processor time of the steps, which other programs on
the same machine change less than the time on a clock; while a server is idle, its clock jumps to
the next arrival. Static batches are padded on the left and run by the same decoder as the engine.
"""

import math
import random
import statistics
import time
from collections.abc import Iterator

import torch
from record import main
from transformers import ContinuousBatchingConfig, GenerationConfig

from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_examples
from course_pkg.serving.engine import Engine
from course_pkg.serving.kv_cache import StaticCache
from course_pkg.serving.sampling import SamplingParams

MODEL, DATA = "smollm2-135m", ("navigator/train.jsonl",)
BLOCKS, BUDGET, SLOTS = 1024, 256, 16
MEAN = 24  # new tokens
REQUESTS, ALONE = 32, 16  # how many are served together, and one by one
SHOWN = {  # the timelines: seconds, prompt tokens, new tokens
    "arrivals": [0.0, 0.0, 0.1, 0.4, 0.7, 0.9, 1.3, 1.6],
    "prompts": [24, 16, 40, 64, 24, 32, 16, 48],
    "new": [12, 30, 8, 14, 22, 6, 16, 10],
    "slots": 4,
    "wait": 0.25,
}
LONG, RUNNING, BEFORE, AFTER = 768, 8, 6, 30  # prompt; sequences, and their steps around it
BUDGETS = (16, 32, 64, 128, 256, 1024)
SIZES = (1, 2, 4, 8, 16, 32, 64)
RATES, WAIT = (0.5, 1.0, 2.0), 0.5  # requests per second; a dynamic batch's longest wait
DRAWS, SERVED_DRAWS = range(5), range(3)  # of prompts, order of the answers, and arrivals
PROBE = {"what": "decoding", "sequences": 2}
PLAN = [
    PROBE,
    *({"what": "decoding", "sequences": n} for n in SIZES if n != 2),
    *({"what": "timeline", "way": way} for way in ("static", "dynamic", "continuous")),
    *({"what": "chunks", "budget": budget} for budget in BUDGETS),
    *(
        {"what": "throughput", "lengths": lengths, "way": way, "draw": draw}
        for draw in DRAWS
        for lengths in ("equal", "mixed")
        for way in ("engine", "generate_batch", "static batch", "one by one")
    ),
    *(
        {"what": "serving", "rate": rate, "way": way, "draw": draw}
        for draw in SERVED_DRAWS
        for rate in RATES
        for way in ("continuous", "dynamic")
    ),
]
Job = tuple[float, list[int], int]  # arrival in seconds, prompt, number of new tokens
Timed = list[list]  # of each step: start, end, and [request, tokens] of its members


class Task:
    """The model, once for transformers and once for the engine, and a text."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.theirs, self.tokenizer = load(MODEL)
        self.model = Decoder.from_transformers(self.theirs)
        examples = "\n\n".join(f"{e.prompt}\n{e.response}" for e in load_examples())
        self.ids = self.tokenizer(examples).input_ids

    def engine(self, **sizes: int) -> Engine:
        """An engine with room for all that is measured here."""
        sizes = {"blocks": BLOCKS, "token_budget": BUDGET, "max_sequences": SLOTS} | sizes
        return Engine(self.model, self.tokenizer, **sizes)

    def prompts(self, lengths: list[int]) -> list[list[int]]:
        """Prompts of these lengths; no two begin alike."""
        return [self.ids[100 * i : 100 * i + length] for i, length in enumerate(lengths)]

    def jobs(self, lengths: str, draw: int, rate: float = math.inf) -> list[Job]:
        """REQUESTS jobs with MEAN new tokens on average: equal, or spread exponentially.

        A draw decides the lengths of the prompts, the order of the answers, and the arrivals.
        """
        drawn = random.Random(draw)
        quantiles = [-math.log(1 - (i + 0.5) / REQUESTS) for i in range(REQUESTS)]
        new = [MEAN if lengths == "equal" else max(1, round(MEAN * q)) for q in quantiles]
        drawn.shuffle(new)
        prompts = self.prompts([drawn.randint(16, 64) for _ in new])
        arrivals, now = [], 0.0
        for _ in new:
            now += 0.0 if rate == math.inf else drawn.expovariate(rate)
            arrivals.append(now)
        return list(zip(arrivals, prompts, new, strict=True))


def greedy(new: int) -> SamplingParams:
    """So many tokens, whatever they are."""
    return SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)


def watch(engine: Engine) -> list:
    """The steps that the engine's scheduler makes from now on."""
    steps, schedule = [], engine.scheduler.schedule

    def keep():
        steps.append(schedule())
        return steps[-1]

    engine.scheduler.schedule = keep
    return steps


def continuous(engine: Engine, jobs: list[Job]) -> Timed:
    """Serve the jobs as they arrive."""
    steps, timeline, numbers, now, coming = watch(engine), [], {}, 0.0, list(enumerate(jobs))
    while coming or engine.requests:
        while coming and coming[0][1][0] <= now:
            number, (_, prompt, new) = coming.pop(0)
            request = engine.add(prompt, greedy(new))
            numbers[request.completions[0].sequence] = number
        if not engine.requests:
            now = coming[0][1][0]
            continue
        started = time.process_time()
        engine.step()
        seconds = time.process_time() - started
        members = [[numbers[each], len(n)] for each, n in steps[-1].scheduled.items()]
        timeline.append([now, now + seconds, members])
        now += seconds
    return timeline


@torch.inference_mode()
def batch_steps(model: Decoder, prompts: list[list[int]], steps: int) -> Iterator[int]:
    """Run a padded batch for so many tokens; yields the tokens that each row computes."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    cache = StaticCache(model.config, width + steps, key_mask=mask)
    for _ in range(steps):
        yield ids.shape[1]
        logits = model(ids, cache.positions(ids.shape[1]), cache.attend, last_only=True)
        ids = logits[:, -1:].argmax(-1)


def batched(model: Decoder, jobs: list[Job], size: int, wait: float) -> Timed:
    """Serve the jobs in batches that start when full, or when the first has waited so long."""
    timeline, now, coming = [], 0.0, list(enumerate(jobs))
    while coming:
        first, full = coming[0][1][0], coming[min(size, len(coming)) - 1][1][0]
        now = max(now, min(full, first + wait))
        group = [each for each in coming[:size] if each[1][0] <= now]
        coming = coming[len(group) :]
        prompts, news = zip(*((prompt, new) for _, (_, prompt, new) in group), strict=True)
        started = time.process_time()
        for tokens in batch_steps(model, prompts, max(news)):
            ended = time.process_time()
            if timeline and timeline[-1][1] is None:
                timeline[-1][1] = now = now + ended - started
            started = ended
            timeline.append([now, None, [[number, tokens] for number, _ in group]])
        timeline[-1][1] = now = now + time.process_time() - started
    return timeline


def measure(task: Task, key: dict) -> dict:
    """The row of one key; see the functions below."""
    values = {name: value for name, value in key.items() if name != "what"}
    return globals()[key["what"]](task, **values)


def decoding(task: Task, sequences: int) -> dict:
    """The median time of a step in which so many sequences get a token, at about 64 tokens each."""
    engine, times = task.engine(max_sequences=sequences), []
    prompt = task.prompts([49])[0]  # the others find its first blocks in the cache
    for _ in range(sequences):
        engine.add(prompt, greedy(28))
    while engine.requests:
        started = time.process_time()
        chunks = engine.step()
        if len(chunks) == sequences:
            times.append(time.process_time() - started)
    tokens = [chunk.token for chunk in chunks]
    return {"token": tokens[0], "step_seconds": statistics.median(times[2:])}


def timeline(task: Task, way: str) -> dict:
    """What runs when, for a few jobs."""
    prompts = task.prompts(SHOWN["prompts"])
    jobs = list(zip(SHOWN["arrivals"], prompts, SHOWN["new"], strict=True))
    if way == "continuous":
        engine = task.engine(max_sequences=SHOWN["slots"])
        return {"timeline_seconds": continuous(engine, jobs)}
    wait = math.inf if way == "static" else SHOWN["wait"]
    return {"timeline_seconds": batched(task.model, jobs, SHOWN["slots"], wait)}


def chunks(task: Task, budget: int) -> dict:
    """Each step while a long prompt joins sequences that generate."""
    engine = task.engine(token_budget=budget, max_sequences=RUNNING + 1)
    *short, prompt = task.prompts([16] * RUNNING + [LONG])
    for each in short:
        engine.add(each, greedy(200))
    steps = watch(engine)
    while not steps or len(steps[-1].sampling) < RUNNING:
        engine.step()
    for _ in range(BEFORE):
        engine.step()
    del steps[:-BEFORE]
    joined = engine.add(prompt, greedy(64))
    times, first = [0.0] * BEFORE, None
    while first is None or len(steps) < first + AFTER:
        started = time.process_time()
        engine.step()
        times.append(time.process_time() - started)
        if first is None and joined.completions[0].tokens:
            first = len(steps)
    counts = [[*map(len, step.scheduled.values())] for step in steps[BEFORE:]]
    return {
        "chunks": [each[RUNNING] for each in counts if len(each) > RUNNING and each[RUNNING] > 1],
        "steps_seconds": times[BEFORE:],
    }


def throughput(task: Task, lengths: str, way: str, draw: int) -> dict:
    """All jobs at once; the tokens that were asked for, and the time they take."""
    jobs = task.jobs(lengths, draw)
    if way == "one by one":
        jobs = jobs[:ALONE]
    run = {
        "engine": with_engine,
        "generate_batch": with_generate_batch,
        "static batch": lambda task, jobs: with_generate(task, jobs, SLOTS),
        "one by one": lambda task, jobs: with_generate(task, jobs, 1),
    }[way]
    run(task, [(0.0, prompt, 2) for _, prompt, _ in jobs[:1]])  # not counted
    started = time.process_time()
    run(task, jobs)
    seconds = time.process_time() - started
    return {"tokens": sum(new for *_, new in jobs), "run_seconds": seconds}


def with_engine(task: Task, jobs: list[Job]) -> None:
    """The course's engine."""
    engine = task.engine()
    engine.generate([prompt for _, prompt, _ in jobs], [greedy(new) for *_, new in jobs])


def with_generate(task: Task, jobs: list[Job], size: int) -> None:
    """transformers' generate in batches; each runs until its longest answer is complete."""
    for start in range(0, len(jobs), size):
        _, prompts, news = zip(*jobs[start : start + size], strict=True)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
        settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        task.theirs.generate(ids, attention_mask=mask, max_new_tokens=max(news), **settings)


def with_generate_batch(task: Task, jobs: list[Job]) -> None:
    """transformers' continuous batching, with as many tokens for each as it asks for."""
    sizes = ContinuousBatchingConfig(page_size=32, num_blocks=SLOTS * 6, max_batch_tokens=BUDGET)
    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    with task.theirs.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=sizes, block=True, timeout=5
    ) as manager:
        for _, prompt, new in jobs:
            manager.add_request(prompt, max_new_tokens=new)
        done: dict[str, int] = {}
        while len(done) < len(jobs):
            if (result := manager.get_result(timeout=1)) is not None and result.is_finished():
                done[result.request_id] = len(result.generated_tokens)
    if sum(done.values()) != sum(new for *_, new in jobs):
        raise RuntimeError(f"generate_batch generated {sum(done.values())} tokens")


def serving(task: Task, rate: float, way: str, draw: int) -> dict:
    """Poisson arrivals: of each job, its arrival, first token and end."""
    jobs = task.jobs("mixed", draw, rate)
    if way == "continuous":
        steps = continuous(task.engine(), jobs)
    else:
        steps = batched(task.model, jobs, SLOTS, WAIT)
    times, read = [[arrival, None, None] for arrival, *_ in jobs], [0] * len(jobs)
    for _, end, members in steps:
        for number, tokens in members:
            read[number] += tokens
            if times[number][1] is None and read[number] >= len(jobs[number][1]):
                times[number][1] = end
            times[number][2] = end  # a batch returns all answers at its end
    return {
        "prompts": [len(prompt) for _, prompt, _ in jobs],
        "new": [new for *_, new in jobs],
        "times_seconds": times,
    }


if __name__ == "__main__":
    settings = {
        "model": MODEL,
        "slots": SLOTS,
        "budget": BUDGET,
        "mean": MEAN,
        "wait": WAIT,
        "shown": SHOWN,
        "long": LONG,
        "running": RUNNING,
    }
    main(__file__, PLAN, Task, measure, probe=PROBE, settings=settings, data=DATA)
