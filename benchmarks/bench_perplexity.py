"""Perplexity of many texts: our batches and the usual loop over texts.

The loop tokenizes a text, gets the loss from transformers, and adds it up. `python -m benchmarks`
measures CPU time with one thread. `python -m benchmarks.bench_perplexity` measures wall time with
two threads; use it only on an idle machine.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.compare import Comparison, _timed
from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import perplexity
from course_pkg.pages.datasets import load_examples, load_texts

CASES = (  # what, texts, (fewest, most) words, pairs of measurements, required speed-up
    ("128 texts of 3–12 words", 128, (3, 12), 3, 3.0),
    ("128 texts of 3–60 words", 128, (3, 60), 3, 1.5),
    ("12 texts of 5–200 words", 12, (5, 200), 3, 0.9),
    ("8 texts of 150 words", 8, (150, 150), 3, 0.9),
    ("2 texts of 3–4 words", 2, (3, 4), 9, 0.9),
)
BATCH_SIZE = 16  # the default of `perplexity`


def measure(timed: Callable[[Callable[[], object]], float] = _timed) -> Iterator[Comparison]:
    """Time for the perplexity of the same texts with SmolLM2, ours and the loop's alternately."""
    model, tokenizer = load("smollm2-135m")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    for what, number, words, pairs, speed_up in CASES:
        texts = cut(number, *words, seed=0)
        ours = _ours(model, tokenizer, texts)
        loop = _loop(model, tokenizer, texts)
        difference = abs(ours() - loop())  # also warms up both
        if difference > 5e-5:
            raise AssertionError(f"{what}: the results differ by {difference:.1e} nats per token")
        times = []
        for pair in range(pairs):
            calls = (ours, loop) if pair % 2 else (loop, ours)
            measured = [timed(call) for call in calls]
            times.append(measured if pair % 2 else measured[::-1])
        ours_ms, loop_ms = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(one / other for one, other in times)
        name = f"perplexity, SmolLM2-135M, {what}, {device.type}, median of {pairs} pairs"
        yield Comparison(name, "ms", ours_ms, loop_ms, ratio, 1 / speed_up)


def cut(number: int, least: int, most: int, seed: int) -> list[str]:
    """Consecutive pieces of the course's texts, each of `least` to `most` words."""
    generator = random.Random(seed)
    examples = [
        example for split in ("train", "held-out") for example in load_examples(split=split)
    ]
    words = " ".join([*load_texts(), *(f"{e.prompt} {e.response}" for e in examples)]).split()
    texts, place = [], 0
    for _ in range(number):
        size = generator.randint(least, most)
        texts.append(" ".join(words[place : place + size]))
        place = (place + size) % (len(words) - most)
    return texts


def _ours(model, tokenizer, texts: Sequence[str]) -> Callable[[], float]:
    return lambda: perplexity(model, tokenizer, texts, batch_size=BATCH_SIZE).nll_per_token


def _loop(model, tokenizer, texts: Sequence[str]) -> Callable[[], float]:
    @torch.no_grad()
    def loop() -> float:
        total = count = 0
        for text in texts:
            ids = tokenizer(text, return_tensors="pt").input_ids.to(model.device)
            targets = ids.shape[1] - 1
            total += model(input_ids=ids, labels=ids).loss.item() * targets
            count += targets
        return total / count

    return loop


def _wall_seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(2)
    for result in measure(_wall_seconds):
        seconds = f"{result.ours / 1000:.2f} s, the loop {result.theirs / 1000:.2f} s"
        print(f"{result.what}: {seconds}, {1 / result.ratio:.2f}×", flush=True)
