"""Show the progress of a run: a live table on a terminal, lines in a pipe.

Ids and reasons come from students: they are shown as plain text, never as markup or terminal
control codes.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course_pkg.common.terminal import duration_in_words
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.classroom.runs.run_summary import name_text, score_text, state_text, why
from course_pkg.grading.questions.display import one_line

LAST = 12  # finished submissions in the table
RUNNING = 16  # running submissions in the table
SAID_EVERY_S = 60  # in a pipe, how much is done and the time left
WINDOW = 500  # the last submissions, as later ones may take longer
RECENT = 50  # of them, for how many run at a time: workers of a cluster come and go


class TimeLeft:
    """Estimates the time left of a run of several submissions at a time.

    The mean time of a submission, times those that have not started, divided by how many run at a
    time (Little's law), plus the rest of those that run. The time includes waiting for the results
    to be written.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._at_once: deque[int] = deque(maxlen=RECENT)

    def finished(self, seconds: float, at_once: int) -> None:
        """A submission took so long; `at_once` were running when it ended, itself too."""
        self._last.append(seconds)
        self._at_once.append(at_once)

    def seconds(self, waiting: int, running: list[float]) -> float | None:
        """Seconds until the last one ends; None before the first one has ended.

        Args:
            waiting: submissions that have not started.
            running: for how long the others have run. One that has run for longer than the mean
                counts in the mean, so a slow one is not forgotten.
        """
        if not self._last:
            return None
        times = list(self._last)
        mean = math.fsum(times) / len(times)
        times += [seconds for seconds in running if seconds > mean]
        mean = math.fsum(times) / len(times)
        rest = math.fsum(max(mean - seconds, 0.0) for seconds in running)
        return (waiting * mean + rest) / max(1, min(max(self._at_once), waiting + len(running)))


class ProgressDisplay:
    """Shows submissions as they start and finish. A context manager."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console or Console()
        self.graded = 0  # submissions graded in this run, not before
        self.warnings: list[str] = []
        self._clock = clock
        self._began = self._said = clock()
        self._done = 0
        self._total = 0
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
        self._total = total
        self._progress.update(self._task, total=total, rate="starting the sandboxes")
        if self._live is None:
            what = "1 submission" if total == 1 else f"{total} submissions"
            self.console.print(Text(f"{what}; starting the sandboxes"))

    def started(self, student: str) -> None:
        with self._lock:
            self._running[student] = self._clock()

    def finished(self, record: Record) -> None:
        """A submission has its record; if it never started, it was graded before."""
        now = self._clock()
        with self._lock:
            at_once = len(self._running)
            began = self._running.pop(record.student, None)
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

    def warn(self, text: str) -> None:
        """Print a line about something that needs a look, and keep it for the end of the run."""
        self.warnings.append(one_line(text, 2_000))
        self.note(text)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _table(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, expand=True)
        for name, justify in (("student", "left"), ("state", "left")):
            table.add_column(name, justify=justify, no_wrap=True)
        table.add_column("by program", justify="right", no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        now = self._clock()
        with self._lock:
            finished = list(self._last)
            running = list(self._running.items())
            self._progress.update(self._task, left=self._time_left(now))
        for record, took in finished:
            table.add_row(
                name_text(record.student), state_text(record), score_text(record), _seconds(took)
            )
        for student, began in running[:RUNNING]:
            table.add_row(
                name_text(student), Text("running", "cyan"), "", Text(f"{now - began:.0f}", "dim")
            )
        if len(running) > RUNNING:
            table.add_row(f"and {len(running) - RUNNING} more", Text("running", "cyan"), "", "")
        return Group(table, self._progress)

    def _time_left(self, now: float) -> str:
        running = [now - began for began in self._running.values()]
        waiting = self._total - self._done - len(running)
        left = self._left.seconds(max(0, waiting), running)
        return (
            f"about {duration_in_words(left)} left" if left and waiting + len(running) > 0 else ""
        )


def _line(record: Record, took: float | None) -> Text:
    text = f"{one_line(record.student, 60)}  {record.state}  {score_text(record)}  {_seconds(took)}"
    reasons = why(record)
    return Text(f"{text}  {reasons}" if reasons else text)


def _seconds(took: float | None) -> str:
    return "before" if took is None else f"{took:.1f} s"
