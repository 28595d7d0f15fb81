"""How an interval is written in a sentence or a cell, the same on every page.

Chapter: evaluation/likelihood-and-generation.
"""

from course_pkg.evaluation.statistics import Interval


def percent(interval: Interval, digits: int = 0) -> str:
    """A share with its interval, in percent; the bounds are cut where no share can be.

    digits: after the point.

    >>> percent(Interval(0.651, 0.6, 0.702, 0.95)), percent(Interval(0.98, 0.95, 1.02, 0.95), 1)
    ('65% [60, 70]', '98.0% [95.0, 100.0]')
    """
    low = max(0.0, interval.low)
    high = min(1.0, interval.high)
    estimate, low, high = (f"{100 * each:.{digits}f}" for each in (interval.estimate, low, high))
    return f"{estimate}% [{low}, {high}]"


def points(interval: Interval, digits: int = 0) -> str:
    """A difference of shares with its interval, in percentage points, always with a sign.

    Cut at -100 and 100. digits: after the point.

    >>> points(Interval(0.126, 0.06, 0.2, 0.95))
    '+13 [+6, +20]'
    """
    low = max(-1.0, interval.low)
    high = min(1.0, interval.high)
    estimate, low, high = (f"{100 * each:+.{digits}f}" for each in (interval.estimate, low, high))
    return f"{estimate} [{low}, {high}]"


def verdict(interval: Interval) -> str:
    """What an interval of a difference says: "higher", "lower" or "not clearly different".

    >>> verdict(Interval(0.1, -0.02, 0.22, 0.95))
    'not clearly different'
    """
    if interval.low > 0:
        return "higher"
    return "lower" if interval.high < 0 else "not clearly different"
