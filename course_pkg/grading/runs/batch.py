"""Grade the submissions of one run: several at a time, their results written one after the other.

Every submission ends in a record, whatever it does and whatever goes wrong. An error of the grader
itself is a state like the others, and does not stop the other submissions.

Chapter: appendix/for-instructors.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from ..contract import registry
from ..contract.question_record import notes
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
from . import gpu_pool
from .executor import Executor, ExecutorLost
from .gpu_pool import NoGpu
from .judging import Checked, Judging, Plain, late_answers
from .options import Options
from .packed import pack
from .progress import ProgressDisplay
from .writing import Graded, Writer

NO_SANDBOX = "NONE: --unsafe-no-sandbox"
MOST_AT_ONCE = 512  # submissions that wait for their results, each in a thread


class Batch:
    """The submissions of one run, and what they share.

    book and executor: open, and used by this batch alone. Raises GradingFolderError,
    GradebookError or ReleaseError.
    """

    def __init__(
        self,
        course: Path,
        assignment: str,
        options: Options,
        book: CourseGradebook,
        executor: Executor | None,
    ) -> None:
        self.course, self.assignment = course, assignment
        self.book, self.executor = book, executor
        self.limits = options.limits
        if gpu_pool.gpu_need(assignment) == "none":  # or a limit without an effect changes the key
            self.limits = replace(options.limits, gpu_bytes=None)
        self.released = book.ensure_assignment(assignment)
        self.judging: Judging = (
            Checked(assignment, self.released)
            if registry.has_checks(assignment)
            else Plain(self.released, book.locked_sources(assignment))
        )
        self.secret = secret(course)
        self.store = Store(course, self.secret)
        self._key_of_run = {
            "checks": self.judging.hash(),
            "released": hashlib.sha256(str(self.released).encode()).hexdigest(),
            "limits": asdict(self.limits),
            "code": code_hash(),
            "secret": secret_id(self.secret),
        }
        self.writer = Writer(assignment, book, self.store, self._failed)

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

        Raises NoSandbox before any of them, if this machine can run none; ExecutorLost if none can
        be run any longer.
        """
        if not waiting:
            return
        with ExitStack() as stack:
            self.executor.ready()
            pool = stack.enter_context(ThreadPoolExecutor(MOST_AT_ONCE))
            stack.callback(pool.shutdown, cancel_futures=True)
            running: dict[Future[Graded], tuple[int, Submission]] = {}
            left = list(reversed(waiting))

            def start_others() -> None:
                while left and len(running) < min(self.executor.room(), MOST_AT_ONCE):
                    number, submission = left.pop()
                    show.started(submission.student)
                    running[pool.submit(self._grade, submission)] = (number, submission)

            # Runs before the pool waits for its threads.
            stack.push(lambda kind, *_: self.executor.stop() if kind else None)
            while left or running:
                start_others()
                # Looks again every second: workers that join make room for more.
                for future in wait(running, timeout=1.0, return_when="FIRST_COMPLETED").done:
                    number, submission = running.pop(future)
                    start_others()  # they run while this one is written
                    record = self.writer.write(submission, future.result())
                    show.finished(record)
                    yield number, record

    def _grade(self, submission: Submission) -> Graded:
        """One submission, in its own thread; whatever happens, it ends in a record."""
        try:
            files = submission.read()
            notebook = read_notebook.read(files.notebook)
            assemble.require_assignment(notebook, self.released, self.assignment)
            assembled = assemble.assemble(notebook, self.released)
            return self._run(submission, files, assembled)
        except ExecutorLost:  # it says nothing about the submission
            raise
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

    def _run(self, submission: Submission, files: Files, assembled: assemble.Assembled) -> Graded:
        student, notebook = submission.student, self.judging.to_run(assembled.notebook)
        content = digest(files.notebook, files.beside)
        key = submission_key(self.secret, self.assignment, student, content)
        result = self.executor.run_submission(student, key, pack(notebook, files.beside))
        state, reason, questions = result.state, result.reason, self.judging.nothing()
        try:
            questions = self.judging.questions(notebook, result)
        except ValueError as error:
            if state.has_score:
                state, reason = State.GRADING_ERROR, str(error)[:500]
        late = late_answers(self.judging, questions)
        if late and state == State.GRADED:
            state, reason, late = State.ANSWER_LATE, "; ".join(late)[:500], ()
        record = self._record(
            submission,
            state,
            reason,
            questions=questions,
            remarks=assembled.remarks + result.remarks + late + notes(questions),
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
            **self._key_of_run,
        )
