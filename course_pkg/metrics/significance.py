"""Paired bootstrap for BLEU: is one system really better, or is the difference due to chance?

A test set is a sample. Draw from it, with replacement, as many sentences as it has, score both
systems on them, and repeat that a thousand times: how often does the same system win? BLEU of a
drawn set is the BLEU of its sentences' summed counts, so each text is counted only once.

Sources: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", on paired
bootstrap resampling; Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and
Significance Testing for MT", figure 2, for the p-value. Chapter: metrics/bleu-comparing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_pkg.arguments import require_integer
from course_pkg.metrics.bleu.score import BleuScore, PreparedReferences, bleu_from_counts


@dataclass(frozen=True)
class PairedBootstrap:
    """How two systems compare on one test set, and on test sets drawn from it.

    baseline, system: BLEU on the test set itself, in [0, 1]. difference: system - baseline.
    wins: the share of drawn sets on which the system scores higher than the baseline.
    interval: the range of the middle 95% of the differences.
    p_value: the probability of a difference at least this large if the systems were equally good.
    scores: (samples, 2), BLEU of baseline and system on each drawn set.
    """

    baseline: float
    system: float
    difference: float
    wins: float
    interval: tuple[float, float]
    p_value: float
    scores: np.ndarray = field(repr=False, compare=False)


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: PreparedReferences | Sequence[Sequence[str]],
    *,
    samples: int = 1000,
    seed: int = 0,
    **smoothing,
) -> PairedBootstrap:
    """Compare two systems' BLEU on the same sentences, by resampling the sentences.

    baseline, system: one text per list of references. references: as for `corpus_bleu`, or
    prepared references, which already have a tokenizer. samples: how many sets to draw. smoothing:
    keywords of `bleu_from_counts`.
    The p-value is computed as in sacrebleu: subtract from the absolute differences of the drawn
    sets their mean; count the sets whose result is at least the observed absolute difference, and
    the test set itself. (sacrebleu leaves out ties, so there a system differs from itself.) For
    clear differences it is close to 1 - wins, so interpret it as one-sided.
    Errors as for `PreparedReferences`; ValueError for samples < 1.
    Source: Koehn 2004; Riezler and Maxwell 2005, figure 2.

    >>> references = [["the cat sat on the mat"], ["it rained all day"], ["she sang to us"]] * 9
    >>> better = ["the cat sat on a mat", "it rained all day", "she sang for us"] * 9
    >>> worse = ["the cat is on a mat", "it rains all day", "she sang to us"] * 9
    >>> 0.5 < paired_bootstrap(worse, better, references).wins < 1
    True
    """
    require_integer(samples, "samples")
    if not isinstance(references, PreparedReferences):
        references = PreparedReferences(references)
    counts = np.stack(  # (2, sentences, 2 + 2 * max_order)
        [np.array(references.counts(texts), dtype=np.int64) for texts in (baseline, system)]
    )
    size = counts.shape[1]

    def bleu(summed: np.ndarray) -> BleuScore:
        c, r, *rest = summed.tolist()
        order = references.max_order
        return bleu_from_counts(rest[:order], rest[order:], c, r, **smoothing)

    generator = np.random.default_rng(seed)
    scores = np.empty((samples, 2))
    for row in scores:
        drawn = counts[:, generator.choice(size, size)].sum(axis=1)
        row[:] = [bleu(summed).score for summed in drawn]
    observed = [bleu(summed).score for summed in counts.sum(axis=1)]
    differences = scores[:, 1] - scores[:, 0]
    excess = np.abs(differences) - np.abs(differences).mean()
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return PairedBootstrap(
        baseline=observed[0],
        system=observed[1],
        difference=observed[1] - observed[0],
        wins=float(np.mean(differences > 0)),
        interval=(low, high),
        p_value=(1 + int(np.sum(excess >= abs(observed[1] - observed[0])))) / (samples + 1),
        scores=scores,
    )
