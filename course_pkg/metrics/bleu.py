"""BLEU: clipped n-gram precisions of a corpus, their geometric mean, and a brevity penalty::

    BLEU = BP * exp(mean over n = 1..N of ln p_n)         N = max_order, 4 by default
    p_n = clipped matches of order n / n-grams of order n         both summed over the corpus
    BP = 1 if c >= r, else exp(1 - r / c)         c, r: lengths summed over the corpus

r adds the length of each hypothesis's closest reference, the shorter of two. Scores are in [0, 1].

Sources: Papineni et al. 2002; Post 2018 (sacrebleu, which has equal scores); Chen and Cherry 2014
on smoothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from course_pkg import __version__
from course_pkg.common.arguments import (
    require_between,
    require_choice,
    require_integer,
    require_list,
    require_string,
)
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.ngrams import count, count_matches, maximum_counts
from course_pkg.metrics.text_files import ScoredTexts
from course_pkg.metrics.tokenizers import tokenizer

if TYPE_CHECKING:  # a browser computes BLEU without numpy
    from course_pkg.metrics.significance import TextStatistics

SMOOTH_VALUES = {"none": 0.0, "floor": 0.1, "add-k": 1.0, "exp": 0.0}  # those of sacrebleu
_NESTED = "give one list of references per hypothesis, as in [[text] for text in texts]"


@dataclass(frozen=True)
class BleuScore:
    """A BLEU score in [0, 1], and what it was computed from; matches and totals aren't smoothed."""

    score: float
    precisions: tuple[float, ...]
    matches: tuple[int, ...]
    totals: tuple[int, ...]
    hypothesis_length: int
    reference_length: int
    brevity_penalty: float
    signature: str = ""


def bleu_from_counts(
    matches: Sequence[int],
    totals: Sequence[int],
    hypothesis_length: int,
    reference_length: int,
    *,
    smoothing: str = "exp",
    smooth_value: float | None = None,
    effective_order: bool = False,
) -> BleuScore:
    """Compute BLEU from counts that are already summed over a corpus.

    Args:
        matches, totals: one count per order, from order 1 up; without any match, the score is 0.
        smoothing: what replaces a match count of 0. "exp": 1/2 for the first such order, 1/4 for
            the second, and so on; "floor": smooth_value (0.1); "none": it stays 0. "add-k" adds
            smooth_value (1) to matches and totals of all orders above 1.
        effective_order: leave out orders for which the hypotheses are too short.
    """
    _check_counts(matches, totals, hypothesis_length, reference_length)
    k = _checked_smooth_value(smoothing, smooth_value)
    precisions, orders_present = _smoothed_precisions(matches, totals, smoothing, k)
    order = orders_present if effective_order else len(matches)
    c = hypothesis_length
    r = reference_length
    bp = 1.0 if c >= r else math.exp(1 - r / c) if c else 0.0
    score = 0.0
    if any(matches) and all(precisions[:order]):
        mean_log = sum(math.log(precision) for precision in precisions[:order]) / order
        score = bp * math.exp(mean_log)
    return BleuScore(score, tuple(precisions), tuple(matches), tuple(totals), c, r, bp)


def _smoothed_precisions(
    matches: Sequence[int], totals: Sequence[int], smoothing: str, k: float
) -> tuple[list[float], int]:
    """The precision of each order, and how many orders the hypotheses have n-grams of."""
    precisions = [0.0] * len(matches)
    orders_present = 0
    halvings = 0
    counts = list(zip(matches, totals, strict=True)) if any(matches) else []
    for index, (match, total) in enumerate(counts):
        if smoothing == "add-k" and index > 0:
            match += k
            total += k
        if not total:
            break  # the hypotheses have no n-grams of this order or of higher orders
        orders_present = index + 1
        if not match and smoothing == "floor":
            match = k
        elif not match and smoothing == "exp":
            halvings += 1
            match = 0.5**halvings
        precisions[index] = match / total
    return precisions, orders_present


