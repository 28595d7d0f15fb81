"""What the recorder must know of an assignment's questions, without importing what they need.

The trusted half of an assignment imports torch, which takes seconds; a checker, which has it,
writes the outlines once at the start of a run, before anything of a student's was read.

Chapter: appendix/for-instructors.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from .questions import Question


@dataclass(frozen=True)
class PropertyOutline:
    """A `Property` without its draws."""

    name: str
    says: str
    hint: str
    points: int


@dataclass(frozen=True)
class Outline:
    """A `Question` without its functions.

    misconceptions: what each says. by_hand: whether the right value is the student's to find.
    """

    name: str
    properties: tuple[PropertyOutline, ...]
    misconceptions: tuple[str, ...]
    by_hand: bool

    @property
    def points(self) -> int:
        """The points of the question."""
        return sum(p.points for p in self.properties)


def outlined(questions: Iterable[Question]) -> dict[str, Outline]:
    """The outlines of questions, by name, in their order.

    >>> outlined([])
    {}
    """
    return {
        q.name: Outline(
            q.name,
            tuple(PropertyOutline(p.name, p.says, p.hint, p.points) for p in q.properties),
            tuple(m.says for m in q.misconceptions),
            q.variant is not None,
        )
        for q in questions
    }


def as_json(outlines: dict[str, Outline]) -> str:
    """Outlines as text."""
    return json.dumps([asdict(outline) for outline in outlines.values()])


def from_json(text: str | bytes) -> dict[str, Outline]:
    """Outlines from what `as_json` wrote. Raises ValueError or TypeError for another text.

    >>> from_json("[]")
    {}
    """
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError(f"wanted a list of outlines, not {str(rows)[:300]}")
    found = {}
    for row in rows:
        properties = tuple(PropertyOutline(**p) for p in row.pop("properties"))
        misconceptions = tuple(row.pop("misconceptions"))
        outline = Outline(properties=properties, misconceptions=misconceptions, **row)
        found[outline.name] = outline
    return found
