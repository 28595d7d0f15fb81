"""The mean win rate from plain numbers, because a browser's Python has no numpy."""

from collections.abc import Sequence


def win_rates(scores: Sequence[Sequence[float]]) -> list[float]:
    """The share of other models that each beats, averaged over tasks; a tie counts half.

    >>> win_rates([[0.9, 30.0], [0.8, 40.0], [0.7, 20.0]])
    [0.75, 0.75, 0.0]
    """
    models, tasks = len(scores), len(scores[0])
    rates = []
    for own in scores:
        beaten = -tasks / 2  # against itself, a model ties everywhere
        for other in scores:
            beaten += sum((a > b) + (a == b) / 2 for a, b in zip(own, other, strict=True))
        rates.append(beaten / tasks / (models - 1))
    return rates
