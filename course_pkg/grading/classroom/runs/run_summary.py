"""The summary of a run: states, scores, times, and the submissions that need a look.

Ids and reasons come from students: they are shown as plain text.
"""

import statistics
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.class_rows import score_statistics
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question_record import program_points_text

CONTINUE = "Run the same command on a machine with a GPU, in this folder or in a copy of it."
MOST_ODD = 200  # submissions in the summary


def summary(
    records: Sequence[Record], seconds: float, graded: int | None = None, waiting: float = 0
) -> RenderableType:
    """The summary of a run: states, scores, times, and the submissions that need a look, with why.

    Args:
        graded: submissions graded in the run, which took `seconds`; all by default.
        waiting: points of a submission that wait for a person, since the scores here are those by
            program.
    """
    graded = len(records) if graded is None else graded
    states = Counter(record.state for record in records)
    parts: list[RenderableType] = [Text()]
    counts = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    kept = f" ({len(records) - graded} graded before)" if graded < len(records) else ""
    rows = [("submissions", f"{len(records)}{kept}: {counts}" if records else "none")]
    if (stats := score_statistics(records)) is not None:
        most = program_points_text(stats.most, waiting)
        quartiles = f"quartiles {stats.lower:g} and {stats.upper:g}"
        middle = f"mean {stats.mean:.1f}, median {stats.median:g}"
        rows.append(("scores", f"{middle}, {quartiles}, of {most}"))
    ran = [record for record in records if record.run_s]
    if ran:
        start, run, write = (
            statistics.median(getattr(record, name) for record in ran)
            for name in ("start_s", "run_s", "write_s")
        )
        rows.append(("median times", f"start {start:.2f} s, run {run:.2f} s, write {write:.2f} s"))
    if ran and graded and seconds > 0:
        rows.append(("rate", f"{60 * graded / seconds:.1f} per minute, {seconds:.1f} s in total"))
    facts = Table.grid(padding=(0, 2))
    for name, text in rows:
        facts.add_row(Text(name, "bold"), Text(text))
    parts.append(facts)
    if waiting := states[State.WAITING]:
        subject = "submission waits" if waiting == 1 else "submissions wait"
        parts.append(Text(f"\n{waiting} {subject} for a GPU, without a score. {CONTINUE}", "bold"))
    if unsafe := len([record for record in records if record.is_unsafe]):
        parts.append(Text(f"\n{unsafe} graded WITHOUT a sandbox", "bold red"))
    for said in sorted({record.unprotected for record in records} - {""}):
        parts.append(Text(f"\nnot protected: {said}", "bold yellow"))
    if odd := [record for record in records if record.state != State.GRADED or record.remarks]:
        parts += [Text(), _needs_a_look(odd)]
    return Group(*parts)


def _needs_a_look(records: Sequence[Record]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="needs a look", title_justify="left")
    table.add_column("student")
    table.add_column("state", no_wrap=True)
    table.add_column("by program", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    ordered = sorted(records, key=lambda r: (r.state == State.GRADED, r.student))
    for record in ordered[:MOST_ODD]:
        table.add_row(
            name_text(record.student), state_text(record), score_text(record), Text(why(record))
        )
    if len(ordered) > MOST_ODD:
        more = f"and {len(ordered) - MOST_ODD:,} more"
        table.add_row(Text(more), "", "", Text("the class's page lists them all"))
    return table


def why(record: Record) -> str:
    """Why a submission needs a look; "" if it doesn't."""
    first = record.reason or ("" if record.state == State.GRADED else record.state.means)
    return "; ".join(one_line(text) for text in (first, *record.remarks) if text)


def name_text(student: str) -> Text:
    """A student's id as a cell."""
    return Text(one_line(student, 40))


def state_text(record: Record) -> Text:
    """The state as a cell."""
    return Text(record.state, "green" if record.state == State.GRADED else "yellow")


def score_text(record: Record) -> Text:
    """The points by program as a cell."""
    return Text(f"{record.score:g}/{record.max_score:g}" if record.state.has_score else "-")
