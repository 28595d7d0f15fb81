"""The page of a class, `index.html`: statistics, questions, and a table of the students.

The table is paged, sorted and searched by a small script in the page. Without JavaScript, the page
shows the first students, and then a second table with the rest.

Chapter: appendix/for-instructors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.question_record import notes
from ..results.score_statistics import Statistics
from ..results.states import State
from .pages import TEMPLATES, histogram, is_unsafe, render
from .row import Row

PAGE = 50  # students on a page of the table; class.js counts those that are shown
COLUMNS = (("student", ""), ("score", "n"), ("state", ""), ("automatic", "n"), ("by hand", "n"),
           ("late penalty", "n"), ("to mark", "n"), ("why", ""))  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Students with a state or a flag in common, whom the table can show alone."""

    name: str
    count: int


def index(assignment: str, rows: Sequence[Row], stats: Statistics | None) -> str:
    """The page of a class. rows: one for each student, in the order to show them."""
    from markupsafe import Markup

    records = [row.record for row in rows if row.record is not None]
    scores = [
        row.score
        for row in rows
        if row.record and row.record.state != State.REFUSED and row.score is not None
    ]  # as in the statistics
    to_mark = Counter(row.points.to_mark for row in rows if row.points and not row.waits)
    to_mark.pop(0, None)
    found = groups(rows)
    number = {group.name: str(at) for at, group in enumerate(found)}
    return render(
        "index",
        title=f"{assignment}: results",
        assignment=assignment,
        rows=rows,
        page=PAGE,
        columns=COLUMNS,
        flags=flags,
        groups=found,
        groups_of=lambda row: " ".join(number[name] for name in (row.state, *flags(row))),
        submissions=sum(row.state != "no-submission" for row in rows),
        by_program=max((record.max_score for record in records), default=0),
        to_mark=to_mark.most_common(),
        waiting=sum(row.waits for row in rows),
        stats=stats,
        bins=histogram(scores, stats.most) if stats else [],
        unsafe=sum(map(is_unsafe, records)),
        unprotected="; ".join(sorted({r.unprotected for r in records} - {""})),
        script=Markup((TEMPLATES / "class.js").read_text("utf-8")),
    )


def flags(row: Row) -> tuple[str, ...]:
    """What to know about a submission besides its state.

    >>> from ..submissions.roster import Person
    >>> flags(Row(Person("ada"), None, None))
    ()
    """
    points, record = None if row.waits else row.points, row.record
    found = {
        "late": points and points.late_s,
        "to mark": points and points.to_mark,
        "remarks": record and record.remarks,
        "another name": record and notes(record.questions),
        "no sandbox": record and is_unsafe(record),
    }
    return tuple(name for name, is_so in found.items() if is_so)


def groups(rows: Sequence[Row]) -> list[Group]:
    """The states and then the flags of a class, each with the number of its students."""
    states = Counter(row.state for row in rows)
    flagged = Counter(flag for row in rows for flag in flags(row))
    return [Group(*item) for item in (*states.most_common(), *flagged.most_common())]
