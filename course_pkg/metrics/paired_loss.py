"""How much a model's loss changes, with an interval: both models score the same texts::

    change = Σ (a_i − b_i) / Σ n_i        a_i, b_i: losses of text i, summed over its n_i tokens

Texts are the units that vary, because tokens of one text are not independent; and each text is
compared with itself, so that hard and easy texts do not widen the interval. With r_i = a_i − b_i −
change · n_i, the standard error of the quotient is sqrt(Σ r_i² · m / (m − 1)) / Σ n_i for m texts.

Source: Cochran 1977, "Sampling Techniques", section 6.4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

QUANTILE = 1.96  # of the standard normal, for an interval of 95 %


@dataclass(frozen=True)
class LossChange:
    """The change in nats per token, half the width of its 95 % interval, and how many texts."""

    nats: float
    margin: float
    texts: int

    @property
    def low(self) -> float:
        return self.nats - self.margin

    @property
    def high(self) -> float:
        return self.nats + self.margin

    def __str__(self) -> str:
        return f"{self.nats:+.3f} ± {self.margin:.3f}"


def loss_change(
    losses: Sequence[float], baseline: Sequence[float], tokens: Sequence[int]
) -> LossChange:
    """The change from the baseline's losses, of each text in nats, summed over its tokens."""
    if not len(losses) == len(baseline) == len(tokens):
        raise ValueError(
            f"{len(losses)} losses, {len(baseline)} of the baseline, {len(tokens)} numbers of "
            "tokens: give one of each for every text"
        )
    if len(losses) < 2:
        raise ValueError(f"{len(losses)} texts: an interval needs two or more")
    if not all(count >= 1 for count in tokens):
        raise ValueError("a text has no token, so it has no loss: leave it out")
    changes = [a - b for a, b in zip(losses, baseline, strict=True)]
    if not all(math.isfinite(change) for change in changes):
        raise ValueError("a loss is NaN or infinite: look at the text that has it")
    total = sum(tokens)
    change = math.fsum(changes) / total
    rest = [r - change * n for r, n in zip(changes, tokens, strict=True)]
    variance = math.fsum(r * r for r in rest) * len(rest) / (len(rest) - 1)
    return LossChange(change, QUANTILE * math.sqrt(variance) / total, len(rest))
