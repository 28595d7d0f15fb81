"""Was this very text in the training data? Scores of single texts, how well they tell, and secrets.

    loss     the mean log-probability of the text's tokens
    min-k%   the mean of its k% least probable tokens

A text that was seen has fewer surprising tokens. Both scores also depend on how common the text is,
so a threshold that is right for one kind of text is wrong for another. Subtracting the score under
a reference model, from before the training in question, removes most of that. How well a score
tells members from others is its ROC curve: for each threshold, the share of members that are found
(true positives) and of others that are blamed (false positives).

The *exposure* of a secret that was drawn at random, a canary, says how much better than chance a
model knows it, among all the secrets R that could have been drawn:

    exposure = log2 |R| - log2 rank              rank: of the one that was drawn, 1 is the best

If the model has never seen it, the rank is uniform, so an exposure of at least x bits has the
probability 2**-x at most: rank / |R| is an exact p-value.

Sources: Shi et al. 2023, "Detecting Pretraining Data from Large Language Models" (arXiv
2310.16789), section 4, for min-k%; Yeom et al. 2018, for the loss; Carlini et al. 2022, "Membership
Inference Attacks From First Principles", on small false-positive rates; Carlini et al. 2019, "The
Secret Sharer" (arXiv 1802.08232), on exposure. Chapter: evaluation/contamination.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import score_array


@dataclass(frozen=True)
class Roc:
    """The shares that are called members at each threshold, from none to all.

    false_positives, true_positives: (thresholds,), both rising from 0 to 1.
    """

    false_positives: tuple[float, ...]
    true_positives: tuple[float, ...]

    @property
    def area(self) -> float:
        """The area under the curve: the probability that a member scores higher than another text.

        Equal scores count half. 0.5 is chance.
        """
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def found(self, false_positives: float) -> float:
        """The most members that can be found with at most this share of others blamed.

        Raises ValueError unless the share is in [0, 1).
        """
        require_between(false_positives, "false_positives", 0, 1, closed=True)
        points = zip(self.false_positives, self.true_positives, strict=True)
        return max(true for false, true in points if false <= false_positives)


def min_k_score(log_probs: Sequence[float], share: float = 0.2) -> float:
    """The mean log-probability of the `share` least probable tokens, in nats.

    At least one token counts. share: in (0, 1]; 1 gives the mean of all tokens.
    Raises ValueError for another share, no tokens, or a value that isn't finite.
    Source: Shi et al. 2023, equation 1.

    >>> min_k_score([-1.0, -6.0, -2.0, -4.0, -0.5], share=0.4)
    -5.0
    """
    values = np.sort(score_array(log_probs, "log_probs", least=1))
    if share != 1:
        require_between(share, "share", 0, 1)
    count = max(1, math.floor(share * len(values) + 1e-9))
    return float(values[:count].mean())


def roc(members: Sequence[float], others: Sequence[float]) -> Roc:
    """The ROC curve of a score; higher scores should mean members.

    members, others: scores of texts that are in the training data, and that aren't. Equal scores
    pass a threshold together. Raises ValueError for an empty list or a score that isn't finite.

    >>> curve = roc(members=[3.0, 2.0], others=[2.5, 1.0])
    >>> curve.area, curve.found(false_positives=0.0)
    (0.75, 0.5)
    """
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
        """log2 |R| - log2 rank: from 0 to log2 |R|."""
        return math.log2(self.candidates) - math.log2(self.rank)

    @property
    def p_value(self) -> float:
        """The probability of a rank at least this good for a model that never saw the secret."""
        return self.rank / self.candidates


def exposure(scores: Sequence[float], inserted: int) -> Exposure:
    """The exposure of a secret. scores: of all candidates, higher is more probable.

    inserted: the index of the one that was drawn at random and inserted. Raises ValueError for
    fewer than two candidates, a score that isn't finite, or an index outside of them.
    Source: Carlini et al. 2019, "The Secret Sharer".

    >>> secret = exposure([-9.0, -5.0, -7.0, -6.0], inserted=2)
    >>> secret.rank, round(secret.bits, 3), secret.p_value
    (3, 0.415, 0.75)
    """
    values = score_array(scores, "scores")
    if require_integer(inserted, "inserted", 0) >= len(values):
        raise ValueError(f"inserted is {inserted}, but there are {len(values)} candidates")
    return Exposure(int((values >= values[inserted]).sum()), len(values))
