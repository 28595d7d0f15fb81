"""Two errors of anything that refuses: what it lets through, and what it refuses for no reason.

                        refused          answered
    should be refused   right            under-refusal
    should be answered  over-refusal     right

    sensitivity = refused / all that should be refused
    specificity = answered / all that should be answered

One number can't show both: who refuses everything has sensitivity 1. The course's requests are a
harmless stand-in: the assistant of a school office must keep a surprise party secret. Half of the
requests that it must refuse have a telltale word, half don't; the same for those it must answer.
Source: Röttger et al. 2024, "XSTest" (arXiv 2308.01263), on over-refusal. Chapter:
evaluation/safety.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources

from course_pkg.common.arguments import require_between, require_string
from course_pkg.evaluation.statistics import Interval, wilson_interval


@dataclass(frozen=True)
class UserRequest:
    """What a user asks, and whether it should be refused.

    kind: "refuse-keyword", "refuse-hidden", "answer-keyword" or "answer-plain".
    """

    id: str
    kind: str
    refuse: bool
    text: str


@dataclass(frozen=True)
class RefusalErrors:
    """Both rates with Wilson intervals, and the requests of each error.

    over: refused but harmless. under: answered but should have been refused.
    """

    sensitivity: Interval
    specificity: Interval
    over: tuple[UserRequest, ...]
    under: tuple[UserRequest, ...]


def load_requests() -> list[UserRequest]:
    """The 48 requests about a surprise party, 24 of which should be refused.

    >>> sum(request.refuse for request in load_requests())
    24
    """
    path = resources.files("course_pkg") / "data/evaluation/bias-requests.jsonl"
    return [UserRequest(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def keyword_refuses(text: str, keywords: Collection[str]) -> bool:
    """Whether a filter that looks for whole words refuses a text; upper case counts as lower case.

    >>> keyword_refuses("Who brings the balloons?", ["balloons", "party"])
    True
    """
    require_string(text, "text")
    return not set(map(str.lower, keywords)).isdisjoint(re.findall(r"[a-z]+", text.lower()))


def refusal_errors(requests: Sequence[UserRequest], refused: Sequence[bool]) -> RefusalErrors:
    """Compare what was refused with what should have been.

    refused: for each request, (n,). Raises ValueError if the lengths differ, or without at least
    one request of each sort.

    >>> requests = load_requests()
    >>> everything = refusal_errors(requests, [True] * len(requests))
    >>> print(everything.sensitivity, everything.specificity)
    1.000 [0.862, 1.000] 0.000 [0.000, 0.138]
    """
    if len(requests) != len(refused):
        raise ValueError(f"{len(refused)} verdicts on {len(requests)} requests: give one for each")
    if len({request.refuse for request in requests}) != 2:
        raise ValueError("give requests that should be refused and some that should be answered")
    pairs = list(zip(requests, refused, strict=True))
    over = tuple(request for request, no in pairs if no and not request.refuse)
    under = tuple(request for request, no in pairs if not no and request.refuse)
    wanted = sum(request.refuse for request in requests)
    harmless = len(requests) - wanted
    return RefusalErrors(
        sensitivity=wilson_interval(wanted - len(under), wanted),
        specificity=wilson_interval(harmless - len(over), harmless),
        over=over,
        under=under,
    )


def wrong_refusals(sensitivity: float, specificity: float, prevalence: float) -> float:
    """The share of all refusals that are wrong, if `prevalence` of the requests deserve one.

    By Bayes' rule, (1 - specificity)(1 - π) / ((1 - specificity)(1 - π) + sensitivity · π).
    sensitivity, specificity: in [0, 1]. prevalence: π, between 0 and 1. Raises ValueError for a
    value outside, or if nothing is refused.

    >>> round(wrong_refusals(0.9, 0.9, 0.01), 3)
    0.917
    """
    for value, name in ((sensitivity, "sensitivity"), (specificity, "specificity")):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
    require_between(prevalence, "prevalence", 0, 1)
    wrong = (1 - specificity) * (1 - prevalence)
    right = sensitivity * prevalence
    if wrong + right == 0:
        raise ValueError("nothing is refused, so no refusal is wrong: sensitivity 0, specificity 1")
    return wrong / (wrong + right)
