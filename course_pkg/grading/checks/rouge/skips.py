"""`rouge/skip-bigrams`: pairs of words in their order, with a limit on the gap between them.

Chapter: exercises.
"""

from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import numpy as np

from course_pkg.metrics.rouge.skip_bigrams import skip_bigrams

from ...contract.compare import exactly
from ...contract.questions import Misconception, Property, Question
from .scores import some

Inputs = dict[str, Any]


def _counts(pairs: Any) -> list[list[Any]]:
    """Pairs as they are handed in: [first, second, times], sorted."""
    return sorted([first, second, times] for (first, second), times in Counter(pairs).items())


def expected(inputs: Inputs) -> list[list[Any]]:
    """How often each skip-bigram occurs."""
    return _counts(skip_bigrams(inputs["tokens"], inputs["max_gap"]))


def draw_order(rng: np.random.Generator, size: int) -> Inputs:
    """Different words, not in the order of the alphabet, and no limit."""
    return {"tokens": some(rng, 3 + size)[0], "max_gap": None, "leave_unchanged": True}


def draw_gap(rng: np.random.Generator, size: int) -> Inputs:
    """Words in the order of the alphabet; a gap of 0, 1, 2. With 0 a word stands twice, so that its
    place can't be found by the word."""
    tokens = sorted(some(rng, 4 + size)[0])
    return {"tokens": tokens if size else [*tokens, tokens[-1]], "max_gap": size}


def draw_counts(rng: np.random.Generator, size: int) -> Inputs:
    """Words that repeat, equal ones side by side, and no limit."""
    words = sorted(some(rng, 2 + size)[0])
    return {"tokens": [w for w in words for _ in range(rng.integers(2, 4))], "max_gap": None}


def _wrong(pairs: Callable[[list[str], int | None], Any]) -> Any:
    return lambda inputs: _counts(pairs(inputs["tokens"], inputs["max_gap"]))


def _by_distance(tokens: list[str], most: int | None) -> list[tuple[str, str]]:
    """A wrong limit: on the distance of the two places, which is one more than the gap."""
    return skip_bigrams(tokens, most - 1) if most else []


def _adjacent(inputs: Inputs) -> list[list[Any]]:
    return expected({**inputs, "max_gap": 0})


SKIP_BIGRAMS = Question(
    name="skip-bigrams",
    expected=expected,
    compare=exactly(),
    properties=(
        Property(
            "order",
            1,
            "a pair keeps the order of the text, and without a limit any two words make one",
            "For each place i, pair tokens[i] with every token after it; the list stays as it is.",
            draw_order,
        ),
        Property(
            "gap",
            1,
            "at most max_gap words lie between the two; 0 gives the ordinary bigrams",
            "Between the places i and j lie j − i − 1 words. None means no limit, 0 is a limit.",
            draw_gap,
        ),
        Property(
            "counts",
            1,
            "a pair counts as often as it occurs",
            "The same two words at other places are one more occurrence; so is a word with itself.",
            draw_counts,
        ),
    ),
    misconceptions=(
        Misconception(
            "both-orders",
            "you made both pairs of any two words; only the one in the order of the text counts",
            _wrong(lambda tokens, most: permutations(tokens, 2)),
            ("order", "counts"),
        ),
        Misconception(
            "sorted",
            "you put the two words of a pair into alphabetical order; they stay as in the text",
            _wrong(lambda tokens, most: map(tuple, map(sorted, combinations(tokens, 2)))),
            ("order",),
        ),
        Misconception(
            "adjacent",
            "you have the ordinary bigrams only; words may lie between the two",
            _adjacent,
            ("order", "counts"),
        ),
        Misconception(
            "no-limit",
            "you did not limit the gap; 0 is a limit too",
            _wrong(lambda tokens, most: combinations(tokens, 2)),
            ("gap",),
        ),
        Misconception(
            "distance",
            "you limited the distance of the two places; max_gap counts the words between them, "
            "which are one fewer",
            _wrong(_by_distance),
            ("gap",),
        ),
        Misconception(
            "once",
            "you counted every pair once; one that occurs several times counts each time",
            _wrong(lambda tokens, most: set(combinations(tokens, 2))),
            ("counts",),
        ),
    ),
)
