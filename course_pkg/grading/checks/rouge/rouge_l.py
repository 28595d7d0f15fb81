"""`rouge/rouge-l`: precision, recall and F of the longest common subsequence.

Chapter: exercises.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_pkg.metrics.rouge.counts import f_measure
from course_pkg.metrics.rouge.lcs import lcs_length

from ...contract.questions import Misconception, Property, Question
from .scores import (
    NAMES,
    Scores,
    each,
    from_counts,
    mean,
    mixed,
    not_squared,
    reference_rouge_l,
    shared,
    some,
)

Inputs = dict[str, Any]


def _scored(candidate: list[str], reference: list[str], beta: float) -> Inputs:
    length = lcs_length(candidate, reference)
    return {"candidate": candidate, "reference": reference, "beta": beta, "lcs": length}


def _texts(rng: np.random.Generator, size: int) -> tuple[list[str], list[str]]:
    """Texts of different lengths, the longer in turn, that share words in two orders and one of
    them twice."""
    kept, moved, one, more = some(rng, 2 + size, 2, 1, int(rng.integers(3, 6)))
    kept.append(kept[0])
    pair = [[*kept, *moved, *one], [*mixed(rng, moved), *kept, *more]]
    return tuple(pair if size % 2 else pair[::-1])


def draw_plain(rng: np.random.Generator, size: int) -> Inputs:
    """β = 1."""
    return _scored(*_texts(rng, size), 1.0)


def draw_beta(rng: np.random.Generator, size: int) -> Inputs:
    """A β below 1 or above it."""
    beta = float(rng.choice([(1.5, 2.0, 3.0), (0.25, 0.5, 0.75), (1.2, 4.0, 8.0)][size]))
    return _scored(*_texts(rng, size), beta)


def draw_score_ends(rng: np.random.Generator, size: int) -> Inputs:
    """The same text twice; no candidate; no reference; neither; nothing in common."""
    text, other = some(rng, 4, 3)
    pair = ((text, list(text)), ([], text), (text, []), ([], []), (text, other))[size]
    return _scored(*pair, 2.0)


def _with_f(f: Callable[[float, float, float], float]) -> Any:
    """A misconception's value: the right precision and recall, and `f` of them and β."""

    def value(inputs: Inputs) -> Scores:
        beta = inputs["beta"]
        sizes = inputs["lcs"], len(inputs["candidate"]), len(inputs["reference"])
        return from_counts(*sizes, lambda p, r: f(p, r, beta))

    return value


def _with_length(length: Callable[[Sequence[str], Sequence[str]], int]) -> Any:
    """A misconception's value: another number in the place of the LCS."""

    def value(inputs: Inputs) -> Scores:
        texts = inputs["candidate"], inputs["reference"]
        return from_counts(
            length(*texts), *map(len, texts), lambda p, r: f_measure(p, r, inputs["beta"])
        )

    return value


def _swapped(inputs: Inputs) -> Scores:
    turned = {"candidate": inputs["reference"], "reference": inputs["candidate"]}
    return expected({**inputs, **turned})


def expected(inputs: Inputs) -> Scores:
    """ROUGE-L of the package."""
    return reference_rouge_l(inputs["candidate"], inputs["reference"], inputs["beta"])


ROUGE_L = Question(
    name="rouge-l",
    expected=expected,
    compare=each(NAMES, only=("F",)),
    properties=(
        Property(
            "sides",
            1,
            "precision is the LCS over the candidate's length, recall over the reference's",
            "lcs_length(candidate, reference) is given to you; divide it by each of the lengths.",
            draw_plain,
            compare=each(NAMES, only=("precision", "recall")),
        ),
        Property(
            "f",
            1,
            "at β = 1, F is the harmonic mean of precision and recall",
            "F = 2PR / (P + R) where β is 1.",
            draw_plain,
        ),
        Property(
            "beta",
            1,
            "recall weighs β² times as much as precision",
            "F = (1 + β²)PR / (R + β²P), with the β that is handed in, squared.",
            draw_beta,
        ),
        Property(
            "ends",
            1,
            "equal texts score 1; with an empty text, or nothing in common, all three are 0",
            "Ask for zero before you divide: by each length, and by R + β²P.",
            draw_score_ends,
            cases=5,
            compare=each(NAMES),
        ),
    ),
    misconceptions=(
        Misconception(
            "swapped",
            "precision and recall have changed places: in what you return, or in F, where β² "
            "stands beside the precision (R + β²P)",
            _swapped,
            ("sides", "beta"),
        ),
        Misconception(
            "order-ignored",
            "you counted the words that both texts have, in whatever order: that is ROUGE-1",
            _with_length(shared),
            ("sides", "f", "beta"),
        ),
        Misconception(
            "mean",
            "you took the arithmetic mean of precision and recall",
            _with_f(lambda p, r, beta: mean(p, r)),
            ("f", "beta"),
        ),
        Misconception(
            "not-squared",
            "you took β where the formula has β²",
            _with_f(not_squared),
            ("beta",),
        ),
        Misconception(
            "beta-ignored",
            "this is F at β = 1",
            _with_f(lambda p, r, beta: f_measure(p, r)),
            ("beta",),
        ),
        Misconception(
            "beta-of-scores",
            "you took β = P/R; use the β that is handed in",
            _with_f(lambda p, r, beta: f_measure(p, r, p / r)),
            ("f", "beta"),
        ),
    ),
)
