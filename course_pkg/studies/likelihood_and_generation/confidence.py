"""Does a confidence of 0.8 mean that 80% of such answers are right? And one number that helps::

    ECE = Σ_b n_b / n · |accuracy_b - confidence_b|            p = softmax(scores / T)

An ECE is too large, most of all with few items. In trials with 50 to 1000 answers in 10 bins, 88 to
100% of `ece_interval`'s 95% intervals covered the truth; of the percentile bootstrap's, 0% to 94%.
Sources: Guo et al. 2017, sections 2 and 4.2; Nguyen and O'Connor 2015 (bins of equal mass); Brier
1950, "Verification of Forecasts Expressed in Terms of Probability"; Bröcker and Smith 2007;
Carpenter 1999 (test inversion).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_choice, require_integer
from course_pkg.evaluation.statistics import Interval, score_array

BINNINGS = ("width", "mass")


@dataclass(frozen=True)
class ReliabilityBin:
    """The answers of similar confidence.

    Attributes:
        low, high: edges, low < confidence <= high; with equal mass the smallest and largest in it.
        confidence: their mean, None if the bin is empty.
    """

    low: float | None
    high: float | None
    count: int
    correct: int
    confidence: float | None

    @property
    def accuracy(self) -> float | None:
        """The share of right answers; None if the bin is empty."""
        return self.correct / self.count if self.count else None

    @property
    def gap(self) -> float:
        """Accuracy - confidence: negative if the model is too sure of itself; 0 if empty."""
        return self.accuracy - self.confidence if self.count else 0.0


@dataclass(frozen=True)
class ReliabilityDiagram:
    """All bins, by rising confidence, with what follows from them."""

    bins: tuple[ReliabilityBin, ...]

    @property
    def count(self) -> int:
        """All answers."""
        return sum(one.count for one in self.bins)

    @property
    def expected_calibration_error(self) -> float:
        """``Σ_b n_b / n · |gap_b|``; empty bins add 0."""
        return sum(one.count * abs(one.gap) for one in self.bins) / self.count


def reliability_diagram(
    confidences: Sequence[float], correct: Sequence[bool], bins: int = 10, binning: str = "width"
) -> ReliabilityDiagram:
    """Sort answers by confidence into bins.

    Args:
        confidences: (n,), each in [0, 1], the probability of the answer that was chosen.
        correct: (n,), True or 1 if it is right.
        binning: "width", edges at 1/bins, 2/bins, …, which belong to the lower bin; "mass", bins
            with equally many answers, where equal confidences stay together.
    """
    values, right = checked_answers(confidences, correct)
    place = bin_numbers(values, bins, binning)
    counts = np.bincount(place, minlength=bins).tolist()
    hits = np.bincount(place, right, bins).tolist()
    sums = np.bincount(place, values, bins).tolist()
    filled = []
    for number in range(bins):
        inside = values[place == number]
        low = number / bins
        high = (number + 1) / bins
        if binning == "mass":
            low = float(inside.min()) if len(inside) else None
            high = float(inside.max()) if len(inside) else None
        count = counts[number]
        mean = sums[number] / count if count else None
        filled.append(ReliabilityBin(low, high, count, round(hits[number]), mean))
    return ReliabilityDiagram(tuple(filled))


def expected_calibration_error(
    confidences: Sequence[float], correct: Sequence[bool], bins: int = 10, binning: str = "width"
) -> float:
    """ECE, in [0, 1]: ``Σ_b n_b / n · |accuracy_b - confidence_b|``."""
    values, right = checked_answers(confidences, correct)
    gaps = np.bincount(bin_numbers(values, bins, binning), right - values, bins)
    return float(np.abs(gaps).sum()) / len(values)


def bin_numbers(confidences: np.ndarray, bins: int, binning: str) -> np.ndarray:
    """The bin, 0 to bins - 1, of each confidence, (n,), as `reliability_diagram` states.

    >>> bin_numbers(np.array([0.0, 0.1, 0.11, 1.0]), 10, "width")
    array([0, 0, 1, 9])
    """
    require_integer(bins, "bins")
    if require_choice(binning, "binning", BINNINGS) == "width":
        edges = np.arange(1, bins) / bins  # without 0 and 1
        return np.searchsorted(edges, confidences)
    rank = np.searchsorted(np.sort(confidences), confidences)  # how many are smaller
    return rank * bins // len(confidences)


def brier_multiclass(probabilities: np.ndarray, answers: Sequence[int]) -> float:
    """Brier's score over all options, in [0, 2]: the mean of Σ_k (p_k - [k is the answer])².

    >>> brier_multiclass(np.array([[0.8, 0.2], [0.0, 1.0]]), [0, 0])  # 0.04 + 0.04, 1 + 1
    1.04
    """
    p = np.asarray(probabilities, float)
    right = checked_options(p, answers, "probabilities")
    if not (np.all((p >= 0) & (p <= 1)) and np.allclose(p.sum(axis=1), 1, atol=1e-6)):
        raise ValueError("probabilities must be in [0, 1], with rows of sum 1: apply a softmax")
    target = np.zeros_like(p)
    target[np.arange(len(p)), right] = 1.0
    return float(np.square(p - target).sum(axis=1).mean())


def brier_binary(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Brier's score of one probability, in [0, 1]: the mean of (confidence - [it is right])²."""
    values, right = checked_answers(confidences, correct)
    return float(np.square(values - right).mean())


