"""Quantized SmolLM2 on a CPU: the engine in int4 and int8, and llama.cpp with the same file.

llama.cpp is what a user would pick. `pip install xllamacpp` brings it; the course doesn't need it
otherwise. All generate 50 greedy tokens for one prompt, in turns, and for 32 prompts at once, with
one thread and with two.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch

from benchmarks.compare import Comparison, NotMeasured
from course_pkg.lm.load import load
from course_pkg.lm.smollm2 import find_gguf
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

PROMPT = "Tell me about the sea."
NEW = 50  # tokens
MANY = 32  # streams
ROUNDS = 3  # after one to warm up
FORMATS = ("int8", "int4")
THREADS = (1, 2)
LIMITS = {1: 3.5, MANY: 1.2}  # streams: times llama.cpp's time


def measure() -> Iterator[Comparison | NotMeasured]:
    """Time per token for one stream and for 32; the three programs take turns."""
    what = f"{NEW} tokens of SmolLM2 for one prompt, and for {MANY}"
    if find_spec("xllamacpp") is None:
        yield NotMeasured(what, "xllamacpp is not installed: pip install xllamacpp")
        return
    model, tokenizer = load("smollm2-135m")
    engines = {each: Engine(model, tokenizer, blocks=512, quantize=each) for each in FORMATS}
    before = torch.get_num_threads()
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            programs = {name: ours(engine) for name, engine in engines.items()}
            programs["llama.cpp"] = llama_cpp(threads)
            for streams in LIMITS:
                yield from _compare(programs, streams, threads)
    finally:
        torch.set_num_threads(before)


def _compare(
    programs: dict[str, Callable[[int], float]], streams: int, threads: int
) -> Iterator[Comparison]:
    rounds = [{name: run(streams) for name, run in programs.items()} for _ in range(ROUNDS + 1)]
    times = {name: [each[name] for each in rounds[1:]] for name in programs}
    theirs = times.pop("llama.cpp")
    for name, mine in times.items():
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        what = f"threads: {threads}, streams: {streams}, {NEW} tokens each"
        text = f"{what}: the engine in {name}, llama.cpp in Q4_1"
        medians = (1000 * statistics.median(each) for each in (mine, theirs))
        yield Comparison(text, "ms/token", *medians, ratio, LIMITS[streams])


def ours(engine: Engine) -> Callable[[int], float]:
    """Seconds per token of the engine, by the number of streams."""
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)

    def run(streams: int) -> float:
        started = time.perf_counter()
        engine.generate([f"{PROMPT} ({number})" for number in range(streams)], params)
        return (time.perf_counter() - started) / (streams * NEW)

    return run


def llama_cpp(threads: int) -> Callable[[int], float]:
    """Seconds per token of llama.cpp's server in this process, by the number of streams."""
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_gguf())
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel = MANY
    params.n_ctx = MANY * 256
    server = xllamacpp.Server(params)

    def complete(number: int) -> None:
        request = {"n_predict": NEW, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        server.handle_completions({"prompt": f"{PROMPT} ({number})", **request})

    def run(streams: int) -> float:
        with ThreadPoolExecutor(streams) as pool:
            started = time.perf_counter()
            list(pool.map(complete, range(streams)))
        return (time.perf_counter() - started) / (streams * NEW)

    return run
