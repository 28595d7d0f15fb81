"""`concepts`: its cases. An expected value has the case, and says what is wanted."""

import math
from collections.abc import Callable
from functools import wraps
from itertools import combinations
from random import Random
from typing import Any

from course_pkg.acceleration.quantization.levels import quantize_block
from course_pkg.grading.questions.comparators import Difference, describe_type, number
from course_pkg.grading.questions.plain_values import Array, encode
from course_pkg.metrics.bleu import BleuScore, corpus_bleu
from course_pkg.metrics.rouge.rouge_measures import rouge_l, rouge_n

Inputs = dict[str, Any]
NAMES = "sun moon star rain snow wind leaf tree root seed bird fish bear wolf hill lake rock"
WORDS = NAMES.split()
LARGEST = 1e6  # of a number in an example
SWEEPS = 30  # of rotations, of which a matrix as small as these needs fewer than ten
Check = Callable[[Inputs, Any], str | None]
MOST_WORDS = 200
ROUNDING = 1e-6  # of a number from 0 to 1


class _Malformed(Exception):
    """An example of another form; the message says what is expected."""


class _Missed(Exception):
    """An example that doesn't do what it must: what that is, and what it does."""


def _require(good: bool, wanted: str, done: str) -> None:
    if not good:
        raise _Missed(wanted, done)


def example(name: str) -> Callable[[Check], Check]:
    """Make a comparator of a check: of the case, and of the given example of that name.

    A wrong answer's value has no case; it is compared as it is, by which a mistake is recognized.
    Only the expected value itself, which no student can give, needs no check. No report shows an
    example that is right.
    """

    def comparator_of(check: Check) -> Check:
        @wraps(check)
        def compare(expected: Inputs, given: Any) -> str | None:
            if given is expected:
                return None
            try:
                _require(isinstance(given, dict), "a dict of three examples", describe_type(given))
                _require(name in given, f"a dict with the key {name!r}", str(list(given)[:9]))
                if "case" not in expected:
                    same = encode(given[name]) == encode(expected[name])
                    return None if same else "another example"
                reason = check(expected["case"], given[name])
            except _Malformed as error:
                reason = str(error)
            except _Missed as missed:
                return Difference.at(name, "it doesn't do what it must", *missed.args)
            return reason and Difference.at(name, reason, expected[name], given[name])

        return compare

    return comparator_of


def _number_named(name: str) -> Check:
    @example(name)
    def compare(case: Inputs, given: Any) -> str | None:
        return number()(case[name], given)

    return compare


rank_is_first, adapter_is_first = map(_number_named, ("rank", "adapter"))
length_is_first, tile_is_last = map(_number_named, ("length", "tile"))


def _words(words: Any) -> list[str]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise _Malformed("expected a list of words")
    if len(words) > MOST_WORDS or not all(word.isalpha() and len(word) < 50 for word in words):
        raise _Malformed(f"expected at most {MOST_WORDS} words, all of letters alone")
    return list(words)


# 1 LoRA


@example("hard")
def change_is_hard(case: Inputs, given: Any) -> None:
    """The best approximation of rank 1 keeps no more than of any matrix."""
    change = numbers_of(given, (case["d"], case["k"]))
    least = 1 / min(case["d"], case["k"])
    share = rank_one_share(change, case["k"])
    good = share <= least + 1e-6  # NaN, of a matrix of zeros, isn't
    _require(good, f"rank 1 keeps {least:.4f}", f"rank 1 keeps {share:.4f}")


@example("easy")
def change_is_easy(case: Inputs, given: Any) -> None:
    """Rank 1 keeps everything of a matrix of different numbers."""
    change = numbers_of(given, (case["d"], case["k"]))
    different = set(change)
    good = len(different) == len(change) and 0 not in different
    _require(good, f"{len(change)} different numbers, none 0", f"{len(different)}")
    share = rank_one_share(change, case["k"])
    _require(share > 1 - 1e-9, "rank 1 keeps all", f"rank 1 keeps {share:.4f}")


# 2 QLoRA


@example("outlier")
def outlier_erases(case: Inputs, given: Any) -> None:
    """One scale loses all weights but one; a scale per block loses none outside its block."""
    weights = numbers_of(given, (case["n"],))
    _require(all(weights), "no weight is 0", "some are 0")
    whole, blocks = (nf4(weights, size) for size in (len(weights), case["block"]))
    kept, better = (sum(x != 0 for x in back) for back in (whole, blocks))
    least = len(weights) - case["block"] + 1
    wanted = f"with one scale 1 weight is not 0, with blocks at least {least}"
    _require(kept == 1 and better >= least, wanted, f"{kept} and {better}")


