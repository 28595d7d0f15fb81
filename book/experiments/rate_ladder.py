"""Choose a learning rate: try some rates, and a further one as long as the best is at an edge."""

from collections.abc import Iterable, Mapping, Sequence


def rates_to_try(
    tried: Mapping[float, float], first: Iterable[float], ladder: Sequence[float]
) -> tuple[list[float], float | None]:
    """The rates that a choice needs, in order, and the chosen one, or None while runs are missing.

    tried: rate → its loss. first: to try at least. ladder: every rate there is, in order.

    >>> rates_to_try({0.1: 2.0}, [0.1, 0.3], [0.1, 0.3, 1.0])
    ([0.1, 0.3], None)
    >>> rates_to_try({0.1: 2.0, 0.3: 1.0}, [0.1, 0.3], [0.1, 0.3, 1.0])
    ([0.1, 0.3, 1.0], None)
    >>> rates_to_try({0.1: 2.0, 0.3: 1.0, 1.0: 3.0}, [0.1, 0.3], [0.1, 0.3, 1.0])
    ([0.1, 0.3, 1.0], 0.3)
    """
    rates = {*first, *tried}
    if rates != set(tried):
        return sorted(rates), None
    best = min(tried, key=tried.get)
    at = ladder.index(best)
    if best == min(rates) and at > 0:
        return sorted({*rates, ladder[at - 1]}), None
    if best == max(rates) and at + 1 < len(ladder):
        return sorted({*rates, ladder[at + 1]}), None
    return sorted(rates), best
