"""How an interval is written in a sentence or a cell, the same on every page.

Chapter: evaluation/likelihood-and-generation.
"""

from course_pkg.evaluation.statistics import Interval


def percent(interval: Interval) -> str:
    """A share with its interval, in percent.

    >>> percent(Interval(0.651, 0.6, 0.702, 0.95))
    '65% [60, 70]'
    """
    estimate, low, high = (100 * each for each in (interval.estimate, interval.low, interval.high))
    return f"{estimate:.0f}% [{low:.0f}, {high:.0f}]"


def points(interval: Interval) -> str:
    """A difference of shares with its interval, in percentage points, always with a sign.

    >>> points(Interval(0.126, 0.06, 0.2, 0.95))
    '+13 [+6, +20]'
    """
    estimate, low, high = (100 * each for each in (interval.estimate, interval.low, interval.high))
    return f"{estimate:+.0f} [{low:+.0f}, {high:+.0f}]"


def verdict(interval: Interval) -> str:
    """What an interval of a difference says: "higher", "lower" or "not clearly different".

    >>> verdict(Interval(0.1, -0.02, 0.22, 0.95))
    'not clearly different'
    """
    if interval.low > 0:
        return "higher"
    return "lower" if interval.high < 0 else "not clearly different"
