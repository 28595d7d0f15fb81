"""ROUGE of many texts: the mean of their scores, with an interval.

Unlike BLEU, ROUGE has no counts that are summed over a corpus: a system's ROUGE is the mean over
its texts. Sources: Lin 2004, section 2; rouge-score 0.1.2, BootstrapAggregator. Chapter:
metrics/rouge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.metrics.rouge.counts import RougeScore
from course_pkg.metrics.rouge.score import rouge_l, rouge_lsum, rouge_n
from course_pkg.metrics.significance import MeanInterval, mean_intervals

KINDS: dict[str, Callable[..., RougeScore]] = {
    **{
        f"rouge{n}": lambda *texts, n=n, **options: rouge_n(*texts, n, **options)
        for n in range(1, 10)
    },
    "rougeL": rouge_l,
    "rougeLsum": rouge_lsum,
}  # named as in rouge-score
USUAL = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclass(frozen=True)
class CorpusRouge:
    """A system's ROUGE of one kind: the means over its texts, and the score of each text."""

    precision: MeanInterval
    recall: MeanInterval
    fmeasure: MeanInterval
    per_text: tuple[RougeScore, ...]


def text_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    kinds: Sequence[str] = USUAL,
    **options,
) -> dict[str, tuple[RougeScore, ...]]:
    """Compute ROUGE of each text, of several kinds. Arguments and errors as for `corpus_rouge`."""
    require_list(hypotheses, "hypotheses", "give a list of texts")
    require_list(references, "references", "give one text, or one list of texts, per hypothesis")
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise ValueError(
            f"got {len(hypotheses)} hypotheses and {len(references)} references: give one text, "
            "or one list of texts, for each of at least one hypothesis"
        )
    by_kind = {}
    for kind in kinds:
        score = KINDS[require_choice(kind, "kind", KINDS)]
        pairs = zip(hypotheses, references, strict=True)
        by_kind[kind] = tuple(score(text, group, **options) for text, group in pairs)
    return by_kind


def corpus_rouge(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    kinds: Sequence[str] = USUAL,
    *,
    samples: int = 1000,
    seed: int = 0,
    **options,
) -> dict[str, CorpusRouge]:
    """Compute ROUGE of a system's texts, of several kinds.

    Args:
        hypotheses: n texts.
        references: for each, a text or a list of texts.
        kinds: "rouge1" to "rouge9", "rougeL", "rougeLsum".
        samples, seed: of the bootstrap for the 95% intervals.
        options: those of `rouge_n`.

    Raises:
        ValueError: lists of different lengths or without texts, or an unknown kind; others as for
            `rouge_n`.

    Example:

        >>> by_kind = corpus_rouge(["the cat", "a dog sat"], ["the cat sat", "a dog"], ["rouge1"])
        >>> rouge1 = by_kind["rouge1"]
        >>> round(rouge1.precision.mean, 4), round(rouge1.per_text[1].precision, 4)
        (0.8333, 0.6667)
    """
    corpus = {}
    for kind, scores in text_scores(hypotheses, references, kinds, **options).items():
        rows = np.array([(score.precision, score.recall, score.fmeasure) for score in scores])
        corpus[kind] = CorpusRouge(*mean_intervals(rows, samples=samples, seed=seed), scores)
    return corpus
