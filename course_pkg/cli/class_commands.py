"""The commands of `course` about a class: results, export-grades, extend, and students."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK
from course_pkg.common.terminal import for_terminal

if TYPE_CHECKING:
    from course_pkg.grading.classroom.gradebook.class_rows import Row
    from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook


Assignment = Annotated[str, typer.Argument(help="The assignment, such as lora-math.")]
Student = Annotated[str, typer.Argument(help="The student's id.")]


class GradesFormat(StrEnum):
    """Whose CSV the grades are written as."""

    CSV = "csv"
    MOODLE = "moodle"
    CANVAS = "canvas"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (results, export_grades, extend, remove_student, rename_student):
        app.command()(command)


def results(assignment: Assignment) -> None:
    """Write results/ again from the gradebook.

    Do so after manual grading or a change of due dates. Run this in the course's folder. Nothing
    is graded. Exit code 2: the files are not usable.
    """
    from course_pkg.grading.classroom.feedback import class_report

    with _gradebook(f"course results {assignment}") as book:
        _rows(book, assignment)
    typer.echo(f"grades and reports: {class_report.folder(assignment)}/")


def export_grades(
    assignment: Assignment,
    form: Annotated[
        GradesFormat, typer.Option("--format", help="Whose CSV: your own, Moodle's or Canvas's.")
    ] = GradesFormat.CSV,
    template: Annotated[
        Path | None,
        typer.Option(help="Moodle's grading worksheet, or Canvas's gradebook, to fill in."),
    ] = None,
    column: Annotated[
        str, typer.Option(help="The assignment's column in Canvas's gradebook.")
    ] = "",
) -> None:
    """Write the scores as a CSV that Moodle or Canvas imports.

    Run this in the course's folder. For Moodle, nbgrader's feedback is packed too, if there is any.
    Exit code 1: the file is written, but some students are not in it. 2: the files are not usable.
    """
    from course_pkg.common.files import write_atomically
    from course_pkg.grading.classroom.execution.runner_output import State
    from course_pkg.grading.classroom.feedback import class_report, lms_export

    course = Path.cwd()
    with _gradebook(f"course export-grades {assignment}") as book:
        rows = _rows(book, assignment)
        folder = course / class_report.folder(assignment)
        if form is GradesFormat.CSV:
            typer.echo((folder / "grades.csv").relative_to(course))
            return
        if form is GradesFormat.MOODLE:
            made = lms_export.moodle(rows, template)
            pages = folder / lms_export.FEEDBACK
            if packed := lms_export.feedback_zip(course, assignment, rows, pages):
                typer.echo(f"{pages.relative_to(course)}: feedback of {packed} students")
        else:
            made = lms_export.canvas(rows, assignment, template, column)
        into = folder / f"{form}.csv"
        if template is None:
            scores = "Grade" if form is GradesFormat.MOODLE else column or assignment
            lms_export.require_own(into, made, scores)
        write_atomically(into, made.text, class_report.MODE)
    typer.echo(f"{into.relative_to(course)}: scores of {made.written} students")
    to_mark = sum(bool(row.points and row.points.to_mark and not row.waits) for row in rows)
    notes = list(made.notes)
    if to_mark:
        have = "student has" if to_mark == 1 else "students have"
        notes.append(f"{to_mark} {have} points that wait for a person")
    if waiting := [row.student for row in rows if row.waits]:
        notes.append(f"no score yet, because they wait for a GPU: {', '.join(waiting)}")
    unread = [
        row.student
        for row in rows
        if row.state in (State.REFUSED, State.UNREADABLE) and row.score is not None
    ]
    if unread:
        notes.append(f"0 points because nothing could be read: {', '.join(unread)}")
    if form is GradesFormat.MOODLE and (shared := lms_export.shared_numbers(rows)):
        names = [row.student for row in rows if lms_export.number(row.person) in shared]
        notes.append(f"no feedback is packed of students with the same number: {', '.join(names)}")
    if form is GradesFormat.MOODLE and (old := lms_export.old_feedback(course, assignment, rows)):
        notes.append(
            f"feedback is older than the grade: {', '.join(old)}; run `nbgrader generate_feedback "
            f"{assignment} --force`, then this command again"
        )
    for note in notes:
        typer.echo(for_terminal(f"note: {note}"), err=True)
    for doubt in made.doubts:
        typer.echo(for_terminal(f"no score written: {doubt}"), err=True)
    if made.left_out:
        left_out = ", ".join(made.left_out)
        typer.echo(for_terminal(f"not in the file: {left_out}"), err=True)
    if made.doubts or made.left_out:
        raise typer.Exit(NEEDS_A_LOOK)


def extend(
    assignment: Assignment,
    student: Student,
    hours: Annotated[float, typer.Option(min=0, help="Hours after the due date; 0 for none.")],
) -> None:
    """Give a student more time for an assignment.

    The late penalty is computed again. Run this in the course's folder, after grading. Exit code
    2: there is no such submission, or no due date.
    """
    with _gradebook(f"course extend {assignment}") as book:
        book.extend(assignment, student, hours)
        (row,) = [row for row in _rows(book, assignment) if row.student == student]
    late = f"{row.points.late_s / 3600:.1f} h late" if row.points.late_s else "not late"
    typer.echo(f"{student}: {late}, score {row.points.score:g} of {row.points.max_score:g}")


def remove_student(
    student: Student,
    assignment: Annotated[
        str | None, typer.Option(help="Remove only the submission to this assignment.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Remove a student from the gradebook and the files.

    That includes results, feedback, graded copies and submitted/. Run this in the course's
    folder. It lists what it will delete, and asks. Files for Moodle and Canvas are deleted too:
    export them again. Exit code 1: not confirmed. 2: no such student.
    """
    from course_pkg.grading.classroom.gradebook import students

    course = Path.cwd()
    with _gradebook(f"course remove-student {student}") as book:
        students.require_known(book, student, assignment)
        files = students.traces(course, student, assignment)
        what = f"the submission to {assignment}" if assignment else "everything"
        typer.echo(f"{what} of {student} in the gradebook and results/{', and:' if files else ''}")
        for path in files:
            typer.echo(f"  {path.relative_to(course)}")
        if not yes:
            typer.confirm("Delete this?", abort=True)
        for name in students.remove_student(book, student, assignment):
            _rows(book, name)
            _forget_exports(course, name)
    typer.echo(f"removed {student}")


