"""Grade the submissions of one run: several at a time, their results written one after the other.

Every submission ends in a record, whatever it does and whatever goes wrong; an error of the grader
itself is a state like the others.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbformat import NotebookNode

from course_pkg.common.files import disk_is_full
from course_pkg.grading.assemble import Assembled, OtherAssignment, notebook_to_run
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.grade_key import judging_hash, notebook_hash
from course_pkg.grading.classroom.execution.local_executor import ExecutorLost, LocalExecutor, pack
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunLimits, State
from course_pkg.grading.classroom.feedback import outputs
from course_pkg.grading.classroom.gradebook.class_rows import Points, class_points
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.graded_notebook import with_results
from course_pkg.grading.classroom.gradebook.keys import digest, secret, secret_id, submission_key
from course_pkg.grading.classroom.gradebook.record import Record, Store, content_key
from course_pkg.grading.classroom.gradebook.students import students
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.classroom.runs.scoring import CheckerScoring, NotebookScoring
from course_pkg.grading.classroom.submissions.collect import Files, Submission
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.grading.classroom.submissions.sources import Refused
from course_pkg.grading.questions.question_record import notes, unjudged
from course_pkg.grading.read_notebook import Unreadable

if TYPE_CHECKING:
    from course_pkg.grading.classroom.cluster.cluster_executor import ClusterExecutor


KEPT = "it was not graded again, because there is no GPU: this is its earlier score"
EARLIER = "the gradebook still has the score of an earlier submission"
NO_TIME = "Moodle's zip doesn't say when it was submitted: give the grading worksheet with --roster"
NO_SANDBOX = "NONE: --unsafe-no-sandbox"
MEASURED = ("peak_bytes", "limits", "gpu", "gpu_peak_bytes")  # by the executor
MOST_AT_ONCE = 512  # submissions that wait for their results, each in a thread


@dataclass(frozen=True)
class Graded:
    """A submission's record, with the notebook (None if it was not run) and the files to keep."""

    record: Record
    notebook: NotebookNode | None = None
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorder:
    """Records the results of one run: in nbgrader's gradebook first, then in the signed record.

    Attributes:
        failed: the record of a failure of the grader, with why.
        points, students: of the gradebook, before the run.
        has_due_date: whether a submission to the assignment can be late.
    """

    assignment: str
    book: CourseGradebook
    store: Store
    failed: Callable[[Submission, str], Record]
    points: Mapping[str, Points]
    students: Collection[str]
    has_due_date: bool

    def write(self, submission: Submission, graded: Graded) -> Record:
        """Write the gradebook, then the record; if the student's id is impossible, write nothing.

        A refused submission adds nobody to the gradebook, and one that waits changes nothing there.
        What can't be written is the grader's failure, for this submission alone; only a full disk
        raises OSError.
        """
        if not valid_student(submission.student):
            return graded.record
        began = time.monotonic()
        try:
            before = self.store.load(self.assignment, submission.student)
            record = graded.record
            if not submission.trusted:
                submission = replace(
                    submission, timestamp=self._timestamp(submission, before, record)
                )
            if submission.timestamp is None and submission.layout == "moodle" and self.has_due_date:
                record = replace(record, remarks=(*record.remarks, NO_TIME))
            if record.state == State.WAITING:
                return self._wait(submission, before, record)
            graded = replace(graded, record=record)
            self.store.forget(self.assignment, submission.student)
            if record.state != State.REFUSED or submission.student in self.students:
                record = self._in_gradebook(submission, graded)
            record = replace(record, write_s=round(time.monotonic() - began, 3))
            self.store.save(record)
            return record
        except (OSError, ValueError) as error:
            if disk_is_full(error):  # every other submission would fail too: the run ends here
                raise
            return self.failed(submission, f"its record could not be written ({error})")

    def _wait(self, submission: Submission, before: Record | None, record: Record) -> Record:
        """Store that a submission waits; if the same files have a score, that stays instead."""
        known = submission.student in self.points
        if before and known and before.state.has_score and before.files == record.files:
            self.update_time(submission)
            return replace(before, remarks=(*before.remarks, KEPT))
        when = submission.timestamp
        record = replace(
            record,
            remarks=(*record.remarks, *([EARLIER] if known else [])),
            submitted="" if when is None else when.isoformat(),
        )
        self.store.save(record)
        return record

    def update_time(self, submission: Submission) -> None:
        """Write a newly known time of a submission that need not be graded again."""
        points = self.points.get(submission.student)
        if submission.trusted and points and points.submitted != submission.timestamp:
            self.book.set_timestamp(self.assignment, submission.student, submission.timestamp)

    def _timestamp(
        self, submission: Submission, before: Record | None, record: Record
    ) -> datetime | None:
        """When the same files were submitted, if an earlier run knew it, else the files' time."""
        points = self.points.get(submission.student)
        earlier = points.submitted if points else None
        if before and before.state == State.WAITING:  # the gradebook knows at most an earlier one
            earlier = datetime.fromisoformat(before.submitted) if before.submitted else None
        files = before.files if before else ""
        known = files and record.files
        same = files == record.files if known else submission.timestamp is None
        return earlier if same and earlier else submission.timestamp

    def _in_gradebook(self, submission: Submission, graded: Graded) -> Record:
        """Write to the gradebook; what can't be written as it is, is written as our failure."""
        last = (submission.timestamp, submission.person)
        try:
            self.book.write(graded.record, graded.notebook, graded.files, *last)
            return graded.record
        except (OSError, ValueError) as error:
            if disk_is_full(error):  # the earlier score stays
                raise
            reason = f"it could not be written ({type(error).__name__}: {error})"
            record = self.failed(submission, reason)
            self.book.write(record, None, {}, *last)
            return record


