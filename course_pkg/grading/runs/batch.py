"""Grade the submissions of one run: several at a time, their results written one after the other.

Every submission ends in a record, whatever it does and whatever goes wrong. An error of the grader
itself is a state like the others, and does not stop the other submissions.

Chapter: appendix/for-instructors.
"""

import hashlib
import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from course_pkg.sandbox.probe import SandboxState

from ..contract import registry
from ..contract.stored import notes
from ..feedback import outputs
from ..feedback.graded_notebook import with_results
from ..gradebook.gradebook import CourseGradebook
from ..results.keys import digest, secret, secret_id, submission_key
from ..results.records import Record
from ..results.states import State
from ..results.store import Store, code_hash, content_key
from ..submissions import assemble, read_notebook
from ..submissions.folders import Refused
from ..submissions.submission import Files, Submission
from .gpu_pool import GpuPool, NoGpu
from .gpu_run import trial_failure, trial_notebook
from .grade_submission import ForkServers
from .judging import Checked, Judging, Plain, late_answers
from .options import NoSandbox, Options
from .progress import ProgressDisplay
from .writing import Graded, Writer

NO_SANDBOX = "NONE: --unsafe-no-sandbox"


class Batch:
    """The submissions of one run, and what they share.

    book and servers: open, and used by this batch alone. servers: None if every submission waits
    for a GPU. gpus: None for an assignment that uses none. Raises GradingFolderError,
    GradebookError or ReleaseError.
    """

    def __init__(
        self,
        course: Path,
        assignment: str,
        options: Options,
        book: CourseGradebook,
        servers: ForkServers | None,
        gpus: GpuPool | None = None,
    ) -> None:
        self.course, self.assignment, self.options = course, assignment, options
        self.book, self.servers, self.gpus = book, servers, gpus
        self.limits = options.limits
        if gpus is None:  # a limit without an effect must not grade everything again
            self.limits = replace(options.limits, gpu_bytes=None)
        self.released = book.ensure_assignment(assignment)
        self.judging: Judging = (
            Checked(assignment, self.released)
            if registry.has_checks(assignment)
            else Plain(self.released, book.locked_sources(assignment))
        )
        self.secret = secret(course)
        self.store = Store(course, self.secret)
        self.writer = Writer(assignment, book, self.store, self._failed)
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(options.jobs):
            self.slots.put(slot)

    def known(self, submission: Submission) -> Record | None:
        """The stored record, if grading the submission again would give the same one.

        A record that somebody else has changed is given too: it is for the instructor to look at.
        """
        record = self.store.load(self.assignment, submission.student)
        if record is None or record.state == State.RECORD_CHANGED:
            return record
        folder = self.course / "autograded" / submission.student / self.assignment
        unfinished = record.state in (State.GRADING_ERROR, State.WAITING)
        if unfinished or submission.student not in self.writer.points:
            return None
        try:
            same = folder.is_dir() and record.key == self._key(submission, submission.read())
        except Exception:  # `_grade` reads it again, and its record says what is wrong
            return None
        return record if same else None

    def run(
        self, waiting: list[tuple[int, Submission]], show: ProgressDisplay
    ) -> Iterator[tuple[int, Record]]:
        """Grade and write the numbered submissions; their records, in the order in which they end.

        Raises NoSandbox if a trial run fails, before any of them.
        """
        if not waiting:
            return
        with ExitStack() as stack:
            if self.servers is not None:
                self.servers.ready()
                self._trial_run()
            # While one submission uses a GPU, the checker judges the one before.
            jobs = min(self.options.jobs, 2 * len(self.gpus)) if self.gpus else self.options.jobs
            pool = stack.enter_context(ThreadPoolExecutor(jobs))
            stack.callback(pool.shutdown, cancel_futures=True)
            running: dict[Future[Graded], tuple[int, Submission]] = {}
            left = list(reversed(waiting))
            if self.servers is not None:  # runs before the pool waits for its threads
                stack.push(lambda kind, *_: self.servers.stop() if kind else None)
            while left or running:
                while left and len(running) < jobs:
                    number, submission = left.pop()
                    show.started(submission.student)
                    running[pool.submit(self._grade, submission)] = (number, submission)
                for future in wait(running, return_when="FIRST_COMPLETED").done:
                    number, submission = running.pop(future)
                    record = self.writer.write(submission, future.result())
                    show.finished(record)
                    yield number, record

    def _trial_run(self) -> None:
        """Run a trial notebook, so that a machine that can't grade is not a student's fault."""
        if self.gpus:
            result = self.servers.run_submission("", b"trial", trial_notebook(True), {}, 0)
            if not (why := trial_failure(result)):
                return
            self.gpus.retire(None, f"the GPU can't be used in a sandbox here ({why})")
        if self.gpus is not None and self.gpus.required:
            return
        result = self.servers.run_submission("", b"trial", trial_notebook(False), {}, 0)
        if result.state != State.GRADED:
            raise NoSandbox(
                SandboxState(False, f"a trial run failed: {result.reason}", "run `course doctor`")
            )

    def _grade(self, submission: Submission) -> Graded:
        """One submission, in its own thread; whatever happens, it ends in a record."""
        slot = self.slots.get()
        try:
            files = submission.read()
            notebook = read_notebook.read(files.notebook)
            assemble.require_assignment(notebook, self.released, self.assignment)
            assembled = assemble.assemble(notebook, self.released)
            if self.servers is None:
                raise NoGpu(self.gpus.why)
            return self._run(submission, files, assembled, slot)
        except NoGpu as error:
            content = digest(files.notebook, files.beside)
            return Graded(self._record(submission, State.WAITING, str(error), files=content))
        except Refused as error:
            return Graded(self._record(submission, State.REFUSED, str(error)))
        except read_notebook.Unreadable as error:
            content = digest(files.notebook, files.beside)
            return Graded(self._record(submission, State.UNREADABLE, str(error), files=content))
        except Exception as error:  # the grader's own error must not stop the other submissions
            return Graded(self._failed(submission, f"{type(error).__name__}: {error}"))
        finally:
            self.slots.put(slot)

    def _run(
        self, submission: Submission, files: Files, assembled: assemble.Assembled, slot: int
    ) -> Graded:
        student, notebook = submission.student, self.judging.to_run(assembled.notebook)
        content = digest(files.notebook, files.beside)
        key = submission_key(self.secret, self.assignment, student, content)
        result = self.servers.run_submission(student, key, notebook, files.beside, slot)
        state, reason, questions = result.state, result.reason, self.judging.nothing()
        try:
            questions = self.judging.questions(notebook, result)
        except ValueError as error:
            if state != State.GRADING_ERROR:
                state, reason = State.GRADING_ERROR, str(error)[:500]
        late = late_answers(self.judging, questions)
        if late and state == State.GRADED:
            state, reason, late = State.ANSWER_LATE, "; ".join(late)[:500], ()
        on_cpu = ()
        if self.gpus is not None and self.gpus.lost and not result.gpu:
            on_cpu = (f"it ran on the CPU: {self.gpus.why}",)
        record = self._record(
            submission,
            state,
            reason,
            questions=questions,
            remarks=assembled.remarks + result.remarks + late + notes(questions) + on_cpu,
            start_s=round(result.start_s, 3),
            run_s=round(result.run_s, 3),
            peak_bytes=result.peak_bytes,
            limits=result.limits,
            gpu=result.gpu,
            gpu_peak_bytes=result.gpu_peak_bytes,
            files=content,
            key=self._key(submission, files),
        )
        notebook.cells = outputs.clean_cells(notebook.cells)
        places = sorted(result.outputs)
        cleaned = outputs.clean_all(result.outputs[place] for place in places)
        shown = dict(zip(places, cleaned, strict=True))
        return Graded(
            record, with_results(notebook, record, self.judging.by_cell, shown), files.beside
        )

    def _record(
        self, submission: Submission, state: State, reason: str, **fields: object
    ) -> Record:
        record = Record(
            submission.student,
            self.assignment,
            state,
            reason,
            self.judging.nothing(),
            sandbox="bubblewrap" if self.limits.sandboxed else NO_SANDBOX,
            unprotected=self.judging.unprotected,
            graded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return replace(record, **fields)

    def _failed(self, submission: Submission, reason: str) -> Record:
        return self._record(submission, State.GRADING_ERROR, reason[:500])

    def _key(self, submission: Submission, files: Files) -> str:
        return content_key(
            student=submission.student,
            files=digest(files.notebook, files.beside),
            checks=self.judging.hash(),
            released=hashlib.sha256(str(self.released).encode()).hexdigest(),
            limits=asdict(self.limits),
            code=code_hash(),
            secret=secret_id(self.secret),
        )
