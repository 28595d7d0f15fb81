"""nbgrader's gradebook and its folder `autograded/`: this module is the only writer of both.

It writes the same rows, files and permissions as `nbgrader autograde`, so formgrader,
generate_feedback and export work. Two things differ. A submission is written in one transaction
through nbgrader's API, whose own preprocessor commits after every cell. And points given by hand
must be reviewed after the answer has changed, also those of written tasks.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.classroom.gradebook.autograded import (
    course_files,
    difference,
    one_name,
    replace_folder,
)
from course_pkg.grading.classroom.gradebook.changed_cells import add_new_cells
from course_pkg.grading.classroom.gradebook.graded_notebook import (
    has_grade_id,
    points_shown,
    with_note,
    with_nothing,
    work_by_grade,
)
from course_pkg.grading.classroom.gradebook.nbgrader_api import (
    GradebookError,
    configured,
    explained,
    opened,
    save_person,
)
from course_pkg.grading.classroom.gradebook.penalties import assign_penalties
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.classroom.release import release_assignment
from course_pkg.grading.classroom.submissions.roster import Person

# Canvas says that a submission is late, but not by how much.
LATE_WITHOUT_TIME = timedelta(minutes=1)


class CourseGradebook:
    """The gradebook of a course; a context manager that closes it."""

    def __init__(self, course: Path) -> None:
        self.course = course.resolve()
        self._nbgrader = configured(self.course)
        self._folders = self._nbgrader.folders
        self.penalty_plugin = self._nbgrader.penalties.plugin_inst  # as the course configured
        self._released: dict[str, NotebookNode] = {}
        self.nbgrader_book, self._lock = opened(self._folders)

    def __enter__(self) -> "CourseGradebook":
        return self

    def __exit__(self, *_: object) -> None:
        self.nbgrader_book.close()
        self._lock.close()

    @contextmanager
    def grading(self, assignment: str) -> Iterator[None]:
        """A block that grades an assignment. Raises GradebookError if another machine does."""
        with explained(self._lock.fix), self._lock.grading(self._folders.course_id, assignment):
            yield

    def ensure_assignment(self, assignment: str) -> NotebookNode:
        """The released notebook; released again first if the gradebook has other cells.

        Call it before anything reads exercises/. Raises ReleaseError, GradebookError.
        """
        with self.reading():  # ends before the release, which writes to the same file of SQLite
            differs = self._differs(assignment)
        if differs is not None:
            folders = self._folders.source_directory, self._folders.release_directory
            self.add_new_cells(assignment)
            with explained(self._lock.fix), self._lock.alone():  # two would both add the course
                release_assignment(self.course, assignment, *folders)
            self._released.clear()
            with self.reading():
                differs = self._differs(assignment)
            if differs is not None:
                raise GradebookError(
                    f"the gradebook and {folders[1]}/{assignment} differ ({differs}): restore "
                    f"{folders[1]}/{assignment}, or release it again"
                )
        return self.released(assignment)

    def released(self, assignment: str) -> NotebookNode:
        if assignment not in self._released:
            path = self._folder(self._folders.release_directory, ".", assignment)
            text = path / f"{assignment}.ipynb"
            self._released[assignment] = nbformat.read(text, as_version=4)
        return self._released[assignment]

    def add_new_cells(self, assignment: str) -> list[str]:
        """Prepare a release with new cells for graded submissions: see `changed_cells`."""
        source = self._folder(self._folders.source_directory, ".", assignment)
        with self.transaction():
            return add_new_cells(self.nbgrader_book, source, assignment)

    def locked_sources(self, assignment: str) -> dict[str, str]:
        """The sources of the locked cells by grade id, with hidden tests and mark schemes."""
        with self.reading():
            cells = self.nbgrader_book.find_notebook(assignment, assignment).source_cells
            return {cell.name: cell.source for cell in cells if cell.locked}

    def write(
        self,
        record: Record,
        notebook: NotebookNode | None,
        files: dict[str, bytes],
        timestamp: datetime | None,
        person: Person | None = None,
    ) -> None:
        """Write one graded submission: its folder, then its scores, each whole or not at all.

        Args:
            notebook: with results; None for a submission that was not run.
            files: the other files of the submission, by relative path.
            timestamp: of the submission, in UTC if it has no zone.

        Raises:
            ValueError: scores and record differ, or a path leaves the folder.
        """
        student = one_name(record.student, "student's id")
        assignment = one_name(record.assignment, "assignment")
        ran = notebook is not None
        shown = with_note(notebook if ran else with_nothing(self.released(assignment)), record)
        if (points := points_shown(shown)) != record.score:
            raise ValueError(
                f"the tests show {points} points; expected {record.score}, as in the record"
            )
        with self.transaction():
            self._restore(assignment, shown)
            before = self._work(student, assignment)
            self._write_folder(student, assignment, shown, files, timestamp)
            save_person(self.nbgrader_book, person or Person(student))
            now = work_by_grade(shown)
            changed = {name for name, work in now.items() if work != before.get(name)}
            self._write_scores(student, assignment, shown, timestamp, ran, changed)

    def refresh_penalties(self, assignment: str) -> None:
        with self.transaction():
            assign_penalties(self.nbgrader_book, self.penalty_plugin, assignment)

    def late_without_time(self, assignment: str) -> datetime | None:
        """The time for a late submission whose time is unknown; None without a due date."""
        due = self._due(assignment)
        return due and due.replace(tzinfo=UTC) + LATE_WITHOUT_TIME

    def set_timestamp(self, assignment: str, student: str, timestamp: datetime) -> None:
        """Set when a student submitted, in UTC if the time has no zone."""
        with self.transaction():
            self.nbgrader_book.update_or_create_submission(assignment, student, timestamp=timestamp)

    def extend(self, assignment: str, student: str, hours: float) -> None:
        from nbgrader.api import MissingEntry

        if self._due(assignment) is None:
            raise GradebookError(
                f"{assignment} has no due date: set it with `nbgrader db assignment add "
                f'{assignment} --duedate="2026-03-01 12:00 UTC"`'
            )
        with self.transaction():
            try:
                self.nbgrader_book.grant_extension(assignment, student, hours=hours)
            except MissingEntry:
                raise GradebookError(
                    f"{student} has no graded submission to {assignment}: grade it first, then "
                    "extend"
                ) from None
        self.refresh_penalties(assignment)

    def _due(self, assignment: str) -> datetime | None:
        from nbgrader.api import MissingEntry

        with self.reading():
            try:
                return self.nbgrader_book.find_assignment(assignment).duedate
            except MissingEntry:
                return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose changes are all kept, or none of them. Raises GradebookError."""
        with self.reading():
            yield
            self.nbgrader_book.db.commit()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block whose changes are dropped. Raises GradebookError."""
        with explained(self._lock.fix), self._lock.alone():
            try:
                yield
            finally:
                self.nbgrader_book.db.rollback()

    def _folder(self, step: str, student: str, assignment: str) -> Path:
        return Path(self._folders.format_path(step, student, assignment))

    def _differs(self, assignment: str) -> str | None:
        from nbgrader.api import MissingEntry

        try:
            known = self.nbgrader_book.find_assignment(assignment).notebooks
            return difference(known, self.released(assignment), assignment)
        except (MissingEntry, FileNotFoundError) as error:
            return str(error)

    def _restore(self, assignment: str, notebook: NotebookNode) -> None:
        """Restore the source of locked cells, mark schemes included, as nbgrader does."""
        known = self.nbgrader_book.find_notebook(assignment, assignment)
        sources = {source.name: source for source in known.source_cells}
        cells = {c.metadata.nbgrader.grade_id: c for c in notebook.cells if has_grade_id(c)}
        if set(cells) != set(sources):
            odd = ", ".join(sorted(set(cells) ^ set(sources)))
            raise ValueError(f"the notebook and the gradebook do not have the same cells: {odd}")
        for name, cell in cells.items():
            source = sources[name]
            cell.metadata.nbgrader.checksum = source.checksum
            if source.locked:
                cell.source = source.source

    def _work(self, student: str, assignment: str) -> dict[str, list[str]]:
        folder = self._folder(self._folders.autograded_directory, student, assignment)
        try:
            return work_by_grade(nbformat.read(folder / f"{assignment}.ipynb", as_version=4))
        except Exception:  # there is none, or somebody else has changed it
            return {}

    def _write_folder(
        self,
        student: str,
        assignment: str,
        notebook: NotebookNode,
        files: dict[str, bytes],
        timestamp: datetime | None,
    ) -> None:
        ours = course_files(self._folder(self._folders.release_directory, ".", assignment))
        text = nbformat.writes(notebook) + "\n"
        ours[f"{assignment}.ipynb"] = text.encode("utf-8", "replace")
        if timestamp is not None:
            ours["timestamp.txt"] = timestamp.isoformat().encode()
        target = self._folder(self._folders.autograded_directory, student, assignment)
        page = f"{assignment}.html"  # nbgrader copies all files beside its feedback, which this is
        theirs = {
            name: data
            for name, data in files.items()
            if not _collides(name, {*ours, page}) and not _another_notebook(name)
        }
        replace_folder(target, {**theirs, **ours}, self._nbgrader.mode)

    def _write_scores(
        self,
        student: str,
        assignment: str,
        notebook: NotebookNode,
        timestamp: datetime | None,
        ran: bool,
        changed: Collection[str],
    ) -> None:
        """Write the points of every graded cell.

        Points by hand stay. They are to be reviewed if the answer (its cell is in `changed`), or
        the automatic points of the cell, are not those for which they were given.
        """
        from nbgrader.utils import compute_checksum, determine_grade, is_grade, is_solution, is_task

        with self.nbgrader_book.db.no_autoflush:  # nbgrader builds the rows before it adds them
            submission = self.nbgrader_book.update_or_create_submission(
                assignment, student, timestamp=timestamp
            )
        (submitted,) = submission.notebooks
        grades = {grade.name: grade for grade in submitted.grades}
        comments = {comment.name: comment for comment in submitted.comments}
        for cell in filter(has_grade_id, notebook.cells):
            name = cell.metadata.nbgrader.grade_id
            if is_grade(cell) or is_task(cell):
                grade = grades[name]
                earlier = grade.auto_score
                if is_task(cell):
                    grade.auto_score = None if ran else 0
                else:
                    grade.auto_score, _ = determine_grade(cell)
                if grade.manual_score is None:
                    grade.needs_manual_grade = grade.auto_score is None
                elif name in changed or grade.auto_score != earlier:
                    grade.needs_manual_grade = True
            if is_solution(cell) or is_task(cell):
                empty = compute_checksum(cell) == cell.metadata.nbgrader.checksum
                silent = empty and not is_task(cell)
                comments[name].auto_comment = "No response." if silent else None
        assign_penalties(self.nbgrader_book, self.penalty_plugin, assignment, student)


def _another_notebook(name: str) -> bool:
    """Whether nbgrader would take a student's file for a second notebook of the assignment."""
    return "/" not in name and name.lower().endswith(".ipynb")


def _collides(name: str, ours: Collection[str]) -> bool:
    """Whether a student's file has the path of one of the course's files or folders."""
    return any(f"{name}/".startswith(f"{o}/") or o.startswith(f"{name}/") for o in ours)
