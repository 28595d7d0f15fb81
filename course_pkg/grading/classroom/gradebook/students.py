"""The students in nbgrader's gradebook: added from a roster, and removed with all their files."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookError, save_person
from course_pkg.grading.classroom.gradebook.record import Store
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.grading.classroom.submissions.roster import Person, Roster, folded

if TYPE_CHECKING:
    from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook


FOLDERS = ("submitted", "autograded", "feedback")


def save_roster(book: "CourseGradebook", roster: Roster) -> None:
    """Add the students of a roster, with their names; nobody is removed."""
    with book.transaction():
        for person in roster.people:
            save_person(book.nbgrader_book, person)


def students(book: "CourseGradebook") -> Roster:
    """The students of the gradebook, as a roster that is not complete: others may submit too."""
    with book.reading():
        return Roster(map(_person, book.nbgrader_book.students), complete=False)


def _person(row: Any) -> Person:
    fields = (row.id, row.first_name, row.last_name, row.email, row.lms_user_id)
    return Person(*(text or "" for text in fields))


def with_known_ids(roster: Roster, known: Roster) -> Roster:
    """The roster, with the gradebook's spelling of an id that differs in case alone."""
    spelled = {folded(person.id): person.id for person in known.people}
    people = (replace(p, id=spelled.get(folded(p.id), p.id)) for p in roster.people)
    return Roster(people, roster.complete, roster.refused)


def rename_student(book: "CourseGradebook", old: str, new: str) -> list[str]:
    """Give a student another id, with submissions, marks, files and records; the assignments.

    What the gradebook knows of the new id stays.
    """
    from nbgrader.api import SubmittedAssignment
    from sqlalchemy import update

    if not valid_student(new):
        raise GradebookError(f"{new!r} can't be a student's id")
    require_known(book, old)
    store = Store(book.course, secret(book.course))
    inner = book.nbgrader_book
    with book.reading():
        people = {row.id: _person(row) for row in inner.students}
        has = {who: set() for who in (old, new)}
        for who in people.keys() & has.keys():
            has[who] = {submission.name for submission in inner.student_submissions(who)}
    both = has[old] & has[new]
    both |= {
        name for name in store.assignments() if all(store.path(name, who).exists() for who in has)
    }
    taken = [name for name in FOLDERS if (book.course / name / new).exists()]
    moved = [name for name in FOLDERS if (book.course / name / old).exists()]
    if clash := sorted(both) or sorted({*taken} & {*moved}):
        raise GradebookError(
            f"both {old} and {new} have submitted ({', '.join(clash)}): remove one submission with "
            f"`course remove-student ID --assignment NAME` first"
        )
    with book.transaction():
        if old in people:
            save_person(inner, replace(people[old], id=new))
            if new in people:
                save_person(inner, people[new])
            where = SubmittedAssignment.student_id == old
            inner.db.execute(update(SubmittedAssignment).where(where).values(student_id=new))
            inner.db.expire_all()
            inner.remove_student(old)
    for name in moved:
        (book.course / name / old).rename(book.course / name / new)
    flat = book.course / "submitted" / f"{old}.ipynb"
    if flat.is_file():
        flat.rename(flat.with_name(f"{new}.ipynb"))
    changed = set(has[old])
    for name in store.assignments():
        if (record := store.load(name, old)) is not None:
            store.save(replace(record, student=new))
            store.forget(name, old)
            changed.add(name)
    return sorted(changed)


def traces(course: Path, student: str, assignment: str | None = None) -> list[Path]:
    """Every file and folder of a student in the course, or those of one assignment."""
    if not valid_student(student):
        raise GradebookError(f"{student!r} can't be a student's id")
    paths = [course / name / student for name in FOLDERS]
    # The file submitted/ada.ipynb is ada's; a folder of that name is that of a student ada.ipynb.
    paths = [path / (assignment or "") for path in paths if path.is_dir() or path.is_symlink()]
    notebook = course / "submitted" / f"{student}.ipynb"
    if assignment is None and not notebook.is_dir():
        paths.append(notebook)
    store = Store(course, secret(course))
    paths += [store.path(name, student) for name in store.assignments(assignment)]
    return [path for path in paths if path.exists() or path.is_symlink()]


def require_known(book: "CourseGradebook", student: str, assignment: str | None = None) -> None:
    """Raise GradebookError if nothing of a student is known, or nothing of one assignment."""
    if traces(book.course, student, assignment):
        return
    with book.reading():
        known = any(row.id == student for row in book.nbgrader_book.students)
        submissions = book.nbgrader_book.student_submissions(student) if known else []
        submitted = any(s.name == assignment for s in submissions)
    if not known:
        raise GradebookError(f"no student is called {student!r}")
    if assignment is not None and not submitted:
        raise GradebookError(f"{student} has no submission to {assignment}")


def remove_student(
    book: "CourseGradebook", student: str, assignment: str | None = None
) -> list[str]:
    """Remove a student, or one submission, with all traces; the assignments that this changed."""
    from nbgrader.api import MissingEntry

    inner = book.nbgrader_book
    store = Store(book.course, secret(book.course))
    known = [name for name in store.assignments(assignment) if store.path(name, student).exists()]
    files = traces(book.course, student, assignment)
    with book.transaction():
        try:
            submissions = inner.student_submissions(student)
            known += [s.name for s in submissions if assignment in (None, s.name)]
            if assignment is None:
                inner.remove_student(student)
            elif assignment in known:
                inner.remove_submission(assignment, student)
        except MissingEntry:
            if not files:
                raise GradebookError(f"no student is called {student!r}") from None
    for path in files:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in FOLDERS:
        folder = book.course / name / student
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return sorted(set(known))
