"""What a question is, on the trusted side: properties with marks, draws, and misconceptions.

A `Question` says how the right value is computed from inputs; each `Property` carries points and
draws the inputs that put exactly that property to the test; a `Misconception` is a wrong method
whose value can be recognized and explained. `draw_cases` makes the cases of a question, and
repeats a draw until every misconception that breaks the property gives a different value: in each
case of the property, or in one at least where the method may be right by luck.
This module runs no student's code.

Chapter: appendix/for-instructors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .compare import Comparator
from .values import as_crossing

MAX_DRAWS = 200
DEFAULT_DEADLINE_S = 60.0


class ChecksError(RuntimeError):
    """A question is written wrongly: an author's mistake, never a student's."""


@dataclass(frozen=True)
class Property:
    """Something that must hold, worth `points`, earned only if all its cases pass.

    name: its key. says: what must hold, in the student's words. hint: what to look at on failure.
    draw: `(rng, size) -> inputs`, size running from 0 to cases − 1, small cases first; None
    where the question is about the student's own variant. compare: overrides the question's.
    """

    name: str
    points: int
    says: str
    hint: str
    draw: Callable[[np.random.Generator, int], Any] | None = None
    cases: int = 3
    compare: Comparator | None = None


@dataclass(frozen=True)
class Misconception:
    """A wrong method: `value(inputs)` is what it gives. breaks: the properties that it fails.

    sometimes_right: it may give the right value in some cases of a property that it breaks, if
    it is wrong in one at least.
    """

    name: str
    says: str
    value: Callable[[Any], Any]
    breaks: tuple[str, ...]
    sometimes_right: bool = False


@dataclass(frozen=True)
class Question:
    """One question: `expected(inputs)` is the right value, `compare(expected, given)` the test.

    Its points are those of its properties. variant: the name of the variant in the assignment's
    `ask` that gives the inputs, for numbers worked by hand. deadline_s: seconds from the first
    look at the inputs to the last answer that counts.
    """

    name: str
    expected: Callable[[Any], Any]
    compare: Comparator
    properties: tuple[Property, ...]
    misconceptions: tuple[Misconception, ...] = ()
    variant: str | None = None
    deadline_s: float = DEFAULT_DEADLINE_S
    by_name: dict[str, Property] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {p.name: p for p in self.properties})
        if len(self.by_name) != len(self.properties) or not self.properties:
            raise ChecksError(f"{self.name}: wanted one or more properties with distinct names")
        for p in self.properties:
            if p.points < 1 or p.cases < 1 or (p.draw is None) != (self.variant is not None):
                raise ChecksError(
                    f"{self.name}/{p.name}: wanted at least one point and one case, "
                    "and either a draw or a variant of the question"
                )
        for m in self.misconceptions:
            if not m.breaks or not set(m.breaks) <= set(self.by_name):
                raise ChecksError(
                    f"{self.name}: misconception {m.name} must name the properties it breaks"
                )

    @property
    def points(self) -> int:
        """The points of the question: the sum over its properties."""
        return sum(p.points for p in self.properties)

    def breaking(self, name: str) -> list[Misconception]:
        """The misconceptions that break the property called `name`."""
        return [m for m in self.misconceptions if name in m.breaks]

    def compares(self, name: str) -> Comparator:
        """The comparator of the property called `name`."""
        return self.by_name[name].compare or self.compare


@dataclass(frozen=True)
class Case:
    """One input of one property, and the right value for it."""

    property: str
    inputs: Any
    expected: Any


def draw_cases(question: Question, rng: np.random.Generator, variant: Any = None) -> list[Case]:
    """The cases of a question, in the order of its properties, small ones first.

    variant: the student's own case, for a question that has one. Raises ChecksError where no
    draw tells a misconception from the right value.
    """
    cases: list[Case] = []
    for prop in question.properties:
        for _ in range(MAX_DRAWS if prop.draw else 1):  # a case set by hand is always the same
            drawn = [_telling_case(question, prop, *how) for how in _draws(prop, rng, variant)]
            lucky = _lucky(question, prop, drawn)
            if not lucky:
                break
        else:
            raise _blind(question, prop, lucky)
        cases += drawn
    return cases


def _draws(
    prop: Property, rng: np.random.Generator, variant: Any
) -> Iterator[tuple[Callable[[], Any], int]]:
    """How each case of a property is drawn, and how often that is worth trying."""
    if prop.draw is None:
        yield lambda: variant, 1
        return
    for size in range(prop.cases):
        yield partial(prop.draw, rng, size), MAX_DRAWS


def _telling_case(
    question: Question, prop: Property, draw: Callable[[], Any], attempts: int
) -> Case:
    """A case in which no misconception is right that has to be wrong in every case."""
    compare = question.compares(prop.name)
    for _ in range(attempts):
        inputs = as_crossing(draw())
        expected = as_crossing(question.expected(inputs))
        if (reason := compare(expected, expected)) is not None:
            raise ChecksError(f"{question.name}/{prop.name}: expected is not itself: {reason}")
        case = Case(prop.name, inputs, expected)
        blind = [
            m.name
            for m in question.breaking(prop.name)
            if not m.sometimes_right and _is_right(question, m, case)
        ]
        if not blind:
            return case
    raise _blind(question, prop, blind)


def _lucky(question: Question, prop: Property, cases: list[Case]) -> list[str]:
    """The misconceptions that are right in all cases of a property that they should break."""
    return [
        m.name
        for m in question.breaking(prop.name)
        if m.sometimes_right and all(_is_right(question, m, case) for case in cases)
    ]


def _is_right(question: Question, misconception: Misconception, case: Case) -> bool:
    value = as_crossing(misconception.value(case.inputs))
    return question.compares(case.property)(case.expected, value) is None


def _blind(question: Question, prop: Property, names: list[str]) -> ChecksError:
    draws = "1 draw" if prop.draw is None else f"{MAX_DRAWS} draws"
    return ChecksError(
        f"{question.name}/{prop.name}: {draws}, and none tells {', '.join(names)} "
        "from the right value"
    )