@example("exact")
def nothing_is_lost(case: Inputs, given: Any) -> None:
    """Three different weights at least, and all come back as they were."""
    weights = numbers_of(given, (case["n"],))
    different = len(set(weights))
    _require(different >= 3, "3 different weights", f"{different}")
    pairs = zip(nf4(weights, len(weights)), weights, strict=True)
    error = max(abs(back - weight) for back, weight in pairs)
    _require(error <= 1e-7, "the largest error is 0", f"it is {error:.3g}")


# 3 FlashAttention


@example("average")
def average_is_wrong(case: Inputs, given: Any) -> None:
    """The mean of the tiles' own results is far from attention over all keys."""
    parts = numbers_of(given, (2, 2, 2))
    scores, values = parts[:4], parts[4:]
    good = min(values) >= -ROUNDING and max(values) <= 1 + ROUNDING
    _require(good, "values from 0 to 1", f"{min(values)} to {max(values)}")
    tiles = [attention(scores[at : at + 2], values[at : at + 2]) for at in (0, 2)]
    gap = abs(attention(scores, values) - sum(tiles) / 2)
    wanted = f"a difference of at least {case['gap']}"
    _require(gap >= case["gap"], wanted, f"{gap:.4f}")


# 4 The brevity penalty


@example("short")
def short_is_precise(case: Inputs, given: Any) -> None:
    """All precisions are 1, the penalty is small enough, and no longer candidate has that."""
    words = _words(given)
    r = len(case["reference"])
    length = next(c for c in range(r, 0, -1) if math.exp(1 - r / c) <= case["below"])
    _require(len(words) == length, f"{length} words", f"{len(words)} words")
    score = _bleu([words], case)
    precisions = f"they are {', '.join(f'{p:.2f}' for p in score.precisions)}"
    _require(min(score.precisions) == 1, "all four precisions are 1", precisions)


@example("long")
def long_is_unpunished(case: Inputs, given: Any) -> None:
    """Twice as long as the reference, which is in it word by word."""
    words = _words(given)
    reference = case["reference"]
    r = len(reference)
    _require(len(words) == 2 * r, f"{2 * r} words", f"{len(words)} words")
    runs = [words[at : at + r] for at in range(r + 1)]
    _require(reference in runs, "the reference in one piece", "it isn't there")


