"""`rouge/lcs`: the length of the longest common subsequence.

Chapter: exercises.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_pkg.metrics.rouge.lcs import lcs_length

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question
from .scores import shared, some, substring_length

Inputs = dict[str, Any]
COMPARISONS = 10  # that an answer may make for each entry of the table, in the long texts


def _turned(rng: np.random.Generator, a: list[str], b: list[str]) -> Inputs:
    """The two lists as inputs, in either order."""
    first, second = (a, b) if rng.integers(2) else (b, a)
    return {"a": first, "b": second}


def draw_gaps(rng: np.random.Generator, size: int) -> Inputs:
    """One order, different words, each with words of its own between: no run is the whole."""
    common, mine, yours = some(rng, 3 + size + int(rng.integers(3)), 2 + size, 2 + size)
    a, b = list(common), list(common)
    for text, extra in ((a, mine), (b, yours)):
        for k, word in enumerate(extra):  # the first at the end: nothing common ends a text
            text.insert(int(rng.integers(len(text) + 1)) if k else len(text), word)
    return _turned(rng, a, b)


def draw_order(rng: np.random.Generator, size: int) -> Inputs:
    """Two runs of equal length that change places: one of them can stay, not both."""
    length = 1 + size + int(rng.integers(3))
    one, two = some(rng, length, length)
    return _turned(rng, one + two, two + one)


def draw_longest(rng: np.random.Generator, size: int) -> Inputs:
    """A first word that leads astray, from either side, and a word that one text repeats: the first
    list in one case, the second in another. Then a run of neighbors that is shorter than what
    is left without it, of which the last word has an earlier place too."""
    if size < 2:
        run, (first, last, word) = some(rng, 1 + size + int(rng.integers(3)), 3)
        pair = [first, word, word, *run, last], [last, word, *run, first]
        return dict(zip("ab", pair[:: -1 if size else 1], strict=True))
    block, kept, mine, yours, end, astray = some(rng, 3, 4, 3, 3, 1, 1)
    a, b = list(kept), list(kept)
    for text, extra in ((a, mine), (b, yours)):
        for place, word in zip((3, 2, 1), extra, strict=True):
            text.insert(place, word)
    return {"a": [*astray, *block, *a, *end], "b": [kept[-1], *b, *block, *end, *astray]}


def draw_ends(rng: np.random.Generator, size: int) -> Inputs:
    """An empty list on either side, and a list beside itself."""
    (text,) = some(rng, 3 + int(rng.integers(5)))
    a, b = (([], text), (text, []), (text, list(text)))[size]
    return {"a": a, "b": b, "leave_unchanged": True}


def draw_fast(rng: np.random.Generator, size: int) -> Inputs:
    """Long texts that agree at the beginning and nowhere else, with a bound on comparisons."""
    lengths = rng.integers((150 + 10 * size, 50, 50), (160 + 10 * size, 80, 80)).tolist()
    common, mine, yours = some(rng, *lengths)
    a, b = common + mine, common + yours
    return {**_turned(rng, a, b), "most": COMPARISONS * len(a) * len(b)}


def greedy(a: Sequence[str], b: Sequence[str]) -> int:
    """A wrong LCS: each token of `a` takes the next place in `b` where it occurs."""
    length = start = 0
    for token in a:
        if token in b[start:]:
            start = b.index(token, start) + 1
            length += 1
    return length


def _of_both(value: Callable[[Sequence[str], Sequence[str]], int]) -> Any:
    return lambda inputs: value(inputs["a"], inputs["b"])


LCS = Question(
    name="lcs",
    expected=_of_both(lambda a, b: lcs_length(a, b)),
    compare=number(),
    properties=(
        Property(
            "gaps",
            1,
            "a subsequence may leave tokens out: it is not a substring",
            "Where the last tokens differ, drop one or the other and go on; do not start again "
            "from 0.",
            draw_gaps,
        ),
        Property(
            "order",
            1,
            "a subsequence keeps the order: tokens that change places do not both count",
            "Common words are not enough; the order in both texts has to be the same.",
            draw_order,
        ),
        Property(
            "longest",
            1,
            "it is the longest one, in which no token of either list is used twice",
            "Taking the first match is not always best: compare what is left without each of the "
            "two tokens. A match adds one to the length for a[:-1] and b[:-1], without both.",
            draw_longest,
        ),
        Property(
            "ends",
            1,
            "an empty list gives 0, and equal lists give their length",
            "The table has one row and one column more than there are tokens; they hold 0. The "
            "lists stay as they are.",
            draw_ends,
        ),
        Property(
            "fast",
            1,
            "lists of some hundred tokens take at most ten comparisons for each pair of tokens",
            "Keep the length for every pair of beginnings in a table, instead of computing it "
            "again and again.",
            draw_fast,
            cases=2,
        ),
    ),
    misconceptions=(
        Misconception(
            "substring",
            "you found the longest run of neighbors: a substring; in a subsequence tokens may be "
            "left out",
            _of_both(substring_length),
            ("gaps", "longest"),
            sometimes_right=True,
        ),
        Misconception(
            "order-ignored",
            "you counted the tokens that both lists have, in whatever order",
            _of_both(shared),
            ("order", "longest"),
        ),
        Misconception(
            "greedy",
            "you gave each token of the first list the next place in the second; a match that "
            "comes early can cost several later ones",
            _of_both(greedy),
            ("longest",),
        ),
        Misconception(
            "greedy-second",
            "you gave each token of the second list the next place in the first; a match that "
            "comes early can cost several later ones",
            _of_both(lambda a, b: greedy(b, a)),
            ("longest",),
        ),
    ),
)
