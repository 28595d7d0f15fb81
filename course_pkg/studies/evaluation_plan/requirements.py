"""Requirements with thresholds, decided by intervals; and facts that an answer must have or not.

Passing every requirement needs no correction (Berger 1982). The check of facts finds wordings, not
meanings: "not within 30 days" has the fact "30 days".
"""

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import (
    require_between,
    require_choice,
    require_list,
    require_number,
    require_string,
)
from course_pkg.evaluation.statistics import Interval, mean_interval, wilson_interval

Decision = Literal["passed", "failed", "not decided"]
DIRECTIONS = ("at least", "at most")
MOST_ITEMS = 10_000


@dataclass(frozen=True)
class FactCheck:
    """What a check found: facts without any of their wordings, and forbidden statements."""

    missing: tuple[tuple[str, ...], ...]
    forbidden: tuple[str, ...]

    @property
    def has_all_facts(self) -> bool:
        """Whether each required fact is there, in one of its wordings."""
        return not self.missing


@dataclass(frozen=True)
class Assessment:
    """A requirement, the interval of the score that it is about, and the verdict."""

    requirement: "Requirement"
    interval: Interval
    verdict: Decision


@dataclass(frozen=True)
class Requirement:
    """What the mean of a score must be: "at least" or "at most" a threshold."""

    name: str
    direction: str
    threshold: float

    def __post_init__(self) -> None:
        require_string(self.name, "name")
        require_choice(self.direction, "direction", DIRECTIONS)
        require_between(self.threshold, "threshold", -math.inf, math.inf)

    def __str__(self) -> str:
        return f"{self.name}: {self.direction} {self.threshold:g}"

    def decide(self, interval: Interval) -> Decision:
        """The verdict about a score with this interval; a bound on the threshold meets it."""
        low, high, threshold = interval.low, interval.high, self.threshold
        if self.direction == "at most":
            low, high, threshold = -high, -low, -threshold
        if low >= threshold:
            return "passed"
        return "failed" if high < threshold else "not decided"

    def measure(
        self, scores: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = 0.95
    ) -> Assessment:
        """The interval of the mean score, (n,), by `mean_interval`, and the verdict."""
        interval = mean_interval(scores, groups, level)
        return Assessment(self, interval, self.decide(interval))

    def fewest_items(self, share: float) -> int | None:
        """The fewest independent items that pass with this share right; None if 10,000 do not.

        >>> right = Requirement("facts right", "at least", 0.8)
        >>> right.fewest_items(1.0), right.fewest_items(0.9), right.fewest_items(0.7)
        (16, 68, None)
        """
        if not 0 <= require_number(share, "share") <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        whole = math.floor if self.direction == "at least" else math.ceil
        for items in range(1, MOST_ITEMS + 1):
            right = whole(round(share * items, 9))
            if self.decide(wilson_interval(right, items)) == "passed":
                return items
        return None


def check_facts(
    answer: str, required: Sequence[Sequence[str]], forbidden: Sequence[str] = ()
) -> FactCheck:
    """Look for facts and for forbidden statements in an answer.

    Args:
        required: for each fact its wordings, regular expressions of which one must be found.
        forbidden: regular expressions of which none may be.
    """
    text = require_string(answer, "answer").replace("’", "'")
    missing = []
    for wordings in require_list(required, "required", "give a list of wordings for each fact"):
        if not require_list(wordings, "a fact", "give a list of its wordings"):
            raise ValueError("a fact has no wording, so that no answer could have it: add one")
        if not any(_found(wording, text) for wording in wordings):
            missing.append(tuple(wordings))
    require_list(forbidden, "forbidden", "put the statements into [ ]")
    return FactCheck(
        tuple(missing), tuple(statement for statement in forbidden if _found(statement, text))
    )


def _found(wording: str, text: str) -> bool:
    try:
        pattern = rf"(?<!\w)(?:{require_string(wording, 'a wording')})(?!\w)"
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error as error:
        raise ValueError(f"the wording {wording!r} is no regular expression: {error}") from None