@example("corpus")
def corpus_makes_up(case: Inputs, given: Any) -> None:
    """One candidate is too short, nothing in it is wrong, and the corpus has no penalty."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise _Malformed("expected a list of two candidates")
    candidates = first, second = [_words(words) for words in given]
    reference = case["reference"]
    good = 0 < len(first) < len(reference) and first == reference[: len(first)]
    _require(good, "first, a beginning of the reference", " ".join(first))
    both = len(first) + len(second)
    _require(both == 2 * len(reference), f"together {2 * len(reference)} words", f"{both} words")
    penalty = _bleu(candidates, case).brevity_penalty
    _require(penalty == 1, "a penalty of 1", f"{penalty:.4f}")


def _bleu(candidates: list[list[str]], case: Inputs) -> BleuScore:
    references = [[" ".join(case["reference"])]] * len(candidates)
    return corpus_bleu(list(map(" ".join, candidates)), references, tokenize="whitespace")


# 5 ROUGE


@example("order")
def order_is_lost(case: Inputs, given: Any) -> None:
    """ROUGE-1 is 1, and the longest common subsequence has one word."""
    wanted = {"ROUGE-1": 1.0, "ROUGE-L": 1 / len(case["reference"])}
    _require_scores(case, given, wanted)


@example("gaps")
def gaps_are_free(case: Inputs, given: Any) -> None:
    """ROUGE-L has the recall 1, and no bigram is shared."""
    _require_scores(case, given, {"recall of ROUGE-L": 1.0, "ROUGE-2": 0.0})


@example("blocks")
def blocks_are_lost(case: Inputs, given: Any) -> None:
    """The same words; all bigrams are kept but one, and of ROUGE-L as little as can be."""
    n = len(case["reference"])
    wanted = {"ROUGE-1": 1.0, "ROUGE-2": (n - 2) / (n - 1), "ROUGE-L": (n + 1) // 2 / n}
    _require_scores(case, given, wanted)


def _require_scores(case: Inputs, given: Any, wanted: dict[str, float]) -> None:
    words = _words(given)
    candidate, reference = " ".join(words), " ".join(case["reference"])
    scores = {
        "ROUGE-1": rouge_n(candidate, reference, 1).fmeasure,
        "ROUGE-2": rouge_n(candidate, reference, 2).fmeasure,
        "ROUGE-L": rouge_l(candidate, reference).fmeasure,
        "recall of ROUGE-L": rouge_l(candidate, reference).recall,
    }
    for score, right in wanted.items():
        good = abs(scores[score] - right) <= 1e-9
        _require(good, f"{score} = {right:.4f}", f"{score} = {scores[score]:.4f}")


def numbers_of(given: Any, shape: tuple[int, ...]) -> list[float]:
    """The numbers of nested lists or an array of that shape, in order."""
    try:
        given_shape, numbers = _flattened(given)
    except (TypeError, OverflowError):
        raise _Malformed("expected numbers in lists of equal lengths") from None
    if given_shape != shape:
        raise _Malformed(f"expected the shape {shape}, but {given_shape} was given")
    if not all(abs(x) <= LARGEST for x in numbers):  # NaN isn't
        raise _Malformed("expected finite numbers of at most a million")
    return numbers


def _flattened(given: Any) -> tuple[tuple[int, ...], list[float]]:
    """The shape of nested lists or arrays, and their numbers; TypeError if lengths differ."""
    if isinstance(given, Array):
        given = given.numpy().tolist()
    if isinstance(given, int | float):
        return (), [float(given)]
    if not isinstance(given, list | tuple):
        raise TypeError(describe_type(given))
    parts = [_flattened(part) for part in given]
    shapes = {shape for shape, _ in parts} or {()}
    if len(shapes) > 1:
        raise TypeError("lists of different lengths")
    return (len(given), *shapes.pop()), [x for _, numbers in parts for x in numbers]


def rank_one_share(numbers: list[float], width: int) -> float:
    """The share of a matrix's squared norm that its best approximation of rank 1 keeps.

    That is the largest squared singular value. Rotations of pairs of rows make all rows orthogonal;
    then these values are the rows' squared lengths (Hestenes 1958). NaN for a matrix of zeros.
    """
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    least = 1e-15 * _product(numbers, numbers)
    for _ in range(SWEEPS):
        pairs = combinations(range(len(rows)), 2)
        if not any([_make_orthogonal(rows, i, j, least) for i, j in pairs]):
            break
    squares = [_product(row, row) for row in rows]
    return max(squares) / sum(squares) if any(squares) else math.nan


def _make_orthogonal(rows: list[list[float]], i: int, j: int, least: float) -> bool:
    """Rotate two rows so that their product is 0, unless it is that small; whether it was not."""
    first, second = rows[i], rows[j]
    both = _product(first, second)
    if abs(both) <= least:
        return False
    zeta = (_product(second, second) - _product(first, first)) / (2 * both)
    tangent = math.copysign(1 / (abs(zeta) + math.hypot(1, zeta)), zeta)
    cosine = 1 / math.hypot(1, tangent)
    sine = cosine * tangent
    rows[i] = [cosine * x - sine * y for x, y in zip(first, second, strict=True)]
    rows[j] = [sine * x + cosine * y for x, y in zip(first, second, strict=True)]
    return True


def _product(first: list[float], second: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(first, second, strict=True))


def nf4(weights: list[float], size: int) -> list[float]:
    """What comes back from NF4 with a scale for each block of that size."""
    blocks = (weights[at : at + size] for at in range(0, len(weights), size))
    return [x for block in blocks for x in quantize_block(block).dequantize()]


def attention(scores: list[float], values: list[float]) -> float:
    """The mean of the values, weighted with the softmax of their scores."""
    powers = [math.exp(score - max(scores)) for score in scores]
    return sum(p * value for p, value in zip(powers, values, strict=True)) / sum(powers)


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


def draw_layer(rng: Random, size: int) -> Inputs:
    """The rows and columns of a weight: wide, tall, square."""
    low, high = rng.randint(3, 5), rng.randint(7, 12)
    d, k = ((low, high), (high, low), (high, high))[size]
    return {"d": d, "k": k}


def lora_rank(rng: Random, size: int) -> Inputs:
    """Wide, tall, and square with an even width, where a rank costs exactly as much."""
    d = rng.choice([4, 6, 8, 10])
    return {"d": d, "k": d} if size == 2 else draw_layer(rng, size)


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


# 5 ROUGE


def rouge_expected(inputs: Inputs) -> Inputs:
    """In words, what the candidates must be."""
    return _expected(inputs, **dict.fromkeys(("order", "gaps", "blocks"), "a list of words"))


def rouge_order(rng: Random, size: int) -> Inputs:
    """Six to nine different words."""
    return {"reference": rng.sample(WORDS, 6 + size + rng.randint(0, 1))}
