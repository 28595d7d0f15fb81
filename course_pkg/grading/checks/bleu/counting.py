"""`bleu/counts`: clipped matches and totals of one hypothesis, for n = 1 to 4.

Chapter: exercises.
"""

from typing import Any

import numpy as np

from course_pkg.metrics.ngrams import clipped_matches, count, maximum_counts

from ...contract.questions import Misconception, Property, Question
from . import methods
from .rows import MATCHES_AND_TOTALS
from .texts import replaced, text, words

Inputs = dict[str, Any]


def expected(inputs: Inputs) -> list[tuple[int, int]]:
    """(matches, total) for n = 1 to 4 by the course's own counting."""
    pairs = []
    for n in methods.ORDERS:
        counts = count(inputs["hypothesis"], n)
        limit = maximum_counts([count(reference, n) for reference in inputs["references"]])
        pairs.append((clipped_matches(counts, limit), counts.total()))
    return pairs


def draw_count(rng: np.random.Generator, size: int) -> Inputs:
    """No word twice, one reference, two neighbors swapped: only the n-grams show.

    At the end two words that are equal to two others only once they are glued together; the second
    case turns them, so that what is remembered of the first shows.
    """
    reference = words(rng, 8 + size)
    hypothesis = replaced(rng, reference, [int(rng.integers(len(reference)))])
    at = int(rng.integers(len(reference) - 2))
    hypothesis[at : at + 2] = hypothesis[at + 1], hypothesis[at]
    ends = (["butter", "cup"], ["butterc", "up"])[:: -1 if size == 1 else 1]
    return {
        "hypothesis": [*hypothesis[:-1], *ends[0]],
        "references": [[*reference, *ends[1]]],
    }


def draw_clip(rng: np.random.Generator, size: int) -> Inputs:
    """One reference, and few words, so that n-grams come back."""
    vocabulary = words(rng, 2)
    reference = text(rng, vocabulary, 5 + size)
    return {
        "hypothesis": text(rng, vocabulary, 7 + size),
        "references": [reference],
        "leave_unchanged": True,
    }


def draw_any(rng: np.random.Generator, size: int) -> Inputs:
    """No word twice; each reference has a part of the hypothesis, the first one the smallest.

    The last case has three references.
    """
    hypothesis = words(rng, 7 + size)
    if size == 2:
        parts = hypothesis[:2], *((hypothesis[2:5], hypothesis[5:])[:: int(rng.choice([1, -1]))])
        new = words(rng, 3, tuple(hypothesis))
        pairs = zip(parts, new, strict=True)
        return {"hypothesis": hypothesis, "references": [[*part, end] for part, end in pairs]}
    cut = int(rng.choice([2, 3, -2, -3]))
    smaller, larger = sorted((hypothesis[:cut], hypothesis[cut:]), key=len)
    a, b, c, d, e = words(rng, 5, tuple(hypothesis))
    return {"hypothesis": hypothesis, "references": [[a, b, *smaller, c], [d, *larger, e]]}


def draw_maximum(rng: np.random.Generator, size: int) -> Inputs:
    """A hypothesis that says the same three times, and two references that each say it once."""
    phrase = words(rng, 3 + size + int(rng.integers(3)))
    a, b, c, d = words(rng, 4, tuple(phrase))
    return {"hypothesis": phrase * 3, "references": [[a, *phrase, b], [c, *phrase, d]]}


def draw_short(rng: np.random.Generator, size: int) -> Inputs:
    """A hypothesis of no, one or two words, which the reference may have."""
    reference = words(rng, 5)
    others = words(rng, 2, tuple(reference))
    at = int(rng.integers(3))
    hypothesis = [str(rng.choice([reference[at + i], others[i]])) for i in range(size)]
    return {"hypothesis": hypothesis, "references": [reference]}