def as_they_end(
    executor: "LocalExecutor | ClusterExecutor",
    waiting: list[tuple[int, Submission]],
    grade: Callable[[Submission], Graded],
    started: Callable[[str], None],
) -> Iterator[tuple[int, Submission, Graded]]:
    """The numbered submissions with what grading gave, in the order in which they end.

    As many run at a time as the executor has room for, each in a thread. Others start before the
    next one is given, so they run while it is written. An error stops the executor.
    """
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(MOST_AT_ONCE))
        stack.callback(pool.shutdown, cancel_futures=True)
        running: dict[Future[Graded], tuple[int, Submission]] = {}
        left = list(reversed(waiting))

        def start_others() -> None:
            while left and len(running) < min(executor.room(), MOST_AT_ONCE):
                number, submission = left.pop()
                started(submission.student)
                running[pool.submit(grade, submission)] = (number, submission)

        # Runs before the pool waits for its threads.
        stack.push(lambda kind, *_: executor.stop() if kind else None)
        while left or running:
            start_others()
            # Looks again every second: workers that join make room for more.
            for future in wait(running, timeout=1.0, return_when="FIRST_COMPLETED").done:
                number, submission = running.pop(future)
                start_others()
                yield number, submission, future.result()


class Batch:
    """The submissions of one run, and what they share; book and executor are for it alone."""

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
        self.recorder = Recorder(
            assignment.name,
            book,
            self.store,
            self._failed,
            points=class_points(book, assignment.name),
            students={person.id for person in students(book).people},
            has_due_date=book.late_without_time(assignment.name) is not None,
        )

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
        """Grade and write the numbered submissions; their records, in the order of their ends."""
        if not waiting:
            return
        self._executor.ready()
        ended = as_they_end(self._executor, waiting, self._grade, show.started)
        with closing(ended):
            for number, submission, graded in ended:
                record = self.recorder.write(submission, graded)
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
        others = ", ".join(files.not_run[:5])
        beside = [f"beside the notebook that was run, there was {others}"] if others else []
        told = tuple(text for text in unjudged(questions) if not reason or reason not in text)
        record = self._record(
            submission,
            state,
            reason,
            questions=questions,
            remarks=(*beside, *assembled.remarks, *result.remarks, *late, *notes(questions), *told),
            start_s=round(result.start_s, 3),
            run_s=round(result.run_s, 3),
            files=content,
            key=self._key(submission, files),
            **{name: getattr(result, name) for name in MEASURED},
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
