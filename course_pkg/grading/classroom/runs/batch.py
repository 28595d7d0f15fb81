"""Grade the submissions of one run: several at a time, their results written one after the other.

Every submission ends in a record, whatever it does and whatever goes wrong. An error of the grader
itself is a state like the others, and does not stop the other submissions.

Chapter: appendix/for-instructors.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from course_pkg.grading.assemble import Assembled, OtherAssignment, notebook_to_run
from course_pkg.grading.classroom.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.local_executor import ExecutorLost, LocalExecutor, pack
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunLimits
from course_pkg.grading.classroom.feedback import outputs
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.graded_notebook import with_results
from course_pkg.grading.classroom.results.grade_key import judging_hash, notebook_hash
from course_pkg.grading.classroom.results.keys import digest, secret, secret_id, submission_key
from course_pkg.grading.classroom.results.record import Record, State
from course_pkg.grading.classroom.results.store import Store, content_key
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.classroom.runs.recorder import Graded, Recorder
from course_pkg.grading.classroom.runs.scoring import CheckerScoring, NotebookScoring
from course_pkg.grading.classroom.submissions.folders import Refused
from course_pkg.grading.classroom.submissions.submission import Files, Submission
from course_pkg.grading.questions.question_record import notes, unjudged
from course_pkg.grading.read_notebook import Unreadable

if TYPE_CHECKING:
    from course_pkg.grading.classroom.cluster.cluster_executor import ClusterExecutor

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
        assignment: ClassAssignment,
        limits: RunLimits,
        book: CourseGradebook,
        executor: "LocalExecutor | ClusterExecutor | None",
    ) -> None:
        self._course = course
        self._assignment = assignment.name
        self._executor = executor
        if assignment.gpu == "none":  # or a limit without an effect would change the key
            limits = replace(limits, gpu_bytes=None)
        self._limits = limits
        self._released = book.ensure_assignment(assignment.name)
        self._scoring = (
            CheckerScoring(assignment, self._released)
            if assignment.checks
            else NotebookScoring(self._released, book.locked_sources(assignment.name))
        )
        self._secret = secret(course)
        self.store = Store(course, self._secret)
        self._key_of_run = {
            "checks": self._scoring.hash,
            "released": notebook_hash(self._released),
            "limits": asdict(limits),
            "judging": judging_hash(),
            "secret": secret_id(self._secret),
        }
        self.recorder = Recorder(assignment.name, book, self.store, self._failed)

    def known(self, submission: Submission) -> Record | None:
        """The stored record, if grading the submission again would give the same one.

        A record that somebody else has changed is given too: it is for the instructor to look at.
        """
        record = self.store.load(self._assignment, submission.student)
        if record is None or record.state == State.RECORD_CHANGED:
            return record
        folder = self._course / "autograded" / submission.student / self._assignment
        unfinished = record.state in (State.GRADING_ERROR, State.WAITING)
        if unfinished or submission.student not in self.recorder.points:
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
            self._executor.ready()
            pool = stack.enter_context(ThreadPoolExecutor(MOST_AT_ONCE))
            stack.callback(pool.shutdown, cancel_futures=True)
            running: dict[Future[Graded], tuple[int, Submission]] = {}
            left = list(reversed(waiting))

            def start_others() -> None:
                while left and len(running) < min(self._executor.room(), MOST_AT_ONCE):
                    number, submission = left.pop()
                    show.started(submission.student)
                    running[pool.submit(self._grade, submission)] = (number, submission)

            # Runs before the pool waits for its threads.
            stack.push(lambda kind, *_: self._executor.stop() if kind else None)
            while left or running:
                start_others()
                # Looks again every second: workers that join make room for more.
                for future in wait(running, timeout=1.0, return_when="FIRST_COMPLETED").done:
                    number, submission = running.pop(future)
                    start_others()  # they run while this one is written
                    record = self.recorder.write(submission, future.result())
                    show.finished(record)
                    yield number, record

    def _grade(self, submission: Submission) -> Graded:
        """One submission, in its own thread; whatever happens, it ends in a record."""
        content = ""
        try:
            files = submission.read()
            content = digest(files.notebook, files.beside)
            assembled = notebook_to_run(files.notebook, self._released, self._assignment)
            return self._run(submission, files, assembled)
        except ExecutorLost:  # it says nothing about the submission
            raise
        except NoGpu as error:
            return Graded(self._record(submission, State.WAITING, str(error), files=content))
        except (Refused, OtherAssignment) as error:
            return Graded(self._record(submission, State.REFUSED, str(error)))
        except Unreadable as error:
            return Graded(self._record(submission, State.UNREADABLE, str(error), files=content))
        except Exception as error:  # the grader's own error must not stop the other submissions
            return Graded(self._failed(submission, f"{type(error).__name__}: {error}"))

    def _run(self, submission: Submission, files: Files, assembled: Assembled) -> Graded:
        scoring = self._scoring
        notebook = scoring.to_run(nbformat.from_dict(assembled.notebook))
        content = digest(files.notebook, files.beside)
        key = submission_key(self._secret, self._assignment, submission.student, content)
        packed = pack(notebook, files.beside)
        called = submission.called
        result = self._executor.run_submission(submission.student, key, packed, called)
        state = result.state
        reason = result.reason
        questions = scoring.nothing()
        try:
            questions = scoring.questions(notebook, result)
        except ValueError as error:
            if state.has_score:
                state = State.GRADING_ERROR
                reason = str(error)[:500]
        late = scoring.late_answers(questions)
        if late and state == State.GRADED:
            state = State.ANSWER_LATE
            reason = "; ".join(late)[:500]
            late = ()
        told = tuple(text for text in unjudged(questions) if not reason or reason not in text)
        record = self._record(
            submission,
            state,
            reason,
            questions=questions,
            remarks=(
                *_not_run(files),
                *assembled.remarks,
                *result.remarks,
                *late,
                *notes(questions),
                *told,
            ),
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
        return Graded(record, with_results(notebook, record, scoring.by_cell, shown), files.beside)

    def _record(
        self, submission: Submission, state: State, reason: str, **fields: object
    ) -> Record:
        record = Record(
            submission.student,
            self._assignment,
            state,
            reason,
            self._scoring.nothing(),
            sandbox="bubblewrap" if self._limits.sandboxed else NO_SANDBOX,
            unprotected=self._scoring.unprotected,
            graded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return replace(record, **fields)

    def _failed(self, submission: Submission, reason: str) -> Record:
        return self._record(submission, State.GRADING_ERROR, reason[:500])

    def _key(self, submission: Submission, files: Files) -> str:
        return content_key(
            student=submission.student,
            called=submission.called,
            files=digest(files.notebook, files.beside),
            **self._key_of_run,
        )


def _not_run(files: Files) -> tuple[str, ...]:
    """A remark about notebooks that are beside the one that was run."""
    if not files.not_run:
        return ()
    return (f"beside the notebook that was run, there was {', '.join(files.not_run[:5])}",)
