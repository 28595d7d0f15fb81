"""`rouge/rouge-n`: n-grams counted against one reference.

Chapter: exercises.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_pkg.metrics.ngrams import clipped_matches, count
from course_pkg.metrics.rouge.counts import f_measure

from ...contract.questions import Misconception, Property, Question
from .scores import NAMES, Scores, each, from_counts, mean, mixed, reference_rouge_n, some

Inputs = dict[str, Any]


def _case(candidate: Sequence[str], reference: Sequence[str], n: int) -> Inputs:
    return {"candidate": list(candidate), "reference": list(reference), "n": n}


def _unlike(rng: np.random.Generator, size: int) -> Inputs:
    """Different words in texts of different lengths, n = 1; the longer one in turn."""
    both, one, more = some(rng, 1 + size, int(rng.integers(1, 3)), int(rng.integers(3, 6)))
    pair = [mixed(rng, both + one), mixed(rng, both + more)]
    return _case(*(pair if size % 2 else pair[::-1]), 1)


def draw_clipped(rng: np.random.Generator, size: int) -> Inputs:
    """Two words that the texts repeat, not equally often; equal lengths, so that P = R."""
    (often, rare), fill, other = some(rng, 2, 9, 9)
    low, few = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    candidate = [often] * (low + 1 + size) + [rare] * few
    reference = [often] * low + [rare] * (few + int(rng.integers(1, 3)))
    length = max(len(candidate), len(reference)) + 1
    candidate += fill[: length - len(candidate)]
    reference += other[: length - len(reference)]
    return {**_case(mixed(rng, candidate), mixed(rng, reference), 1), "leave_unchanged": True}


def draw_ngrams(rng: np.random.Generator, size: int) -> Inputs:
    """n = 2, 3, 4: a run that both have, one that is turned round in the other text, and n-grams
    that are equal only once they are glued.

    Words do not repeat and both texts have as many: only which n-grams there are shows.
    """
    n = 2 + size
    run, turned, before, (one, other) = some(rng, n + int(rng.integers(1, 4)), n, n - 2, 2)
    candidate = [*run, one, *before, "sun", "flower", *turned]
    reference = [*turned[::-1], other, *before, "sunf", "lower", *run]
    return _case(*((candidate, reference) if rng.integers(2) else (reference, candidate)), n)


def draw_ends(rng: np.random.Generator, size: int) -> Inputs:
    """The same text twice; a text too short for a bigram; two empty ones; nothing in common."""
    text, (one,), other = some(rng, 4, 1, 3)
    pair, n = (((text, text), 2), (([one], other), 2), (([], []), 1), ((text, other), 1))[size]
    return _case(*pair, n)


def _counted(matches: Callable[[Counter, Counter], int], f: Any = f_measure) -> Any:
    """A misconception's value: `matches` of the two texts' n-gram counts, and `f`."""

    def value(inputs: Inputs) -> Scores:
        mine, yours = (count(inputs[name], inputs["n"]) for name in ("candidate", "reference"))
        return from_counts(matches(mine, yours), mine.total(), yours.total(), f)

    return value


def _sets(inputs: Inputs) -> Scores:
    mine, yours = (set(count(inputs[name], inputs["n"])) for name in ("candidate", "reference"))
    return from_counts(len(mine & yours), len(mine), len(yours))


def expected(inputs: Inputs) -> Scores:
    """ROUGE-N of the package."""
    return reference_rouge_n(inputs["candidate"], [inputs["reference"]], inputs["n"])


ROUGE_N = Question(
    name="rouge-n",
    expected=expected,
    compare=each(NAMES, only=("precision", "recall")),
    properties=(
        Property(
            "sides",
            1,
            "precision divides by the candidate's n-grams, recall by the reference's",
            "The matches are the same for both; only what they are divided by differs.",
            _unlike,
        ),
        Property(
            "clipped",
            1,
            "an n-gram matches as often as it occurs in the text that has fewer of it",
            "min(times in the candidate, times in the reference), added up over the n-grams; the "
            "lists stay as they are.",
            draw_clipped,
        ),
        Property(
            "n-grams",
            1,
            "the units are all runs of n neighboring tokens",
            "tuple(tokens[i : i + n]) for i from 0 to len(tokens) − n. Keep them as tuples, in "
            "their order: glued together, 'sun' + 'flower' and 'sunf' + 'lower' are one.",
            draw_ngrams,
        ),
        Property(
            "f",
            1,
            "F is the harmonic mean of precision and recall",
            "F = 2PR / (P + R).",
            _unlike,
            compare=each(NAMES, only=("F",)),
        ),
        Property(
            "ends",
            1,
            "equal texts score 1; without an n-gram, or without a match, all three numbers are 0",
            "Ask for zero before you divide: by the n-grams of each text, and by P + R.",
            draw_ends,
            cases=4,
            compare=each(NAMES),
        ),
    ),
    misconceptions=(
        Misconception(
            "swapped",
            "precision and recall have changed places",
            lambda i: (*expected(i)[1::-1], expected(i)[2]),
            ("sides",),
        ),
        Misconception(
            "sets",
            "you counted different n-grams; one that occurs twice counts twice",
            _sets,
            ("clipped",),
        ),
        Misconception(
            "unclipped",
            "you counted every n-gram of the candidate that occurs in the reference; one that the "
            "candidate repeats counts only as often as the reference has it",
            _counted(lambda mine, yours: sum(c for gram, c in mine.items() if gram in yours)),
            ("clipped",),
        ),
        Misconception(
            "unclipped-reference",
            "you counted every n-gram of the reference that occurs in the candidate; one that the "
            "reference repeats counts only as often as the candidate has it",
            _counted(lambda mine, yours: sum(c for gram, c in yours.items() if gram in mine)),
            ("clipped",),
        ),
        Misconception(
            "words",
            "you compared single words, whatever n is",
            lambda i: expected({**i, "n": 1}),
            ("n-grams",),
        ),
        Misconception(
            "mean",
            "you took the arithmetic mean of precision and recall",
            _counted(clipped_matches, mean),
            ("f",),
        ),
        Misconception(
            "half",
            "you left out the factor 2 of 2PR/(P + R)",
            _counted(clipped_matches, lambda p, r: f_measure(p, r) / 2),
            ("f",),
        ),
    ),
)
