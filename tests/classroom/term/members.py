"""The members of a class: what each submits, when, and the automatic points that it deserves.

The hostile ones are of the corpora `attacks` and `stalls`. Everybody's files are the same in every
class, so that two classes can be compared.
"""

import functools
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat

from course_pkg.classroom.results.record import State
from course_pkg.classroom.runs.sample_class import answered, named
from course_pkg.classroom.submissions.names import valid_student
from tests.classroom.corpus import ASSIGNMENT, Case, load
from tests.exercises.assignments import EXERCISES, SOLUTIONS, notebook, places

DUE = datetime(2026, 3, 1, 12, tzinfo=UTC)
IN_TIME, AGAIN = DUE - timedelta(hours=5), DUE - timedelta(hours=1)
# Somebody of every kind first, for a small class; then again and again in this order.
KINDS = ("right", "partly", "untouched", "late", "broken", "missing")
MORE = ("right", "partly", "late", "partly", "right", "untouched", "partly", "right", "missing")
# Whatever takes long is at the end of their notebooks, so that a busy machine changes no points.
HOSTILE = (
    "forged-record", "memory-memfd", "interrupt-swallowed", "fork-bomb", "id-html",
    "names-and-routes", "daemon-double-fork", "ipc-left-behind", "html-script",
    "many-files-beside", "write-gradebook", "links-beside",
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One student.

    kind: of KINDS, or "hostile". share: of the answers that are right. hours_late: after the due
    date. in_roster: whether the roster says when it was submitted, instead of the file's time.
    """

    number: int
    id: str
    kind: str
    share: float = 0.0
    hours_late: float = 0.0
    in_roster: bool = False
    case: Case | None = None

    @property
    def submits(self) -> bool:
        """Whether there is a submission."""
        return self.kind != "missing"

    @property
    def known(self) -> bool:
        """Whether the student can be in a roster: some hostile ones have an impossible id."""
        return valid_student(self.id)

    @property
    def points(self) -> float:
        """The automatic points that the first submission deserves."""
        return self.case.score if self.case else deserved(self.share)

    @property
    def states(self) -> set[str]:
        """The states in which grading the submission may end."""
        if self.case:
            return set(self.case.state)
        special = {"broken": State.UNREADABLE, "missing": "no-submission"}
        return {str(special.get(self.kind, State.GRADED))}

    @property
    def submitted_at(self) -> datetime:
        """When the first submission came in."""
        return DUE + timedelta(hours=self.hours_late) if self.hours_late else IN_TIME

    def submit(self, course: Path, share: float | None = None) -> None:
        """Write the submission into the course's `submitted/`. share: given for another one."""
        folder = course / "submitted" / self.id / ASSIGNMENT
        when = self.submitted_at if share is None else AGAIN
        if self.case:
            self.case.write(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            share = self.share if share is None else share
            text = nbformat.writes(named(_answered(share), self.id))
            text = text[: len(text) // 2] if self.kind == "broken" else text
            (folder / f"{ASSIGNMENT}.ipynb").write_text(text)
        at = when.timestamp()
        os.utime(folder / f"{ASSIGNMENT}.ipynb", (at, at), follow_symlinks=False)


def members(students: int, hostile: int) -> list[Member]:
    """A class of so many students. Raises ValueError for a class without somebody of every kind."""
    honest = students - hostile
    if not 0 <= hostile <= len(HOSTILE) or honest < len(KINDS):
        raise ValueError(
            f"{students} students, of whom {hostile} are hostile, make no class; expected at most "
            f"{len(HOSTILE)} hostile ones and at least {len(KINDS)} others"
        )
    cases = {case.name: case for folder in ("attacks", "stalls") for case in load(folder)}
    made = [_honest(number) for number in range(honest)]
    for number, name in enumerate(HOSTILE[:hostile], honest):
        made.append(Member(number, cases[name].id, "hostile", case=cases[name]))
    return made


def penalty(points: float, hours_late: float) -> float:
    """The late penalty of the class: ten percent of the points for every day that has begun.

    >>> penalty(20, 25), penalty(20, 0)
    (4.0, 0.0)
    """
    return points * min(1.0, 0.1 * math.ceil(max(hours_late, 0) / 24))


@functools.cache
def deserved(share: float) -> float:
    """The automatic points for the first answers being right, that share of them."""
    nb = _answered(share)
    stub = _answered(0.0)
    places_of = places(stub).values()
    return sum(p.points for p in places_of if nb.cells[p.answer] != stub.cells[p.answer])


def _honest(number: int) -> Member:
    later = number - len(KINDS)
    kind = KINDS[number] if later < 0 else MORE[later % len(MORE)]
    share = {"right": 1.0, "partly": (3 + number % 4) / 8, "late": 1.0}.get(kind, 0.0)
    hours = 60.0 + number - KINDS.index("late") if kind == "late" else 0.0
    by_roster = kind == "late" and number % 2 == 1
    return Member(number, f"student-{number + 1:02}", kind, share, hours, by_roster)


@functools.cache
def _answered(share: float) -> nbformat.NotebookNode:
    released, solution = notebook(EXERCISES, ASSIGNMENT), notebook(SOLUTIONS, ASSIGNMENT)
    return answered(released, solution, share)