class PreparedReferences:
    """References that are tokenized and counted once, so that many systems can be scored."""

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        *,
        tokenize: str = "13a",
        lowercase: bool = False,
        max_order: int = 4,
    ) -> None:
        self.max_order = require_integer(max_order, "max_order")
        self.lowercase = lowercase
        self.tokenize = tokenize
        self._tokenize = tokenizer(tokenize)
        self._lengths: list[list[int]] = []
        self._counts: list[list[Counter]] = []  # [sentence][order - 1]
        _require_texts("references", references, _NESTED)
        for number, group in enumerate(references):
            _require_texts(f"references[{number}]", group, _NESTED)
            texts = [self._tokens(f"references[{number}]", text) for text in group]
            self._lengths.append([len(tokens) for tokens in texts])
            orders = [[count(tokens, n) for tokens in texts] for n in range(1, max_order + 1)]
            self._counts.append([maximum_counts(counters) for counters in orders])

    def counts(self, hypotheses: Sequence[str]) -> list[list[int]]:
        """For each hypothesis: its length, its reference length, N matches, N totals."""
        _require_texts("hypotheses", hypotheses, "give a list of strings")
        if len(hypotheses) != len(self._counts):
            raise ValueError(
                f"{len(hypotheses)} hypotheses, but references for {len(self._counts)}; "
                f"{_NESTED} (sacrebleu's layout is the transpose: "
                "convert it by list(zip(*references)))"
            )
        rows = []
        for number, text in enumerate(hypotheses):
            tokens = self._tokens(f"hypotheses[{number}]", text)
            c = len(tokens)
            r = min(self._lengths[number], key=lambda length: (abs(length - c), length))
            matches = count_matches(tokens, self._counts[number])
            totals = [max(c - n, 0) for n in range(self.max_order)]
            rows.append([c, r, *matches, *totals])
        return rows

    def score(self, hypotheses: Sequence[str], **smoothing) -> BleuScore:
        """Compute BLEU of one system. Keywords: smoothing, smooth_value, effective_order."""
        summed = [sum(column) for column in zip(*self.counts(hypotheses), strict=True)]
        result = self.score_of_counts(summed, **smoothing)
        settings = self.settings(**smoothing).items()
        return replace(result, signature="|".join(f"{name}:{text}" for name, text in settings))

    def score_of_counts(self, counts: Sequence[int], **smoothing) -> BleuScore:
        c, r, *orders = counts
        n = self.max_order
        return bleu_from_counts(orders[:n], orders[n:], c, r, **smoothing)

    def statistics(self, hypotheses: Sequence[str], **smoothing) -> "TextStatistics":
        """One system's counts, for the tests and intervals of `metrics.significance`."""
        import numpy as np

        from course_pkg.metrics.significance import TextStatistics

        rows = np.array(self.counts(hypotheses), dtype=np.int64)
        return TextStatistics(
            rows, lambda summed: self.score_of_counts(summed.tolist(), **smoothing).score
        )

    def settings(
        self,
        smoothing: str = "exp",
        smooth_value: float | None = None,
        effective_order: bool = False,
    ) -> dict[str, str]:
        """What one must know to compare two scores, by sacrebleu's names and in its order."""
        numbers = {len(lengths) for lengths in self._lengths}
        value = SMOOTH_VALUES[smoothing] if smooth_value is None else smooth_value
        settings = {
            "nrefs": str(numbers.pop()) if len(numbers) == 1 else "var",
            "case": "lc" if self.lowercase else "mixed",
            "eff": "yes" if effective_order else "no",
            "tok": self.tokenize,
            "smooth": smoothing if smoothing in ("none", "exp") else f"{smoothing}[{value:.2f}]",
        }
        if self.max_order != 4:  # sacrebleu does not show it
            settings["order"] = str(self.max_order)
        return settings | {"version": f"course_pkg {__version__}"}

    def _tokens(self, name: str, text: str) -> list[str]:
        text = require_string(text, f"{name}: a text")
        return self._tokenize(text.lower() if self.lowercase else text)


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    max_order: int = 4,
    smoothing: str = "exp",
    smooth_value: float | None = None,
    effective_order: bool = False,
) -> BleuScore:
    """Compute BLEU of a system's texts; it equals sacrebleu's score / 100 with the same options.

    Args:
        references: a list for each hypothesis.
        tokenize: see `tokenizers.tokenize`.
        smoothing, smooth_value, effective_order: see `bleu_from_counts`.

    Example:

        >>> result = corpus_bleu(["the cat the cat on the mat"], [["the cat is on the mat"]])
        >>> result.matches, result.totals, result.brevity_penalty
        ((5, 3, 1, 0), (7, 6, 5, 4), 1.0)
    """
    prepared = PreparedReferences(
        references, tokenize=tokenize, lowercase=lowercase, max_order=max_order
    )
    return prepared.score(
        hypotheses,
        smoothing=smoothing,
        smooth_value=smooth_value,
        effective_order=effective_order,
    )


