"""`bleu/sentence`: BLEU of one text, smoothed with exp, over the orders that the text has.

Chapter: exercises.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_pkg.metrics.bleu.score import sentence_bleu

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question
from . import methods
from .texts import replaced, words

Inputs = dict[str, Any]


def expected(inputs: Inputs) -> float:
    """The reference's sentence score, with exp and effective order."""
    return sentence_bleu(
        " ".join(inputs["hypothesis"]),
        [" ".join(one) for one in inputs["references"]],
        smoothing="exp",
        tokenize="whitespace",
        effective_order=True,
    ).score


def draw_matched(rng: np.random.Generator, size: int) -> Inputs:
    """All four orders match, the closest of two references is longer."""
    text = words(rng, 10 + size)
    hypothesis = replaced(rng, text[: 8 + size], [int(rng.integers(2))])
    references = [text, text[1:4]]
    if rng.integers(2):
        references.reverse()
    return {"hypothesis": hypothesis, "references": references}


def draw_halving(rng: np.random.Generator, size: int) -> Inputs:
    """Two or three orders without a match; as long as the reference, and a word shorter in the
    last case."""
    more = int(rng.integers(2))
    text = words(rng, 6 + size + more)
    hypothesis = replaced(rng, text, [1, 3, *range(5, 6 + more)] if size == 1 else [2, 5])
    return {"hypothesis": hypothesis[: -1 if size == 2 else None], "references": [text]}


def draw_short(rng: np.random.Generator, size: int) -> Inputs:
    """Two or three words; no match in the highest order that there is. Then one word."""
    length = int(rng.integers(2, 4))
    text = words(rng, length)
    if size == 3:
        return {"hypothesis": text[:1], "references": [text[:1]]}
    hypothesis = replaced(rng, text, [int(rng.choice([0, length - 1]))])
    return {"hypothesis": hypothesis, "references": [text]}


def draw_nothing(rng: np.random.Generator, size: int) -> Inputs:
    """An empty text, or one without a word of its reference; in the last case, the reference."""
    text = words(rng, 10 + size)
    if size == 3:
        return {"hypothesis": text, "references": [text]}
    return {"hypothesis": text[: 4 + size] if size else [], "references": [text[5 + size :]]}


def _wrong(
    smoothing: str = "exp",
    brevity: str = "standard",
    orders: Callable[[int], int] = lambda c: min(4, c),
    average: str = "geometric",
) -> Any:
    def value(inputs: Inputs) -> float:
        h, own = inputs["hypothesis"], inputs["references"]
        c = len(h)
        counts = [
            (methods.matches(h, own, n), methods.total(h, n)) for n in methods.ORDERS[: orders(c)]
        ]
        r = methods.reference_length(c, [len(one) for one in own])
        return methods.penalty(c, r, brevity) * methods.mean(
            methods.smooth(counts, smoothing), average
        )

    return value


def _four(c: int) -> int:
    return 4


SENTENCE = Question(
    name="sentence",
    expected=expected,
    compare=number(rtol=1e-6),
    properties=(
        Property(
            "matched",
            1,
            "where every order has a match, smoothing changes nothing",
            "Clip, take the closest length, and multiply by the penalty, as for a corpus.",
            draw_matched,
        ),
        Property(
            "halving",
            1,
            "the first order without a match counts as 1/2 matches, the next one as 1/4, and so on",
            "Halve a number each time you meet an order without a match, and divide it by that "
            "order's total.",
            draw_halving,
        ),
        Property(
            "short",
            1,
            "a text of fewer than four words is judged by the orders that it has",
            "The mean is over min(4, c) orders, where c is the number of words.",
            draw_short,
            cases=4,
        ),
        Property(
            "nothing",
            1,
            "without a single match, or without a word, the score is exactly 0; a perfect one is 1",
            "Smoothing mends some orders, not all: ask whether any order has a match first.",
            draw_nothing,
            cases=4,
        ),
    ),
    misconceptions=(
        Misconception(
            "add-one",
            "you added 1 to matches and totals; exp changes only orders without a match",
            _wrong("add-one"),
            ("matched", "halving", "short"),
            sometimes_right=True,
        ),
        Misconception(
            "no-penalty",
            "you left the brevity penalty out",
            _wrong(brevity="none"),
            ("matched", "halving"),
            sometimes_right=True,
        ),
        Misconception(
            "same",
            "you took 1/2 for every order without a match; exp halves it each time",
            _wrong("same"),
            ("halving",),
        ),
        Misconception(
            "late",
            "you began with 1; the first order without a match counts as 1/2",
            _wrong("late"),
            ("halving", "short"),
            sometimes_right=True,
        ),
        Misconception(
            "no-total",
            "you took 1/2, 1/4, … for the precision; they stand for the matches and are divided by "
            "the total",
            _wrong("no-total"),
            ("halving",),
        ),
        Misconception(
            "floor",
            "you took 0.1 matches, which is the smoothing floor; here it is exp",
            _wrong("floor"),
            ("halving", "short"),
            sometimes_right=True,
        ),
        Misconception(
            "zero",
            "an order made your score 0; one without a match is smoothed, one that the text is too "
            "short for is left out",
            lambda inputs: 0.0,
            ("matched", "halving", "short"),
        ),
        Misconception(
            "fourth-root",
            "you took the fourth root although the text has fewer orders",
            _wrong(orders=_four, average="as-one"),
            ("short",),
            sometimes_right=True,
        ),
    ),
)
