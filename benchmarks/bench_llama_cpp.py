"""Quantized SmolLM2 on a CPU: the engine in int4 and int8, and llama.cpp with the same file.

llama.cpp is what a user would pick. `pip install xllamacpp` brings it; the course doesn't need it
otherwise. Both generate 100 greedy tokens for one prompt on one thread, in turns; and for 32
prompts at once.
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

PROMPT, NEW, MANY, ROUNDS = "Tell me about the sea.", 100, 32, 3
LIMITS = {"int8": 2.5, "int4": 2.0}  # times llama.cpp's time for one stream
LIMIT_MANY = 1.2


def measure() -> Iterator[Comparison | NotMeasured]:
    """Time per token for one stream and for 32."""
    what = f"{NEW} tokens of SmolLM2 for one prompt, and for {MANY}"
    if find_spec("xllamacpp") is None:
        yield NotMeasured(what, "xllamacpp is not installed: pip install xllamacpp")
        return
    model, tokenizer = load("smollm2-135m")
    theirs = llama_cpp(torch.get_num_threads())
    for quantize in ("int8", "int4"):
        engine = Engine(model, tokenizer, blocks=512, quantize=quantize)
        yield from _compare(quantize, ours(engine), theirs)


def _compare(
    quantize: str, ours: Callable[[int], float], theirs: Callable[[int], float]
) -> Iterator[Comparison]:
    for streams, limit in ((1, LIMITS[quantize]), (MANY, LIMIT_MANY)):
        times = [(ours(streams), theirs(streams)) for _ in range(ROUNDS + 1)][1:]
        mine, other = (1000 * statistics.median(each) for each in zip(*times, strict=True))
        ratio = statistics.median(a / b for a, b in times)
        text = f"{streams} streams, {NEW} tokens each: the engine in {quantize}, llama.cpp in Q4_1"
        yield Comparison(text, "ms/token", mine, other, ratio, limit)


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
