"""Was this very text in the training data? Scores of single texts, how well they tell, and secrets.

Sources: Shi et al. 2023 (arXiv 2310.16789), section 4; Carlini et al. 2019 (arXiv 1802.08232).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import score_array


@dataclass(frozen=True)
class Roc:
    """The shares called members at each threshold, from none to all, (thresholds,), rising to 1."""

    false_positives: tuple[float, ...]
    true_positives: tuple[float, ...]

    @property
    def area(self) -> float:
        """The probability that a member scores higher than another text; 0.5 is chance."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def found(self, false_positives: float) -> float:
        """The most members that can be found with at most this share of others blamed."""
        require_between(false_positives, "false_positives", 0, 1, closed=True)
        points = zip(self.false_positives, self.true_positives, strict=True)
        return max(true for false, true in points if false <= false_positives)


def min_k_score(log_probs: Sequence[float], share: float = 0.2) -> float:
    """The mean log-probability of the `share` least probable tokens, at least one, in nats."""
    values = np.sort(score_array(log_probs, "log_probs", least=1))
    if share != 1:
        require_between(share, "share", 0, 1)
    count = max(1, math.floor(share * len(values) + 1e-9))
    return float(values[:count].mean())


def roc(members: Sequence[float], others: Sequence[float]) -> Roc:
    """The ROC curve of a score; higher scores should mean members."""
    inside = score_array(members, "members", least=1)
    outside = score_array(others, "others", least=1)
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]  # from the highest
    true = (inside[None] >= thresholds[:, None]).mean(axis=1)  # (thresholds,)
    false = (outside[None] >= thresholds[:, None]).mean(axis=1)
    return Roc((0.0, *false.tolist()), (0.0, *true.tolist()))


@dataclass(frozen=True)
class Exposure:
    """The rank of an inserted secret among all candidates; equal ones rank before it."""

    rank: int
    candidates: int

    @property
    def bits(self) -> float:
        """``log2 |R| - log2 rank``: from 0 to ``log2 |R|``."""
        return math.log2(self.candidates) - math.log2(self.rank)

    @property
    def p_value(self) -> float:
        """The probability of a rank at least this good for a model that never saw the secret."""
        return self.rank / self.candidates


def exposure(scores: Sequence[float], inserted: int) -> Exposure:
    """The exposure of the inserted candidate's score: ``log2 |R| - log2 rank`` among all, R."""
    values = score_array(scores, "scores")
    if require_integer(inserted, "inserted", 0) >= len(values):
        raise ValueError(f"inserted is {inserted}, but there are {len(values)} candidates")
    return Exposure(int((values >= values[inserted]).sum()), len(values))