def sentence_bleu(
    hypothesis: str, references: Sequence[str], *, effective_order: bool = True, **options
) -> BleuScore:
    """Compute BLEU of one text and its list of references, by default with effective order.

    >>> round(sentence_bleu("a cat sat on mat", ["the cat sat on the mat"]).score, 4)
    0.3498
    """
    require_string(hypothesis, "hypothesis")
    _require_texts("references", references, "give a list of strings")
    return corpus_bleu([hypothesis], [references], effective_order=effective_order, **options)


def _require_texts(name: str, texts: Sequence, fix: str) -> None:
    if not require_list(texts, name, fix):
        raise ValueError(f"{name} is empty; {fix}")


def _check_counts(matches: Sequence[int], totals: Sequence[int], *lengths: int) -> None:
    if len(matches) != len(totals) or not len(matches):
        raise ValueError(
            f"matches and totals must have one count per order, got {matches} and {totals}"
        )
    if not all(0 <= match <= total for match, total in zip(matches, totals, strict=True)):
        raise ValueError(
            f"each order must have from 0 to all of its n-grams matched, got {matches} of {totals}"
        )
    if not all(length >= 0 for length in lengths):
        raise ValueError(f"lengths must be at least 0, got {lengths}")


def _checked_smooth_value(smoothing: str, value: float | None) -> float:
    require_choice(smoothing, "smoothing", SMOOTH_VALUES)
    if value is None:
        return SMOOTH_VALUES[smoothing]
    if smoothing in ("none", "exp"):
        raise ValueError(
            f"smooth_value is not used with smoothing {smoothing!r}, got {value!r}; leave it out"
        )
    require_between(value, "smooth_value", 0, math.inf, closed=True)
    if smoothing == "floor" and value > 1:
        raise ValueError(
            f"smooth_value must be at most 1 (a whole match) with smoothing 'floor', got {value!r}"
        )
    return value


def _score(
    texts: ScoredTexts,
    *,
    tokenize: Annotated[
        Literal["13a", "none", "char", "zh"], MetricOption("How a text becomes words.", "-tok")
    ] = "13a",
    lowercase: Annotated[bool, MetricOption("Ignore case.", "-lc")] = False,
    smooth_method: Annotated[
        Literal["exp", "floor", "add-k", "none"],
        MetricOption("What replaces an order without a match.", "-s"),
    ] = "exp",
    smooth_value: Annotated[
        float | None, MetricOption("Of floor [0.1] and add-k [1].", "-sv")
    ] = None,
    effective_order: Annotated[
        bool, MetricOption("Leave out orders that no text is long enough for.")
    ] = False,
) -> SystemScores:
    from course_pkg.metrics.significance import TextStatistics

    prepared = PreparedReferences(texts.references, tokenize=tokenize, lowercase=lowercase)
    smoothing = {"smoothing": smooth_method, "smooth_value": smooth_value}
    of_corpus = {**smoothing, "effective_order": effective_order}
    counts = prepared.statistics(texts.hypotheses, **of_corpus)
    result = prepared.score_of_counts(counts.rows.sum(0).tolist(), **of_corpus)
    of_texts = [
        prepared.score_of_counts(row, **smoothing, effective_order=True)
        for row in counts.rows.tolist()
    ]
    percent = {f"precision_{n}": 100 * p for n, p in enumerate(result.precisions, start=1)}
    return SystemScores(
        {"bleu": [100 * text.score for text in of_texts]},
        prepared.settings(**of_corpus),
        corpus={
            "bleu": 100 * result.score,
            **percent,
            "brevity_penalty": result.brevity_penalty,
            "hypothesis_length": result.hypothesis_length,
            "reference_length": result.reference_length,
        },
        statistics=TextStatistics(counts.rows, lambda summed: 100 * counts.score(summed)),
    )


BLEU = Metric(
    "bleu",
    "BLEU",
    """BLEU of one system or several, from 0 to 100.

    Scores, draws and p-values are those of sacrebleu 2.6. -sl leaves out the orders for which a
    text is too short.

    Examples:

        course score bleu ref.txt -i system.txt
        course score bleu ref.txt ref2.txt -i system.txt -b -w 2
        course score bleu ref.txt -i baseline.txt system.txt --paired-bs
        course score bleu ref.txt -sl < system.txt
    """,
    _score,
    {"bleu": lambda answer, reference: sentence_bleu(answer, [reference]).score},
    digits=1,
)
