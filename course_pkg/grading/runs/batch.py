"""The submissions of one run: run side by side, written one after the other.

Every one ends in a record, whatever it does and whatever goes wrong; a mistake of the grader's own
is a state like others, and stops nobody else.

Chapter: appendix/for-instructors.
"""

import hashlib
import queue
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from course_pkg.sandbox.probe import SandboxState

from ..contract import registry
from ..contract.outlines import Outline
from ..feedback import outputs
from ..feedback.graded_notebook import with_results
from ..gradebook.gradebook import CourseGradebook
from ..results.keys import framed, secret, secret_id, student_key
from ..results.records import Record, checked_results, nothing_earned
from ..results.states import State
from ..results.store import Store, code_hash, content_key
from ..submissions import assemble, read_notebook
from ..submissions.collect import Files, Refused, Submission
from ..submissions.names import valid_student
from .grade_submission import ForkServers
from .options import NoSandbox, Options
from .progress import ProgressDisplay

NO_SANDBOX = "NONE: --unsafe-no-sandbox"


@dataclass(frozen=True)
class Graded:
    """A submission's record, with the notebook and the files to keep; None of what was not run."""

    record: Record
    notebook: NotebookNode | None = None
    files: dict[str, bytes] = field(default_factory=dict)


class Batch:
    """The submissions of one run, and what they have in common.

    book and servers: open, and this batch's alone. Raises GradingFolderError, GradebookError
    or ReleaseError.
    """

    def __init__(
        self,
        course: Path,
        assignment: str,
        options: Options,
        book: CourseGradebook,
        servers: ForkServers,
    ) -> None:
        self.servers = servers
        self.course, self.assignment, self.options, self.book = course, assignment, options, book
        self.limits = options.limits
        self.questions: dict[str, Outline] = {}  # until the servers is ready
        self.released = book.ensure_assignment(assignment)
        self.checks = assemble.checks(self.released, assignment)
        self.secret = secret(course)
        self.store = Store(course, self.secret)
        self.graded_before = set(book.to_mark(assignment))
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(options.jobs):
            self.slots.put(slot)

    def known(self, submission: Submission) -> Record | None:
        """The record of this very hand-in, if it was graded as it would be graded now."""
        record = self.store.load(self.assignment, submission.student).record
        if record is None or submission.student not in self.graded_before:
            return None
        folder = self.course / "autograded" / submission.student / self.assignment
        if record.state == State.GRADING_ERROR or not folder.is_dir():
            return None
        try:
            return record if record.key == self._key(submission, submission.read()) else None
        except Exception:  # `_one` reads it again, and says in a record what is wrong
            return None

    def run(
        self, waiting: list[tuple[int, Submission]], show: ProgressDisplay
    ) -> Iterator[tuple[int, Record]]:
        """Run and write the numbered hand-ins; their records, in the order in which they end.

        Raises NoSandbox where a trial run fails, before any of them.
        """
        if not waiting:
            return
        with ExitStack() as stack:
            self.servers.ready()
            self.questions = self.servers.outlines()
            self._try_out()
            pool = stack.enter_context(ThreadPoolExecutor(self.options.jobs))
            stack.callback(pool.shutdown, cancel_futures=True)
            running: dict[Future[Graded], tuple[int, Submission]] = {}
            left = list(reversed(waiting))
            stack.push(
                lambda kind, *_: self.servers.stop() if kind else None
            )  # before the pool waits
            while left or running:
                while left and len(running) < self.options.jobs:
                    number, submission = left.pop()
                    show.started(submission.student)
                    running[pool.submit(self._one, submission)] = (number, submission)
                for future in wait(running, return_when="FIRST_COMPLETED").done:
                    number, submission = running.pop(future)
                    record = self._keep(submission, future.result())
                    show.finished(record)
                    yield number, record

    def _try_out(self) -> None:
        """That walls, kernel and checker work here, before anybody's hand-in is blamed."""
        sat = self.servers.sit("", b"trial", new_notebook(), {}, 0)
        if sat.state != State.GRADED:
            raise NoSandbox(
                SandboxState(False, f"a trial run failed: {sat.reason}", "run `course doctor`")
            )

    def _one(self, submission: Submission) -> Graded:
        """One submission, in a thread of its own; whatever happens, it ends in a record."""
        slot = self.slots.get()
        try:
            files = submission.read()
            assembled = assemble.assemble(read_notebook.read(files.notebook), self.released)
            return self._sit(submission, files, assembled, slot)
        except Refused as error:
            return Graded(self._record(submission, State.REFUSED, str(error)))
        except read_notebook.Unreadable as error:
            return Graded(self._record(submission, State.UNREADABLE, str(error)))
        except Exception as error:  # ours, and it must not stop the others
            reason = f"{type(error).__name__}: {error}"[:500]
            return Graded(self._record(submission, State.GRADING_ERROR, reason))
        finally:
            self.slots.put(slot)

    def _sit(
        self, submission: Submission, files: Files, assembled: assemble.Assembled, slot: int
    ) -> Graded:
        student, notebook = submission.student, assembled.notebook
        key = student_key(self.secret, self.assignment, student, digest(files))
        sat = self.servers.sit(student, key, notebook, files.beside, slot)
        state, reason, questions = sat.state, sat.reason, nothing_earned(self.questions)
        try:
            questions = checked_results(sat.rows, self.questions)
        except ValueError as error:
            if state != State.GRADING_ERROR:
                state, reason = State.GRADING_ERROR, f"the checker gave no verdict: {error}"[:500]
        record = self._record(
            submission,
            state,
            reason,
            questions=questions,
            remarks=assembled.remarks + sat.remarks,
            start_s=round(sat.start_s, 3),
            run_s=round(sat.run_s, 3),
            peak_bytes=sat.peak_bytes,
            limits=sat.limits,
            key=self._key(submission, files),
        )
        notebook.cells = outputs.clean_cells(notebook.cells)
        places = sorted(sat.outputs)
        shown = outputs.clean_all(sat.outputs[place] for place in places)
        given = dict(zip(places, shown, strict=True))
        return Graded(record, with_results(notebook, record, self.checks, given), files.beside)

    def _record(self, submission: Submission, state: State, reason: str, **known: object) -> Record:
        record = Record(
            submission.student,
            self.assignment,
            state,
            reason,
            nothing_earned(self.questions),
            sandbox="bubblewrap" if self.limits.sandboxed else NO_SANDBOX,
            graded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return replace(record, **known)

    def _keep(self, submission: Submission, done: Graded) -> Record:
        """Write the gradebook, then the record; a hand-in of nobody is only reported."""
        if not valid_student(submission.student):
            return done.record
        began = time.monotonic()
        self.store.forget(self.assignment, submission.student)  # so that none is stale
        record = self._written(submission, done)
        record = replace(record, write_s=round(time.monotonic() - began, 3))
        self.store.save(record)
        return record

    def _written(self, submission: Submission, done: Graded) -> Record:
        """Write to the gradebook; what can't be written as it is, is written as our failure."""
        try:
            self.book.write(done.record, done.notebook, done.files, submission.timestamp)
            return done.record
        except (OSError, ValueError) as error:
            reason = f"it could not be written ({type(error).__name__}: {error})"[:500]
            record = self._record(submission, State.GRADING_ERROR, reason)
            self.book.write(record, None, {}, submission.timestamp)
            return record

    def _key(self, submission: Submission, files: Files) -> str:
        return content_key(
            student=submission.student,
            timestamp=submission.timestamp,
            files=digest(files),
            checks=registry.assignment_hash(self.assignment),
            released=hashlib.sha256(str(self.released).encode()).hexdigest(),
            limits=asdict(self.limits),
            code=code_hash(),
            secret=secret_id(self.secret),
        )


def digest(files: Files) -> str:
    """SHA-256 over the notebook and every file beside it, each with its name and its length.

    >>> digest(Files(b"ab", {"c": b""})) == digest(Files(b"a", {"c": b"b"}))
    False
    """
    found = hashlib.sha256()
    for name, data in [("", files.notebook), *sorted(files.beside.items())]:
        found.update(framed(name, str(len(data))))
        found.update(data)
    return found.hexdigest()
