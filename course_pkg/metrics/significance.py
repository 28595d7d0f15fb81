"""Scores of a sample of texts: intervals, and whether one system is really better than another.

A test set is a sample. Draw from it, with replacement, as many sentences as it has, score both
systems on them, and repeat that a thousand times: how often does the same system win? BLEU of a
drawn set is the BLEU of its sentences' summed counts, so each text is counted only once. The other
test, approximate randomization, exchanges the two systems' texts at random, sentence by sentence.

Draws are those of sacrebleu 2.6 for the same seed; its default is SEED.

Sources: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", on paired
bootstrap resampling; Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and
Significance Testing for MT", figures 1 and 2, for both tests. Chapter: metrics/bleu-comparing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_pkg.common.arguments import require_integer
from course_pkg.metrics.bleu.score import PreparedReferences, bleu_from_counts

SEED = 12345  # sacrebleu's
References = PreparedReferences | Sequence[Sequence[str]]


@dataclass(frozen=True)
class MeanInterval:
    """The mean of n scores, and the range of the middle 95% of the means of drawn samples."""

    mean: float
    low: float
    high: float


def mean_intervals(scores: np.ndarray, *, samples: int = 1000, seed: int = 0) -> list[MeanInterval]:
    """The mean of each column, with a bootstrap interval, as Google's rouge-score aggregates.

    scores: (n, columns), a row for each text; all columns are drawn together. rouge-score's "mid"
    is the median of the drawn means; here it is the mean itself. Raises ValueError unless scores
    has two axes and at least one row, or for samples < 1.

    >>> [interval] = mean_intervals(np.array([[0.2], [0.4], [0.9]]))
    >>> round(interval.mean, 2), interval.low < 0.5 < interval.high
    (0.5, True)
    """
    require_integer(samples, "samples")
    if np.ndim(scores) != 2 or not len(scores):
        raise ValueError(f"scores must be (n, columns) with n >= 1, got {np.shape(scores)}")
    means = np.stack([scores[rows].mean(axis=0) for rows in _draws(len(scores), samples, seed)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0).tolist()
    return list(map(MeanInterval, np.mean(scores, axis=0).tolist(), low, high))


def mean_and_margin(scores: np.ndarray) -> tuple[float, float]:
    """The mean of drawn sets' scores, and half the range of the middle 95%: sacrebleu's μ ±.

    >>> mean_and_margin(np.arange(100.0))
    (49.5, 47.5)
    """
    ordered = np.sort(scores)
    cut = len(ordered) // 40
    return float(ordered.mean()), float(ordered[-cut - 1] - ordered[cut]) / 2


def bootstrap(
    hypotheses: Sequence[str],
    references: References,
    *,
    samples: int = 1000,
    seed: int = 0,
    **smoothing,
) -> np.ndarray:
    """BLEU of one system on sets drawn from its sentences, (samples,), each in [0, 1].

    Arguments and errors as for `paired_bootstrap`.

    >>> texts = ["the cat sat on the mat", "it rained all day"]
    >>> bootstrap(texts, [[text] for text in texts], samples=3).tolist()
    [1.0, 1.0, 1.0]
    """
    require_integer(samples, "samples")
    references, [counts] = _counts(references, hypotheses)
    draws = _draws(len(counts), samples, seed)
    return np.array([_bleu(counts[rows].sum(axis=0), references, smoothing) for rows in draws])


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
    references: References,
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
    references, counts = _counts(references, baseline, system)
    scores = np.array(
        [
            [_bleu(summed, references, smoothing) for summed in counts[:, rows].sum(axis=1)]
            for rows in _draws(counts.shape[1], samples, seed)
        ]
    )
    observed = [_bleu(summed, references, smoothing) for summed in counts.sum(axis=1)]
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


@dataclass(frozen=True)
class PairedRandomization:
    """How two systems compare on one test set: BLEU of each in [0, 1], and the p-value.

    p_value: the probability of a difference at least this large, in either direction, if it did
    not matter which system wrote which text.
    """

    baseline: float
    system: float
    p_value: float


def paired_randomization(
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    samples: int = 10_000,
    seed: int = 0,
    **smoothing,
) -> PairedRandomization:
    """Test a difference in BLEU by approximate randomization.

    For each sample, every sentence's two texts are exchanged with probability 1/2, and both sides
    are scored. The p-value is the share of samples that differ at least as much as the systems do;
    the systems themselves count as one. (sacrebleu leaves out ties, as in its bootstrap.)
    Arguments and errors as for `paired_bootstrap`.
    Source: Riezler and Maxwell 2005, figure 1.

    >>> references = [["the cat sat on the mat"], ["it rained all day"], ["she sang to us"]] * 9
    >>> texts = [text for [text] in references]
    >>> paired_randomization(texts, texts, references, samples=20).p_value
    1.0
    """
    require_integer(samples, "samples")
    references, counts = _counts(references, baseline, system)
    one, other = (_bleu(summed, references, smoothing) for summed in counts.sum(axis=1))
    generator = np.random.default_rng(seed)
    rows = 32  # at a time: a multiple of 32, so that the bits are those of a single call
    extreme = 0
    for start in range(0, samples, rows):
        size = (min(rows, samples - start), counts.shape[1])
        kept = generator.integers(2, size=size, dtype=bool)  # (rows, sentences)
        mixed = kept @ counts[0] + ~kept @ counts[1]
        for left, right in zip(mixed, counts.sum(axis=(0, 1)) - mixed, strict=True):
            scores = [_bleu(summed, references, smoothing) for summed in (left, right)]
            extreme += abs(scores[0] - scores[1]) >= abs(one - other)
    return PairedRandomization(one, other, (1 + extreme) / (samples + 1))


def _draws(items: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """For each sample, as many numbers of items as there are, drawn with replacement."""
    generator = np.random.default_rng(seed)
    return (generator.choice(items, items) for _ in range(samples))


def _counts(
    references: References, *systems: Sequence[str]
) -> tuple[PreparedReferences, np.ndarray]:
    """The references, prepared, and the counts (systems, sentences, 2 + 2 * max_order)."""
    if not isinstance(references, PreparedReferences):
        references = PreparedReferences(references)
    counts = [np.array(references.counts(texts), dtype=np.int64) for texts in systems]
    return references, np.stack(counts)


def _bleu(summed: np.ndarray, references: PreparedReferences, smoothing: dict) -> float:
    c, r, *rest = summed.tolist()
    order = references.max_order
    return bleu_from_counts(rest[:order], rest[order:], c, r, **smoothing).score