def rename_student(
    old: Annotated[str, typer.Argument(help="The id to replace.")],
    new: Annotated[str, typer.Argument(help="The id to use from now on.")],
) -> None:
    """Give a student another id.

    Submissions, marks, results, feedback and files in submitted/ move to it. The next `course
    grade` draws the new id's cases. Files for Moodle and Canvas are deleted: export them again.
    Exit code 2: no such student, or both ids have submitted to one assignment.
    """
    from course_pkg.grading.classroom.gradebook import students

    with _gradebook(f"course rename-student {old}") as book:
        for name in students.rename_student(book, old, new):
            _rows(book, name)
            _forget_exports(book.course, name)
    typer.echo(f"{old} is {new} now")


def _forget_exports(course: Path, assignment: str) -> None:
    """Delete the files for Moodle and Canvas, in which a student is wrong now."""
    from course_pkg.grading.classroom.feedback import class_report, lms_export

    for export in lms_export.FILES:
        (course / class_report.folder(assignment) / export).unlink(missing_ok=True)


def _rows(book: "CourseGradebook", assignment: str) -> "list[Row]":
    """The rows of a class, after writing its report."""
    from course_pkg.grading.classroom.feedback import class_report
    from course_pkg.grading.classroom.gradebook.class_rows import class_rows
    from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookError, find_assignment

    if "/" in assignment or assignment.startswith("."):
        raise GradebookError(f"{assignment!r} is not the name of an assignment")
    folder = book.course / class_report.folder(assignment)
    if not folder.exists() and not any(
        row.record or row.points for row in class_rows(book, assignment)
    ):
        find_assignment(book.course, assignment)
        raise GradebookError(f"nothing has been graded for {assignment!r}")
    return class_report.write(book.course, assignment, class_rows(book, assignment))


@contextmanager
def _gradebook(doing: str) -> "Iterator[CourseGradebook]":
    """The course's gradebook, locked. A folder without a course stays as it is."""
    from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
    from course_pkg.grading.classroom.gradebook.keys import FOLDER, course_lock
    from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookError
    from course_pkg.grading.classroom.release import require_course

    require_course(Path.cwd())
    if not (Path.cwd() / FOLDER).is_dir():
        raise GradebookError("nothing has been graded in this course's folder")
    with course_lock(Path.cwd(), doing), CourseGradebook(Path.cwd()) as book:
        yield book
