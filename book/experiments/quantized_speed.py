"""How fast is SmolLM2 with quantized weights, and how many bytes does it take? By format.

    python book/experiments/quantized_speed.py            run what is missing of the record
    python book/experiments/quantized_speed.py --confirm  after an edit: run one short row again

The engine generates for one sequence and for 32, and reads a prompt of 256 tokens, on one thread.
Each format takes turns with fp32 in the same process, so that a slower moment of the machine
meets both; the times are medians over ROUNDS turns. "int8" and "int4" are the engine's formats,
where the head is quantized too and activations are in bf16. The others are those of the measured
comparison: layers of the blocks, everything else in fp32.

Bytes are those of all weights. Memory is what one step of 32 sequences creates beside them.
"""

import copy
import statistics
import time
from functools import partial

import torch
from record import main

from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.int8 import Activations, int8_weight
from course_pkg.acceleration.quantization.layerwise import (
    EachWeight,
    RoundToNearest,
    quantize_layers,
)
from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight
from course_pkg.common.peak_memory import measure_memory
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

METHODS = {
    "W8A16": EachWeight(int8_weight),
    "W8A8": EachWeight(partial(int8_weight, activations=Activations())),
    "W8A7": EachWeight(partial(int8_weight, activations=Activations(bits=7))),
    "LLM.int8()": EachWeight(llm_int8_weight),
    "NF4": EachWeight(quantize),
    "rounding, 4 bits": RoundToNearest(Grid(4, 64)),
}
FORMATS = ("fp32", "int8", "int4", *METHODS)
MANY, PROMPT, STEPS, ROUNDS = 32, 256, 8, 5
PROBE = {"format": "int8"}
PLAN = [{"format": name} for name in FORMATS]
GREEDY = SamplingParams(temperature=0, max_tokens=STEPS + 1, ignore_eos=True)


class Engines:
    """The model, and the engine that computes in fp32."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model, self.tokenizer = load("smollm2-135m")
        self.fp32 = self.engine("fp32")

    def engine(self, name: str) -> Engine:
        """An engine with the weights in this format."""
        model = copy.deepcopy(self.model)
        if name in METHODS:
            quantize_layers(model, METHODS[name])
        quantized = name if name in ("int8", "int4") else None
        engine = Engine(model, self.tokenizer, blocks=1024, quantize=quantized, prefix_cache=False)
        engine.generate([[1, 2, 3]], GREEDY)  # kernels pack their weights at the first product
        return engine


def measure(engines: Engines, key: dict) -> dict:
    """The times of this format and of fp32 in turns, the bytes, and the memory of a step."""
    engine = engines.engine(key["format"])
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, each in (("", engine), ("_fp32", engines.fp32)):
            for what, seconds in turn(each).items():
                times.setdefault(f"{what}{name}_seconds", []).append(seconds)
    decoder = engine.runner.decoder
    tensors = {t.data_ptr(): t.nbytes for t in (*decoder.parameters(), *decoder.buffers())}
    requests = [engine.add(prompt(MANY, number), GREEDY) for number in range(MANY)]
    while any(request.completions[0].tokens == [] for request in requests):
        engine.step()
    memory = measure_memory(engine.step)
    while engine.requests:
        engine.step()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"bytes": sum(tensors.values()), "step_memory": memory.peak, **medians}


def turn(engine: Engine) -> dict[str, float]:
    """Seconds of a step for one sequence, of a step for 32, and of reading a prompt."""
    found = {}
    for what, sequences, tokens in (("one", 1, 16), ("many", MANY, 16), ("prompt", 1, PROMPT)):
        requests = [engine.add(prompt(tokens, number), GREEDY) for number in range(sequences)]
        started = time.perf_counter()
        engine.step()
        if what == "prompt":
            found[what] = time.perf_counter() - started
            engine.abort(requests[0])
        steps = []
        while engine.requests:
            started = time.perf_counter()
            engine.step()
            steps.append(time.perf_counter() - started)
        if what != "prompt":
            found[what] = statistics.median(steps)
    return found


def prompt(tokens: int, number: int) -> list[int]:
    """Token ids that differ from prompt to prompt."""
    return [100 + (37 * number + 13 * position) % 40_000 for position in range(tokens)]


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "threads": 1,
        "sequences": MANY,
        "prompt": PROMPT,
        "rounds": ROUNDS,
        "steps": STEPS,
    }
    main(__file__, PLAN, Engines, measure, probe=PROBE, settings=settings)
