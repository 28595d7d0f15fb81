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

    hypotheses: n texts. references: for each, a text or a list of texts. kinds: "rouge1" to
    "rouge9", "rougeL", "rougeLsum". samples, seed: of the bootstrap for the 95% intervals.
    options: those of `rouge_n`. Raises ValueError for lists of different lengths or without texts,
    an unknown kind; other errors as for `rouge_n`. Source: as above.

    >>> found = corpus_rouge(["the cat", "a dog sat"], ["the cat sat", "a dog"], ["rouge1"])
    >>> round(found["rouge1"].precision.mean, 4), round(found["rouge1"].per_text[1].precision, 4)
    (0.8333, 0.6667)
    """
    require_list(hypotheses, "hypotheses", "give a list of texts")
    require_list(references, "references", "give one text, or one list of texts, per hypothesis")
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise ValueError(
            f"got {len(hypotheses)} hypotheses and {len(references)} references: give one text, "
            "or one list of texts, for each of at least one hypothesis"
        )
    scored = {}
    for kind in kinds:
        score = KINDS[require_choice(kind, "kind", KINDS)]
        pairs = zip(hypotheses, references, strict=True)
        scored[kind] = tuple(score(text, group, **options) for text, group in pairs)
    found = {}
    for kind, scores in scored.items():
        rows = np.array([(each.precision, each.recall, each.fmeasure) for each in scores])
        found[kind] = CorpusRouge(*mean_intervals(rows, samples=samples, seed=seed), scores)
    return found