def _wrong(**fault: str) -> Any:
    """(matches, total) with a fault in the matches."""

    def value(inputs: Inputs) -> list[tuple[int, int]]:
        h, own = inputs["hypothesis"], inputs["references"]
        return [(methods.matches(h, own, n, **fault), methods.total(h, n)) for n in methods.ORDERS]

    return value


def _one_less(inputs: Inputs) -> list[tuple[int, int]]:
    pairs = _wrong(cut="one-less")(inputs)
    return [(matched, max(0, out_of - 1)) for matched, out_of in pairs]


def _recall(inputs: Inputs) -> list[tuple[int, int]]:
    (reference,) = inputs["references"]
    return [(m, methods.total(reference, n)) for n, (m, _) in enumerate(expected(inputs), 1)]


def _negative(inputs: Inputs) -> list[tuple[int, int]]:
    length = len(inputs["hypothesis"])
    return [(m, length - n + 1) for n, (m, _) in enumerate(expected(inputs), 1)]


def _at_least_one(inputs: Inputs) -> list[tuple[int, int]]:
    return [(m, max(1, out_of)) for m, out_of in expected(inputs)]


COUNTS = Question(
    name="counts",
    expected=expected,
    compare=MATCHES_AND_TOTALS,
    properties=(
        Property(
            "count",
            1,
            "every run of n neighboring words is an n-gram of the hypothesis, and is looked for",
            "c words have c − n + 1 n-grams: tuple(tokens[i:i + n]) for i in "
            "range(len(tokens) - n + 1).",
            draw_count,
        ),
        Property(
            "clip",
            1,
            "an n-gram counts at most as often as the reference has it",
            "Count both texts with Counter, and take the smaller of the two counts; the lists stay "
            "as they are.",
            draw_clip,
        ),
        Property(
            "any",
            1,
            "an n-gram may come from any of the references",
            "Some n-grams are in one reference and some in another; they all count.",
            draw_any,
        ),
        Property(
            "maximum",
            1,
            "with several references the limit is the maximum over them, not the sum",
            "For Counters a and b, a | b takes the larger count and a + b adds them up.",
            draw_maximum,
        ),
        Property(
            "short",
            1,
            "a hypothesis of fewer than n words has 0 n-grams of that order",
            "There are four pairs for an empty hypothesis too, and no number is negative.",
            draw_short,
        ),
    ),
    misconceptions=(
        Misconception(
            "unclipped",
            "you counted every n-gram that a reference has, as often as the hypothesis repeats it",
            _wrong(clip="unclipped"),
            ("clip", "maximum"),
        ),
        Misconception(
            "types",
            "you counted each n-gram once; one that a reference has twice may count twice",
            _wrong(clip="types"),
            ("clip",),
        ),
        Misconception(
            "sum",
            "you clipped by the sum over the references; it is the maximum over them",
            _wrong(clip="sum"),
            ("maximum",),
        ),
        Misconception(
            "first",
            "you looked at the first reference only",
            _wrong(clip="first"),
            ("any",),
        ),
        Misconception(
            "best",
            "you took the reference that matches best; every reference may give n-grams",
            _wrong(clip="best"),
            ("any",),
        ),
        Misconception(
            "bags",
            "you forgot the order of the words in an n-gram",
            _wrong(cut="bags"),
            ("count", "clip"),
        ),
        Misconception(
            "one-less",
            "you stopped one n-gram too early: range needs len(tokens) - n + 1",
            _one_less,
            ("count", "clip", "any", "maximum"),
        ),
        Misconception(
            "recall",
            "you gave the number of n-grams of the reference; BLEU is a precision and divides by "
            "the hypothesis's",
            _recall,
            ("count", "clip", "short"),
        ),
        Misconception(
            "negative",
            "a number of n-grams came out negative: it is at least 0",
            _negative,
            ("short",),
        ),
        Misconception(
            "at-least-one",
            "you counted one n-gram where there is none; the number is 0",
            _at_least_one,
            ("short",),
        ),
    ),
)
