"""From counts to a ROUGE score: precision, recall, F, and how several references are combined.

All kinds of ROUGE use this module. Each one passes a function that counts what a hypothesis shares
with one reference, and how much each of them contains. Those functions are in rouge.score and
rouge.skip_bigrams.

Sources: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", sections 2 and 3;
van Rijsbergen 1979, "Information Retrieval", chapter 7 (F). Chapter: metrics/rouge.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from course_pkg.arguments import text_list
from course_pkg.metrics.rouge import perl
from course_pkg.metrics.rouge.tokens import Stem, lookup_table, rouge_tokens, sentences
from course_pkg.metrics.tokenizers import Tokenizer

MODES = ("paper", perl.MODE)
MULTI = ("best", "pooled", "average")


@dataclass(frozen=True)
class Overlap:
    """What a hypothesis shares with one reference: matches, and how many units each text has.

    A unit is an n-gram, a word or a skip-bigram; for ROUGE-W the numbers are weights, not counts.
    rank: the value by which mode "rouge155" chooses the best reference, if it is not the rounded
    recall.
    Source: Lin 2004, equation 1.

    >>> Overlap(matches=5, hypothesis=6, reference=6)
    Overlap(matches=5, hypothesis=6, reference=6)
    """

    matches: float
    hypothesis: float
    reference: float
    rank: float | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RougeScore:
    """A ROUGE score: three numbers from 0 to 1, and the counts behind them.

    precision: the share of the hypothesis that matches; recall: the share of the reference;
    fmeasure: their weighted harmonic mean. overlaps: one per reference, in the given order.
    stemming: how words were stemmed, see `tokens.lookup_table`; report it with the score.
    Source: Lin 2004, equations 2 to 4.

    >>> RougeScore(1.0, 0.5, f_measure(1.0, 0.5), (Overlap(3, 3, 6),)).fmeasure
    0.6666666666666666
    """

    precision: float
    recall: float
    fmeasure: float
    overlaps: tuple[Overlap, ...] = ()
    stemming: str = field(default="none", compare=False)


def f_measure(precision: float, recall: float, beta: float = 1.0) -> float:
    """Compute F = (1 + β²) P R / (R + β² P), in which recall weighs β² times as much.

    beta 1 weighs both equally, 0 gives precision, math.inf recall. F is 0 if P or R is 0.
    Raises TypeError or ValueError unless beta is a number of at least 0.
    Source: Lin 2004, equation 4; van Rijsbergen 1979, chapter 7.

    >>> f_measure(1.0, 0.5), f_measure(1.0, 0.5, beta=2)
    (0.6666666666666666, 0.5555555555555556)
    """
    square = _square(beta)
    if precision == 0 or recall == 0:
        return 0.0
    if math.isinf(square):
        return recall
    return (1 + square) * precision * recall / (recall + square * precision)


def check_options(beta: float, multi: str | None, mode: str) -> str:
    """Check the options that all kinds of ROUGE share; return how to combine references.

    Raises TypeError or ValueError with the allowed values.
    Source: none, a check.

    >>> check_options(1.0, None, "rouge155")
    'pooled'
    """
    _square(beta)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if multi is None:
        return perl.MULTI if mode == perl.MODE else "best"
    if multi not in MULTI:
        raise ValueError(f"multi must be one of {', '.join(MULTI)}, got {multi!r}")
    return multi


def score_overlaps(
    overlaps: Sequence[Overlap],
    *,
    beta: float = 1.0,
    multi: str | None = None,
    mode: str = "paper",
    weight: float = 1.0,
) -> RougeScore:
    """Compute one score from the counts for each reference.

    multi: "best" takes the reference with the highest F, the first of several; "pooled" adds up
    matches and totals over the references, then divides; "average" takes the means of P, R and F.
    None: "best", or "pooled" in mode "rouge155".
    mode: "rouge155" rounds P and R to 5 digits before it computes F, and rounds F; its best
    reference is the one with the highest recall (or the highest `rank`).
    weight: the weight of ROUGE-W; P and R are raised to the power 1 / weight.
    Raises ValueError for other values, and if `overlaps` is empty.
    Source: Lin 2004, sections 2.1 and 4; ROUGE-1.5.5, options -f and -p.

    >>> score_overlaps([Overlap(2, 4, 5), Overlap(3, 4, 4)], multi="pooled").precision
    0.625
    """
    multi = check_options(beta, multi, mode)
    if not overlaps:
        raise ValueError("overlaps is empty; give one Overlap for each reference")
    return _combine(overlaps, beta, multi, weight, mode)


def _combine(
    overlaps: Sequence[Overlap], beta: float, multi: str, weight: float, mode: str
) -> RougeScore:
    scores = [_one(overlap, beta, weight, mode) for overlap in overlaps]
    if multi == "pooled":
        total = Overlap(
            sum(overlap.matches for overlap in overlaps),
            sum(overlap.hypothesis for overlap in overlaps),
            sum(overlap.reference for overlap in overlaps),
        )
        values = _one(total, beta, weight, mode)
    elif multi == "average":
        values = tuple(math.fsum(column) / len(scores) for column in zip(*scores, strict=True))
    else:
        _, recalls, fs = zip(*scores, strict=True)
        if mode == perl.MODE:
            best = perl.best_index(recalls, [overlap.rank for overlap in overlaps])
        else:
            best = fs.index(max(fs))
        values = scores[best]
    return RougeScore(*values, tuple(overlaps))


def score_texts(
    overlap: Callable[[list, list], Overlap],
    hypothesis: str,
    references: str | Iterable[str],
    beta: float,
    multi: str | None,
    stem: Stem,
    tokenize: str | Tokenizer,
    mode: str,
    *,
    lines: bool = False,
    weight: float = 1.0,
) -> RougeScore:
    """Check the arguments, tokenize the texts, count the overlaps, and compute the score.

    overlap: a function of hypothesis tokens and reference tokens; with `lines`, of lists of tokens,
    one list per line.
    Other arguments and errors as for `rouge.rouge_n` and `score_overlaps`.
    Source: Lin 2004.

    >>> words = lambda hyp, ref: Overlap(len(set(hyp) & set(ref)), len(hyp), len(ref))
    >>> score_texts(words, "a b", "b c", 1.0, None, False, "rouge", "paper").fmeasure
    0.5
    """
    multi = check_options(beta, multi, mode)
    references = text_list(references, "reference")
    table, stemming = lookup_table(stem, mode)
    stem = table if stem is True and mode == perl.MODE else stem

    def tokens(text: str) -> list:
        parts = sentences(text) if lines else [text]
        tokenized = [rouge_tokens(part, tokenize, stem, mode) for part in parts]
        return tokenized if lines else tokenized[0]

    hypothesis_tokens = tokens(hypothesis)
    overlaps = [overlap(hypothesis_tokens, tokens(text)) for text in references]
    return replace(_combine(overlaps, beta, multi, weight, mode), stemming=stemming)


def _one(overlap: Overlap, beta: float, weight: float, mode: str) -> tuple[float, float, float]:
    precision, recall = (
        (overlap.matches / total if weight == 1 else (overlap.matches / total) ** (1 / weight))
        if total
        else 0.0
        for total in (overlap.hypothesis, overlap.reference)
    )
    if mode == perl.MODE:
        precision, recall = perl.five_digits(precision), perl.five_digits(recall)
        return precision, recall, perl.five_digits(f_measure(precision, recall, beta))
    return precision, recall, f_measure(precision, recall, beta)


def _square(beta: float) -> float:
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(f"beta must be a number of at least 0, got {beta!r}")
    if not beta >= 0:
        raise ValueError(f"beta must be at least 0, got {beta}; 1 weighs P and R equally")
    return float(beta) * float(beta)
