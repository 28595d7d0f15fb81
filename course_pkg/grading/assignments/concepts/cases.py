"""`concepts`: the cases of its questions. An expected value has the case, and says what is wanted.

Chapter: exercises.
"""

import math
from random import Random
from typing import Any

from course_pkg.grading.assignments.concepts.examples import *  # noqa: F403 (for questions.toml)

Inputs = dict[str, Any]
NAMES = "sun moon star rain snow wind leaf tree root seed bird fish bear wolf hill lake rock"
WORDS = NAMES.split()


def _expected(inputs: Inputs, **examples: Any) -> Inputs:
    """The case with its numbers, and what each example must be, in words or as a number."""
    numbers = {name: x for name, x in examples.items() if not isinstance(x, str)}
    return {"case": inputs | numbers, **examples}


# 1 LoRA


def lora_expected(inputs: Inputs) -> Inputs:
    """The first rank that costs more; in words, what the matrices must be."""
    d, k = inputs["d"], inputs["k"]
    hard = f"{d} rows of {k} numbers with equal singular values"
    easy = f"{d} rows of {k} numbers, all different, of rank 1"
    return _expected(inputs, rank=d * k // (d + k) + 1, hard=hard, easy=easy)


def _layer(rng: Random, size: int) -> Inputs:
    """The rows and columns of a weight: wide, tall, square."""
    low, high = rng.randint(3, 5), rng.randint(7, 12)
    d, k = ((low, high), (high, low), (high, high))[size]
    return {"d": d, "k": k}


def lora_rank(rng: Random, size: int) -> Inputs:
    """Wide, tall, and square with an even width, where a rank costs exactly as much."""
    d = rng.choice([4, 6, 8, 10])
    return {"d": d, "k": d} if size == 2 else _layer(rng, size)


lora_hard = lora_easy = _layer


# 2 QLoRA


def qlora_expected(inputs: Inputs) -> Inputs:
    """The first adapter from which less than half is saved; in words, what the weights must be."""
    n, bits = inputs["n"], inputs["bits"]
    adapter = next(m for m in range(n) if n * bits / 8 + 12 * m > (2 * n + 12 * m) / 2)
    outlier, exact = f"{n} weights of very different sizes", f"{n} weights on levels of NF4"
    return _expected(inputs, outlier=outlier, exact=exact, adapter=adapter)


def qlora_outlier(rng: Random, size: int) -> Inputs:
    """Two to four blocks; last, some adapter needs exactly half."""
    block = rng.choice([4, 8, 16])
    bits = 5.0 if size == 2 else rng.choice([4.5, 4.125, 4.25])
    return {"n": block * (size + 2), "block": block, "bits": bits}


qlora_exact = qlora_adapter = qlora_outlier


# 3 FlashAttention


def flash_expected(inputs: Inputs) -> Inputs:
    """The first length that doesn't fit, the largest tile that does; in words, the two tiles."""
    memory, d = inputs["memory"], inputs["d"]
    sides = range(1, memory)
    tile = next(b for b in sides if 4 * (4 * (b + 1) * d + (b + 1) ** 2) > memory)
    average = "scores and values, each of two tiles of two"
    return _expected(inputs, length=math.isqrt(memory // 4) + 1, tile=tile, average=average)


def flash_length(rng: Random, size: int) -> Inputs:
    """Any memory; last, one that a square matrix fills exactly."""
    d = rng.choice([16, 32, 64])
    memory = 4 * rng.randint(200, 400) ** 2 if size == 2 else rng.randint(160_000, 400_000)
    return {"memory": memory, "d": d, "gap": rng.randint(30, 45) / 100}


def flash_tile(rng: Random, size: int) -> Inputs:
    """Any memory; last, one that a tile fills exactly."""
    inputs = flash_length(rng, 0)
    b = rng.randint(60, 160)
    return inputs | {"memory": 4 * (4 * b * inputs["d"] + b * b)} if size == 2 else inputs


flash_average = flash_length


# 4 The brevity penalty


def penalty_expected(inputs: Inputs) -> Inputs:
    """In words, what the candidates must be."""
    r = len(inputs["reference"])
    corpus = f"two candidates with {2 * r} words together"
    return _expected(inputs, short="a candidate", long=f"{2 * r} words", corpus=corpus)


def penalty_short(rng: Random, size: int) -> Inputs:
    """A reference of different words, of which at least four may stay."""
    length = rng.randint(11 + size, 16)
    return {"reference": rng.sample(WORDS, length), "below": rng.randint(28, 80) / 100}


penalty_long = penalty_corpus = penalty_short


# 5 ROUGE


def rouge_expected(inputs: Inputs) -> Inputs:
    """In words, what the candidates must be."""
    return _expected(inputs, **dict.fromkeys(("order", "gaps", "blocks"), "a list of words"))


def rouge_order(rng: Random, size: int) -> Inputs:
    """Six to nine different words."""
    return {"reference": rng.sample(WORDS, 6 + size + rng.randint(0, 1))}


rouge_gaps = rouge_blocks = rouge_order
