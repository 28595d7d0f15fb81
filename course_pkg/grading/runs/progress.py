"""Show the progress of a run and its summary: a live table on a terminal, lines in a pipe.

Ids and reasons come from students: they are shown as plain text, never as markup or terminal
control codes.

Chapter: appendix/for-instructors.
"""

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..contract.display import one_line
from ..contract.question_record import program_points_text
from ..feedback.pages import is_unsafe
from ..results.records import Record
from ..results.score_statistics import score_statistics
from ..results.states import State
from .time_left import TimeLeft, in_words

LAST = 12  # finished submissions in the table
CONTINUE = "Run the same command on a machine with a GPU, in this folder or in a copy of it."
RUNNING = 16  # running submissions in the table
SAID_EVERY_S = 60  # in a pipe, how much is done and the time left
MOST_ODD = 200  # submissions in the summary


class ProgressDisplay:
    """Shows submissions as they start and finish. Use as a context manager.

    console: where to print; standard output by default. clock: gives seconds, for tests.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console or Console()
        self.graded = 0  # submissions graded in this run, not before
        self._clock = clock
        self._began = self._said = clock()
        self._done, self._total = 0, 0
        self._left = TimeLeft()
        self._running: dict[str, float] = {}
        self._last: deque[tuple[Record, float | None]] = deque(maxlen=LAST)
        self._lock = threading.Lock()
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, rate="", left="")
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self._table, console=self.console, refresh_per_second=4
            )
            self._live.start()

    def expect(self, total: int) -> None:
        """Say how many submissions there are, before the slow part of the start."""
        self._total = total
        self._progress.update(self._task, total=total, rate="starting the sandboxes")
        if self._live is None:
            what = f"{total} submission{'s' * (total != 1)}"
            self.console.print(Text(f"{what}; starting the sandboxes"))

    def started(self, student: str) -> None:
        """A submission has started to run."""
        with self._lock:
            self._running[student] = self._clock()

    def finished(self, record: Record) -> None:
        """A submission has its record; if it never started, it was graded before."""
        now = self._clock()
        with self._lock:
            at_once, began = len(self._running), self._running.pop(record.student, None)
            took = None if began is None else now - began
            self._done += 1
            if took is not None:
                self.graded += 1
                self._left.finished(took, at_once)
            self._last.append((record, took))
            minutes = max(now - self._began, 1e-9) / 60
            rate = f"{self.graded / minutes:.1f} per minute"
            self._progress.update(self._task, advance=1, rate=rate)
            left = self._time_left(now)
        if self._live is None:
            self.console.print(_line(record, took), soft_wrap=True)
            if left and now - self._said >= SAID_EVERY_S:
                self._said = now
                self.console.print(Text(f"{self._done} of {self._total} done; {left}"))

    def note(self, text: str) -> None:
        """Print a line about the run itself. Any thread may call it."""
        self.console.print(Text(one_line(text, 2_000), "yellow"), soft_wrap=True)

    def close(self) -> None:
        """Stop updating; the last state of the table stays on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _table(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, expand=True)
        for name, justify in (("student", "left"), ("state", "left")):
            table.add_column(name, justify=justify, no_wrap=True)
        table.add_column("by program", justify="right", no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        now = self._clock()
        with self._lock:
            finished, running = list(self._last), list(self._running.items())
            self._progress.update(self._task, left=self._time_left(now))
        for record, took in finished:
            table.add_row(_name(record.student), _state(record), _score(record), _seconds(took))
        for student, began in running[:RUNNING]:
            table.add_row(
                _name(student), Text("running", "cyan"), "", Text(f"{now - began:.0f}", "dim")
            )
        if len(running) > RUNNING:
            table.add_row(f"and {len(running) - RUNNING} more", Text("running", "cyan"), "", "")
        return Group(table, self._progress)

    def _time_left(self, now: float) -> str:
        """In words; "" while nothing is known, and when all is done."""
        running = [now - began for began in self._running.values()]
        waiting = self._total - self._done - len(running)
        left = self._left.seconds(max(0, waiting), running)
        return f"about {in_words(left)} left" if left and waiting + len(running) > 0 else ""


def print_summary(
    records: Sequence[Record], seconds: float, graded: int | None = None, waiting: float = 0
) -> None:
    """Print `summary` on standard output."""
    Console().print(summary(records, seconds, graded, waiting))


def summary(
    records: Sequence[Record], seconds: float, graded: int | None = None, waiting: float = 0
) -> RenderableType:
    """The summary of a run: states, scores, times, and the submissions that need a look, with why.

    seconds: duration of the run. graded: submissions graded in it; all by default. waiting: points
    of a submission that wait for a person, since the scores here are those by program.
    """
    graded = len(records) if graded is None else graded
    states = Counter(record.state for record in records)
    parts: list[RenderableType] = [Text()]
    counts = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    kept = f" ({len(records) - graded} graded before)" if graded < len(records) else ""
    rows = [("submissions", f"{len(records)}{kept}: {counts}" if records else "none")]
    if (stats := score_statistics(records)) is not None:
        rows.append((
            "scores",
            f"mean {stats.mean:.1f}, median {stats.median:g}, quartiles {stats.lower:g} and "
            f"{stats.upper:g}, of {program_points_text(stats.most, waiting)}",
        ))  # fmt: skip
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
    if unsafe := sum(map(is_unsafe, records)):
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
    found = sorted(records, key=lambda r: (r.state == State.GRADED, r.student))
    for record in found[:MOST_ODD]:
        table.add_row(_name(record.student), _state(record), _score(record), Text(_why(record)))
    if len(found) > MOST_ODD:
        more = f"and {len(found) - MOST_ODD:,} more"
        table.add_row(Text(more), "", "", Text("the class's page lists them all"))
    return table


def _why(record: Record) -> str:
    first = record.reason or ("" if record.state == State.GRADED else record.state.means)
    return "; ".join(one_line(text) for text in (first, *record.remarks) if text)


def _line(record: Record, took: float | None) -> Text:
    text = f"{one_line(record.student, 60)}  {record.state}  {_score(record)}  {_seconds(took)}"
    why = _why(record)
    return Text(f"{text}  {why}" if why else text)


def _name(student: str) -> Text:
    return Text(one_line(student, 40))


def _state(record: Record) -> Text:
    return Text(record.state, "green" if record.state == State.GRADED else "yellow")


def _score(record: Record) -> Text:
    return Text(f"{record.score:g}/{record.max_score:g}" if record.state.has_score else "-")


def _seconds(took: float | None) -> str:
    return "before" if took is None else f"{took:.1f} s"