def checked_answers(
    confidences: Sequence[float], correct: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and 0 or 1 for each answer as arrays, (n,) and (n,); ValueError if invalid."""
    values = score_array(confidences, "confidences", least=1)
    right = score_array(correct, "correct", least=1)
    if len(values) != len(right):
        raise ValueError(f"{len(values)} confidences, {len(right)} answers: give one of each")
    outside = np.flatnonzero((values < 0) | (values > 1))
    if len(outside):
        place = int(outside[0])
        raise ValueError(f"confidences[{place}] is {values[place]}; give probabilities in [0, 1]")
    if not np.all((right == 0) | (right == 1)):
        raise ValueError("correct must hold True or False (1 or 0) for each answer")
    return values, right


def checked_options(values: np.ndarray, answers: Sequence[int], name: str) -> np.ndarray:
    """The right options as an array, (items,), if they fit the values, (items, options)."""
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{name} has shape {values.shape}; give (items, options)")
    if np.isnan(values).any():
        raise ValueError(f"{name} has NaN: look at the item that has it")
    right = np.asarray(answers)
    if right.shape != (len(values),) or not np.issubdtype(right.dtype, np.integer):
        raise ValueError(f"answers must be {len(values)} integers, one per item")
    if not np.all((right >= 0) & (right < values.shape[1])):
        raise ValueError(f"answers must be from 0 to {values.shape[1] - 1}, the options' numbers")
    return right


def option_log_probabilities(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(scores / temperature), (items, options); -inf: an option that an item lacks."""
    return _log_softmax(_checked_scores(scores), 1 / _positive(temperature))


def fit_temperature(scores: np.ndarray, answers: Sequence[int]) -> float:
    """The temperature with the smallest log loss on these items.

    In β = 1/T the log loss is convex, and its slope, the mean of E_p[score] - score of the answer,
    rises: the minimum is where it crosses 0.

    Args:
        scores: as for `option_log_probabilities`.
        answers: (items,), the number of the right option.
    """
    from scipy.optimize import brentq

    values = _checked_scores(scores)
    right = checked_options(values, answers, "scores")
    chosen = values[np.arange(len(values)), right]
    if not np.isfinite(chosen).all():
        raise ValueError("a right answer has the score -inf: no temperature makes it possible")
    if np.all(chosen == values.max(axis=1)):
        raise ValueError(
            "every right answer has the highest score, so log loss falls as T goes to 0: fit on "
            "more items, some of which the model gets wrong"
        )
    if _slope(values, chosen, 0.0) >= 0:
        raise ValueError(
            "right answers score no higher than the average option, so log loss falls as T goes to "
            "infinity: the scores say nothing about the answers"
        )
    high = 1.0
    while _slope(values, chosen, high) < 0:
        high *= 2
    return 1 / brentq(lambda beta: _slope(values, chosen, beta), 0.0, high, xtol=1e-16)


def _slope(scores: np.ndarray, chosen: np.ndarray, beta: float) -> float:
    """d(log loss)/dβ: the mean of the expected score minus the answer's."""
    finite = np.where(np.isfinite(scores), scores, 0.0)
    expected = (np.exp(_log_softmax(scores, beta)) * finite).sum(axis=1)
    return float((expected - chosen).mean())


def _log_softmax(scores: np.ndarray, beta: float) -> np.ndarray:
    scaled = np.where(np.isfinite(scores), beta * np.where(np.isfinite(scores), scores, 0), -np.inf)
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def _checked_scores(scores: np.ndarray) -> np.ndarray:
    values = np.asarray(scores, float)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"scores has shape {values.shape}; give (items, options)")
    if np.isnan(values).any() or np.any(values == np.inf):
        raise ValueError("scores has NaN or +inf: look at the item that has it")
    if not np.isfinite(values).any(axis=1).all():
        raise ValueError("an item has no option with a finite score")
    return values


