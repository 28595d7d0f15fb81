"""From counts to a ROUGE score: precision, recall, F, and how several references are combined.

Sources: Lin 2004, sections 2 and 3; van Rijsbergen 1979, chapter 7 (F).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from course_pkg.common.arguments import text_list
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.rouge.options import RougeOptions, require_beta, sentences, text_splitter


@dataclass(frozen=True)
class Overlap:
    """Matches, and how many units (n-grams, words, skip-bigrams; weights for ROUGE-W) texts have.

    rank: the value by which mode "rouge155" chooses the best reference (None: the rounded recall).
    """

    matches: float
    hypothesis: float
    reference: float
    rank: float | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RougeScore:
    """A ROUGE score from 0 to 1, the counts behind it, and how words were stemmed."""

    precision: float
    recall: float
    fmeasure: float
    overlaps: tuple[Overlap, ...] = ()
    stemming: str = field(default="none", compare=False)


def f_measure(precision: float, recall: float, beta: float = 1.0) -> float:
    """Compute F = (1 + β²) P R / (R + β² P), in which recall weighs β² times as much.

    beta 1 weighs both equally, 0 gives precision, math.inf recall. F is 0 if P or R is 0.
    Source: Lin 2004, equation 4; van Rijsbergen 1979, chapter 7.

    >>> f_measure(1.0, 0.5), f_measure(1.0, 0.5, beta=2)
    (0.6666666666666666, 0.5555555555555556)
    """
    beta = require_beta(beta)
    square = beta * beta
    if precision == 0 or recall == 0:
        return 0.0
    if math.isinf(square):
        return recall
    return (1 + square) * precision * recall / (recall + square * precision)


def score_texts(
    overlap: Callable[[list, list], Overlap],
    hypothesis: str,
    references: str | Iterable[str],
    options: RougeOptions,
    *,
    lines: bool = False,
    weight: float = 1.0,
) -> RougeScore:
    """The score of texts; overlap: a function of two texts' tokens, or of lists, one per line."""
    references = text_list(references, "reference")
    split, stemming = text_splitter(options)

    def tokens(text: str) -> list:
        return [split(line) for line in sentences(text)] if lines else split(text)

    hypothesis_tokens = tokens(hypothesis)
    overlaps = [overlap(hypothesis_tokens, tokens(text)) for text in references]
    return replace(score_overlaps(overlaps, options, weight), stemming=stemming)


def score_overlaps(
    overlaps: Sequence[Overlap], options: RougeOptions, weight: float = 1.0
) -> RougeScore:
    """Compute one score from the counts for each reference (Lin 2004, sections 2.1 and 4).

    Mode "rouge155" rounds P and R to 5 digits before it computes F, and rounds F; its best
    reference is the first with the highest recall (or the highest `rank`).
    """
    if options.multi == "pooled":
        total = Overlap(
            sum(overlap.matches for overlap in overlaps),
            sum(overlap.hypothesis for overlap in overlaps),
            sum(overlap.reference for overlap in overlaps),
        )
        return RougeScore(*_precision_recall_f(total, options, weight), tuple(overlaps))
    scores = [_precision_recall_f(overlap, options, weight) for overlap in overlaps]
    if options.multi == "average":
        means = [math.fsum(column) / len(scores) for column in zip(*scores, strict=True)]
        return RougeScore(*means, tuple(overlaps))

    def quality(index: int) -> float:
        _, recall, f = scores[index]
        if not options.perl:
            return f
        rank = overlaps[index].rank
        return recall if rank is None else rank

    best = max(range(len(scores)), key=quality)  # the first of several
    return RougeScore(*scores[best], tuple(overlaps))


def _precision_recall_f(
    overlap: Overlap, options: RougeOptions, weight: float
) -> tuple[float, float, float]:
    def share(total: float) -> float:
        if not total:
            return 0.0
        return overlap.matches / total if weight == 1 else (overlap.matches / total) ** (1 / weight)

    precision = share(overlap.hypothesis)
    recall = share(overlap.reference)
    if not options.perl:
        return precision, recall, f_measure(precision, recall, options.beta)
    precision = perl.five_digits(precision)
    recall = perl.five_digits(recall)
    return precision, recall, perl.five_digits(f_measure(precision, recall, options.beta))
