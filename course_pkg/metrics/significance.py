"""Is one system better than another, or was the test set kind to it? Paired bootstrap for BLEU.

A test set is a sample. Draw from it, with replacement, as many sentences as it has; score both
systems on the same drawn sentences; do that a thousand times. What share of these imagined
test sets has the same winner? BLEU of a drawn set comes from the sum of its sentences' counts,
so no text is looked at twice.

Sources: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", on paired
bootstrap resampling; Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and
Significance Testing for MT", figure 2, for the p-value. Chapter: metrics/bleu.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_pkg.metrics.bleu.score import BleuScore, PreparedReferences, bleu_from_counts


@dataclass(frozen=True)
class PairedBootstrap:
    """How two systems compare on one test set, and on test sets drawn from it.

    baseline, system: BLEU on the test set itself, in [0, 1]. difference: system - baseline.
    wins: the share of drawn sets on which the system scores higher than the baseline.
    interval: what the middle 95% of the differences lie between.
    p_value: chance of a difference like this one or larger if there were none; see the function.
    scores: (samples, 2), BLEU of baseline and system on each drawn set.
    Source: Koehn 2004, paired bootstrap resampling.

    >>> drawn = np.array([[0.25, 0.5], [0.5, 0.25]])
    >>> PairedBootstrap(0.25, 0.5, 0.25, 0.5, (-0.25, 0.25), 0.7, drawn).difference
    0.25
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

    baseline, system: one text each per list of references. references: as for `corpus_bleu`, or
    prepared ones, which carry the tokenizer. samples: sets to draw. seed: of the drawing.
    smoothing: keywords of `bleu_from_counts`. The p-value is the share of drawn sets, the given
    one among them, whose absolute difference exceeds the mean of these by the observed one or
    more; sacrebleu's, but for ties, which it leaves out, so that a system differs from itself.
    For clear differences it is near 1 - wins, so count it as one-sided.
    Takes time samples * sentences. Errors as for `PreparedReferences`; ValueError for samples < 1.
    Source: Koehn 2004; Riezler and Maxwell 2005, figure 2.

    >>> references = [["the cat sat on the mat"], ["it rained all day"], ["she sang to us"]] * 9
    >>> better = ["the cat sat on a mat", "it rained all day", "she sang for us"] * 9
    >>> worse = ["the cat is on a mat", "it rains all day", "she sang to us"] * 9
    >>> result = paired_bootstrap(worse, better, references)
    >>> result.difference > 0, 0.5 < result.wins < 1
    (True, True)
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be an integer of at least 1 (1000 is usual): {samples!r}")
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
    own = [bleu(summed).score for summed in counts.sum(axis=1)]
    differences = scores[:, 1] - scores[:, 0]
    excess = np.abs(differences) - np.abs(differences).mean()
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return PairedBootstrap(
        baseline=own[0],
        system=own[1],
        difference=own[1] - own[0],
        wins=float(np.mean(differences > 0)),
        interval=(low, high),
        p_value=(1 + int(np.sum(excess >= abs(own[1] - own[0])))) / (samples + 1),
        scores=scores,
    )
