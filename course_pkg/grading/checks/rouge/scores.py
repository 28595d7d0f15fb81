"""What the questions of `rouge` share: scores as three numbers, their comparison, and words.

Chapter: exercises.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_pkg.metrics.rouge.counts import RougeScore, f_measure
from course_pkg.metrics.rouge.score import rouge_l, rouge_n

from ...contract.compare import Comparator, describe_type, number
from ...contract.values import Array

Scores = tuple[float, float, float]
NAMES = ("precision", "recall", "F")
WORDS = (
    "apple basket bell bridge candle castle circle cloud coast corner cotton desk door drum engine "
    "field fire flag floor forest garden gate glass hammer harbour hill honey island jacket kettle "
    "key ladder lake leaf letter market meadow mirror moon morning mountain needle ocean orchard "
    "paper path pencil pepper piano pocket rain ribbon road roof rope salt shadow silver spoon "
    "station stairs street summer table tent thunder tower train valley village wagon wall water "
    "wheat wheel wind window winter wood yard"
)


def some(rng: np.random.Generator, *sizes: int) -> list[list[str]]:
    """Lists of that many words, no word in two of them."""
    words = rng.permutation(WORDS.split()).tolist()
    if sum(sizes) > len(words):
        words = [f"{word}{i}" for i in range(sum(sizes) // len(words) + 1) for word in words]
    lists, used = [], 0
    for size in sizes:
        lists.append(words[used : used + size])
        used += size
    return lists


def mixed(rng: np.random.Generator, items: Sequence[Any]) -> list[Any]:
    """The same items in a random order."""
    return [items[i] for i in rng.permutation(len(items))]


def as_tuple(score: RougeScore) -> Scores:
    """Precision, recall and F."""
    return score.precision, score.recall, score.fmeasure


def reference_rouge_n(
    candidate: Sequence[str], references: Sequence[Sequence[str]], n: int, rule: str = "best"
) -> Scores:
    """The package's ROUGE-N of lists of tokens."""
    texts = [" ".join(tokens) for tokens in references]
    return as_tuple(rouge_n(" ".join(candidate), texts, n, multi=rule, tokenize="whitespace"))


def reference_rouge_l(candidate: Sequence[str], reference: Sequence[str], beta: float) -> Scores:
    """The package's ROUGE-L of lists of tokens."""
    texts = " ".join(candidate), " ".join(reference)
    return as_tuple(rouge_l(*texts, beta=beta, tokenize="whitespace"))


def from_counts(matches: float, candidate: int, reference: int, f: Any = f_measure) -> Scores:
    """Precision, recall and `f(precision, recall)` of counts; 0 of 0 is 0."""
    precision = matches / candidate if candidate else 0.0
    recall = matches / reference if reference else 0.0
    return precision, recall, f(precision, recall)


def shared(a: Sequence[Any], b: Sequence[Any]) -> int:
    """What two lists share, each item as often as in the list that has fewer; order ignored."""
    return (Counter(a) & Counter(b)).total()


def mean(precision: float, recall: float) -> float:
    """A wrong F: the arithmetic mean."""
    return (precision + recall) / 2


def not_squared(precision: float, recall: float, beta: float) -> float:
    """A wrong F: β in the place of β²."""
    return (1 + beta) * precision * recall / (recall + beta * precision)


def wrong_side(precision: float, recall: float, beta: float) -> float:
    """A wrong F: β² beside the recall."""
    return f_measure(recall, precision, beta)


def substring_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The longest run of neighbors that both lists have: what an LCS is taken for."""
    longest, row = 0, [0] * (len(b) + 1)
    for token in a:
        row = [0, *(row[j] + 1 if token == other else 0 for j, other in enumerate(b))]
        longest = max(longest, *row)
    return longest


def each(names: Sequence[str], only: Sequence[str] | None = None, rtol: float = 1e-6) -> Comparator:
    """Compares a tuple or list of numbers, one for each name; of them only those in `only`.

    >>> each(NAMES, only=["F"])((0.5, 1.0, 0.667), (1.0, 0.5, 0.667)) is None
    True
    """
    one = number(rtol=rtol)

    def compare(expected: Sequence[float], given: Any) -> str | None:
        if isinstance(given, Array) and len(given.shape) == 1:
            given = given.numpy().tolist()
        if not isinstance(given, list | tuple):
            return f"{describe_type(given)} was given; wanted ({', '.join(names)})"
        if len(given) != len(names):
            return f"{len(given)} values were given; wanted ({', '.join(names)})"
        for name, want, have in zip(names, expected, given, strict=True):
            if (only is None or name in only) and (reason := one(want, have)) is not None:
                return f"{name}: {reason}"
        return None

    return compare
