"""How long does each step of the engine take? To compare with what the simulator predicts.

    python book/experiments/engine_steps.py            run what is missing of the record
    python book/experiments/engine_steps.py --confirm  after an edit: run one short row again

Requests of mixed lengths come at once. The engine serves them under its token budget, so that its
steps have many kinds: chunks of prompts, decoding alone, and both. Seconds are the processor's.
"""

import random
import time

import torch
from record import main

from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

BLOCKS, BUDGET = 1024, 512
PROMPTS, OUTPUTS = (16, 64, 128, 256, 400), (8, 32, 48)  # tokens
IDS = range(1000, 40_000)
PROBE = {"requests": 3, "seed": 0}


def plan() -> list[dict]:
    """The rows: how many requests, and the seed of their lengths and tokens."""
    return [PROBE] + [{"requests": 24, "seed": seed} for seed in (1, 2, 3)]


class Task:
    """The engine with SmolLM2, without a prefix cache."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        model, tokenizer = load("smollm2-135m")
        sizes = {"blocks": BLOCKS, "token_budget": BUDGET, "prefix_cache": False}
        self.engine = Engine(model, tokenizer, **sizes)
        self.engine.generate([[IDS[0]] * 8], SamplingParams(max_tokens=2))  # the first is slower


def measure(task: Task, key: dict) -> dict:
    """For each step: tokens of prompts, their pairs, sequences that decode, and their contexts."""
    engine, generator, counts, seconds = task.engine, random.Random(key["seed"]), [], []
    for _ in range(key["requests"]):
        prompt = generator.choices(IDS, k=generator.choice(PROMPTS))
        length = generator.choice(OUTPUTS)
        engine.add(prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
    schedule = engine.scheduler.schedule

    def counted():
        step = schedule()
        prompt = pairs = sequences = context = 0
        for tokens in step.scheduled.values():
            count = len(tokens)
            if count == 1:
                sequences += 1
                context += tokens.stop
            else:
                prompt += count
                pairs += count * tokens.start + count * (count + 1) // 2
        counts.append([prompt, pairs, sequences, context])
        return step

    engine.scheduler.schedule = counted
    while engine.requests:
        started = time.process_time()
        engine.step()
        seconds.append(time.process_time() - started)
    engine.scheduler.schedule = schedule
    return {"steps": counts, "step_seconds": seconds}


if __name__ == "__main__":
    settings = {"blocks": BLOCKS, "budget": BUDGET, "prompts": [*PROMPTS], "outputs": [*OUTPUTS]}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings)