def _positive(temperature: float) -> float:
    return require_between(temperature, "temperature", 0, float("inf"))


STEPS = 12  # of a bisection for each bound: far below the noise of the draws
LARGEST_FACTOR = 64.0  # of the observed gaps
TIE = 1e-12  # a drawn ECE this close to the observed one is equal to it: not exceptional


def calibrated_ece(
    confidences: Sequence[float],
    bins: int = 10,
    binning: str = "width",
    *,
    samples: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """ECE that a perfectly calibrated model with these confidences gets by chance, (samples,).

    Its mean is the bias; the share of draws at or above an ECE is a p-value for "it is calibrated".
    """
    require_integer(samples, "samples")
    values, _ = checked_answers(confidences, np.zeros(len(confidences)))
    place = bin_numbers(values, bins, binning)
    generator = np.random.default_rng(seed)
    draws = np.empty(samples)
    for row in range(samples):
        right = generator.random(len(values)) < values
        draws[row] = np.abs(np.bincount(place, right - values, bins)).sum() / len(values)
    return draws


def ece_interval(
    confidences: Sequence[float],
    correct: Sequence[bool],
    bins: int = 10,
    binning: str = "width",
    *,
    level: float = 0.95,
    samples: int = 1000,
    seed: int = 0,
) -> Interval:
    """The observed ECE, and an interval for the ECE that infinitely many such items would give.

    It keeps each factor of the observed gaps under which the observed ECE is not exceptional. If
    that is below a calibrated model's median, gaps of one standard error take the gaps' place, and
    the median that of the ECE for the upper bound (Cowan et al. 2011, arXiv 1105.3166).
    """
    require_between(level, "level", 0, 1)
    require_integer(samples, "samples")
    values, right = checked_answers(confidences, correct)
    place = bin_numbers(values, bins, binning)
    counts = np.bincount(place, minlength=bins)
    used = counts > 0
    counts = counts[used]
    means = np.bincount(place, values, bins)[used] / counts
    gaps = np.bincount(place, right - values, bins)[used] / counts
    observed = float((counts * np.abs(gaps)).sum()) / len(values)
    usual = float(np.median(calibrated_ece(values, bins, binning, samples=samples, seed=seed)))
    pattern = gaps if observed > usual else _inward_spread(means, counts)
    family = _ScaledGaps(counts, means, pattern, samples, seed)
    tail = (1 - level) / 2
    low = family.true_ece(family.crossing(1 - tail, observed - TIE))
    high = family.true_ece(family.crossing(tail, max(observed, usual) + TIE))
    return Interval(observed, low, high, level)


@dataclass(frozen=True)
class _ScaledGaps:
    """Models whose gaps in the bins, all (bins,), are a pattern times a factor."""

    counts: np.ndarray
    means: np.ndarray  # confidence
    pattern: np.ndarray
    samples: int
    seed: int

    def accuracies(self, factor: float) -> np.ndarray:
        return np.clip(self.means + factor * self.pattern, 0, 1)

    def true_ece(self, factor: float) -> float:
        gaps = np.abs(self.accuracies(factor) - self.means)
        return float((self.counts * gaps).sum() / self.counts.sum())

    def drawn_quantile(self, factor: float, share: float) -> float:
        """This quantile of the ECE of answers drawn with these accuracies."""
        generator = np.random.default_rng(self.seed)
        size = (self.samples, len(self.counts))
        hits = generator.binomial(self.counts, self.accuracies(factor), size)
        drawn = np.abs(hits - self.counts * self.means).sum(axis=1) / self.counts.sum()
        return float(np.quantile(drawn, share))

    def crossing(self, share: float, target: float) -> float:
        """The factor at which this quantile reaches the target; 0 if it is there from the start."""
        low = 0.0
        high = 1.0
        if self.drawn_quantile(low, share) >= target:
            return low
        while self.drawn_quantile(high, share) < target and high < LARGEST_FACTOR:
            high *= 2
        for _ in range(STEPS):
            middle = (low + high) / 2
            if self.drawn_quantile(middle, share) < target:
                low = middle
            else:
                high = middle
        return high


def _inward_spread(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A standard error per bin, toward 0.5; not 0 where the confidence is 0 or 1."""
    shares = (means * counts + 1) / (counts + 2)
    return np.where(means > 0.5, -1, 1) * np.sqrt(shares * (1 - shares) / counts)
