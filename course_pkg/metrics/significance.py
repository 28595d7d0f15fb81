"""Scores of a sample of texts: intervals, and whether one system is really better than another.

Scores come from statistics that add up over texts, so each text is scored only once. Draws are
those of sacrebleu 2.6 for the same seed. Sources: Koehn 2004; Riezler and Maxwell 2005, figures 1
and 2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_pkg.common.arguments import require_integer

SEED = 12345  # sacrebleu's
TIE = 1e-12  # sums of the same floats in another order differ by less


@dataclass(frozen=True)
class TextStatistics:
    """Rows (texts, k) that add up over texts, and the score of a set from their sum (k,)."""

    rows: np.ndarray
    score: Callable[[np.ndarray], float]

    @classmethod
    def of_scores(cls, scores: Sequence[float]) -> "TextStatistics":
        """Statistics of a metric whose score of a system is the mean over its texts."""
        rows = np.array(scores, dtype=float)[:, None]
        return cls(rows, lambda summed: float(summed[0]) / len(rows))

    @property
    def total(self) -> float:
        return self.score(self.rows.sum(axis=0))


@dataclass(frozen=True)
class MeanInterval:
    """A mean, and the range of the middle 95% of drawn samples' means; None if none is drawn."""

    mean: float
    low: float | None = None
    high: float | None = None


def mean_intervals(scores: np.ndarray, *, samples: int = 1000, seed: int = 0) -> list[MeanInterval]:
    """The mean of each column of (n, columns), with a bootstrap interval over the rows (texts)."""
    require_integer(samples, "samples")
    if np.ndim(scores) != 2 or not len(scores):
        raise ValueError(f"scores must be (n, columns) with n >= 1, got {np.shape(scores)}")
    means = np.stack([scores[rows].mean(axis=0) for rows in _draws(len(scores), samples, seed)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0).tolist()
    return list(map(MeanInterval, np.mean(scores, axis=0).tolist(), low, high))


def bootstrap(system: TextStatistics, *, samples: int = 1000, seed: int = 0) -> np.ndarray:
    """Scores of a system on sets drawn from its texts, (samples,)."""
    require_integer(samples, "samples")
    draws = _draws(len(system.rows), samples, seed)
    return np.array([system.score(system.rows[texts].sum(axis=0)) for texts in draws])


@dataclass(frozen=True)
class PairedBootstrap:
    """How two systems compare on one test set, and on test sets drawn from it.

    Attributes:
        wins: the share of drawn sets on which the system scores higher than the baseline.
        interval: the range of the middle 95% of the differences.
        p_value: of a difference at least this large between equally good systems.
        scores: (samples, 2), of baseline and system on each drawn set.
    """

    baseline: float
    system: float
    difference: float
    wins: float
    interval: tuple[float, float]
    p_value: float
    scores: np.ndarray = field(repr=False, compare=False)


def paired_bootstrap(
    baseline: TextStatistics, system: TextStatistics, *, samples: int = 1000, seed: int = 0
) -> PairedBootstrap:
    """Compare two systems on the same texts, by resampling the texts (Koehn 2004).

    The p-value is sacrebleu's: subtract from the absolute differences of the drawn sets their mean;
    count the sets whose result is at least the observed absolute difference, and the test set
    itself. (sacrebleu leaves out ties.) It is close to 1 - wins, so read it as one-sided.
    """
    _require_pair(baseline, system, samples)
    scores = np.array(
        [
            [side.score(side.rows[texts].sum(axis=0)) for side in (baseline, system)]
            for texts in _draws(len(system.rows), samples, seed)
        ]
    )
    differences = scores[:, 1] - scores[:, 0]
    excess = np.abs(differences) - np.abs(differences).mean()
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    before = baseline.total
    after = system.total
    return PairedBootstrap(
        baseline=before,
        system=after,
        difference=after - before,
        wins=float(np.mean(differences > 0)),
        interval=(low, high),
        p_value=(1 + int(np.sum(excess >= abs(after - before)))) / (samples + 1),
        scores=scores,
    )


@dataclass(frozen=True)
class PairedRandomization:
    """How two systems compare. p_value: of such a difference if it didn't matter who wrote what."""

    baseline: float
    system: float
    p_value: float


def paired_randomization(
    baseline: TextStatistics, system: TextStatistics, *, samples: int = 10_000, seed: int = 0
) -> PairedRandomization:
    """Test the difference of two systems by approximate randomization.

    For each sample, every text's two versions are exchanged with probability 1/2, and both sides
    are scored. The p-value is the share of samples that differ at least as much as the systems do,
    which count as one. Source: Riezler and Maxwell 2005, figure 1.
    """
    _require_pair(baseline, system, samples)
    before = baseline.total
    after = system.total
    both = (baseline.rows + system.rows).sum(axis=0)
    least = abs(before - after) - TIE
    generator = np.random.default_rng(seed)
    at_once = 32  # samples; a multiple of 32, so that the bits are those of a single call
    extreme = 0
    for start in range(0, samples, at_once):
        size = (min(at_once, samples - start), len(system.rows))
        kept = generator.integers(2, size=size, dtype=bool)  # (samples, texts)
        mixed = kept @ baseline.rows + ~kept @ system.rows
        for left, right in zip(mixed, both - mixed, strict=True):
            extreme += abs(baseline.score(left) - system.score(right)) >= least
    return PairedRandomization(before, after, (1 + extreme) / (samples + 1))


def _draws(items: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """For each sample, as many numbers of items as there are, drawn with replacement."""
    generator = np.random.default_rng(seed)
    return (generator.choice(items, items) for _ in range(samples))


def _require_pair(baseline: TextStatistics, system: TextStatistics, samples: int) -> None:
    require_integer(samples, "samples")
    if len(baseline.rows) != len(system.rows):
        raise ValueError(
            f"the baseline has {len(baseline.rows)} texts, the system {len(system.rows)}: compare "
            "them on the same texts"
        )
