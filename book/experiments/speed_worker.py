"""One program with one model, in a process of its own: times of loading and generating, and memory.

`compressed_speed.py` starts it, for llama.cpp with the Python of another environment; so only the
function that starts a program imports it. It reads one command per line and answers with a line of
JSON:

    load      seconds until the model has answered one token, and the bytes of its weights
    generate  seconds to the first token after PROMPT others, and of each of STEPS steps after that
    memory    bytes of the process: the most so far, and before the model was loaded
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROMPT, STEPS = 64, 16
IDS = [1 + 13 * position % 250 for position in range(PROMPT)]
Generate = Callable[[list[int], int], list[float]]  # the times at which each new token is there


def engine(source: str, form: str) -> Callable[[], tuple[Generate, int]]:
    """The course's engine. source: a model's name or folder. form: "int8", "int4", or another."""
    from course_pkg.lm.load import load
    from course_pkg.serving.engine import Engine
    from course_pkg.serving.sampling import SamplingParams

    Engine(*load("tiny"), blocks=4)  # imports what loading needs

    def start() -> tuple[Generate, int]:
        quantized = form if form in ("int8", "int4") else None
        served = Engine(*load(source), blocks=64, quantize=quantized, prefix_cache=False)

        def generate(ids: list[int], new: int) -> list[float]:
            served.add(ids, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True))
            times = []
            while served.requests:
                served.step()
                times.append(time.perf_counter())
            return times

        decoder = served.runner.decoder
        tensors = {t.data_ptr(): t.nbytes for t in (*decoder.parameters(), *decoder.buffers())}
        return generate, sum(tensors.values())

    return start


def onnxruntime(source: str, form: str) -> Callable[[], tuple[Generate, int]]:
    """ONNX Runtime. source: a graph's path."""
    from course_pkg.deployment.export.onnx_session import OnnxDecoder

    path = Path(source)

    def start() -> tuple[Generate, int]:
        decoder = OnnxDecoder(path.parent, path.name, threads=THREADS)

        def generate(ids: list[int], new: int) -> list[float]:
            times = []
            cache = None
            for _ in range(new):
                logits, cache = decoder.forward([ids], cache=cache, keep=1)
                ids = [int(logits[0, -1].argmax())]
                times.append(time.perf_counter())
            return times

        data = path.with_name(f"{path.name}_data")
        return generate, sum(each.stat().st_size for each in (path, data) if each.exists())

    return start


def llama_cpp(source: str, form: str) -> Callable[[], tuple[Generate, int]]:
    """llama.cpp's server in this process. source: a GGUF file's path."""
    import xllamacpp

    def start() -> tuple[Generate, int]:
        params = xllamacpp.CommonParams()
        params.model.path = source
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
        params.n_parallel = 1
        params.n_ctx = 512
        params.verbosity = 0
        server = xllamacpp.Server(params)

        def generate(ids: list[int], new: int) -> list[float]:
            times = []
            request = {"prompt": ids, "n_predict": new, "temperature": 0, "ignore_eos": True}
            request |= {"cache_prompt": False, "stream": True}
            server.handle_completions(request, lambda _: times.append(time.perf_counter()))
            return times

        return generate, Path(source).stat().st_size

    return start


def memory(name: str) -> int:
    """Bytes of this process, by a line of /proc/self/status; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def answer() -> None:
    """Answer commands until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    program, source, form = sys.argv[1:4]
    start = {"engine": engine, "onnxruntime": onnxruntime, "llama.cpp": llama_cpp}[program](
        source, form
    )
    at_start = memory("VmRSS")
    generate = None
    for line in sys.stdin:
        started = time.perf_counter()
        match line.strip():
            case "load":
                generate, nbytes = start()
                generate(IDS[:1], 1)
                found = {"load": time.perf_counter() - started, "bytes": nbytes}
            case "generate":
                times = generate(IDS, STEPS + 1)
                step = (times[-1] - times[0]) / STEPS  # a program may hand over several at once
                found = {"first_token": times[0] - started, "step": step}
            case "memory":
                found = {"peak_memory": memory("VmHWM"), "start_memory": at_start}
        replies.write(json.dumps(found) + "\n")
        replies.flush()


if __name__ == "__main__":
    THREADS = int(sys.argv[4])
    answer()
