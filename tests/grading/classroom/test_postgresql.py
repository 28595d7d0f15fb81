"""The gradebook on a PostgreSQL server: the same rows as in SQLite's file, and two graders."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import text

from course_pkg.grading.classroom.gradebook import server_lock
from course_pkg.grading.classroom.gradebook.class_rows import class_points, class_rows
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookError, save_person
from course_pkg.grading.classroom.gradebook.students import save_roster, students
from course_pkg.grading.classroom.submissions.roster import Person, Roster
from tests.exercises.assignments import ROOT
from tests.grading.classroom import postgresql
from tests.grading.classroom.recorded import ASSIGNMENT, questions, record, unreadable, write, wrong
from tests.waiting import wait_until

SUBMITTED = datetime(2026, 3, 1, 9, 30, 15, tzinfo=timezone(timedelta(hours=-5)))
DUE = "2026-03-01 12:00 UTC"
HOLDS = """
import sys
from pathlib import Path
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
with CourseGradebook(Path(sys.argv[1])) as book, book.grading(sys.argv[2]):
    print("holds", flush=True)
    sys.stdin.read()
"""
here = pytest.mark.skipif(bool(postgresql.missing()), reason=postgresql.missing())


@pytest.fixture(scope="module")
def server(prepared, tmp_path_factory):
    """A server with a database "released", in which the assignment is."""
    server = postgresql.Server()
    root = tmp_path_factory.mktemp("released") / "course"
    shutil.copytree(prepared, root, symlinks=True)
    postgresql.use(root, server.database("released"))
    with CourseGradebook(root) as book:
        book.ensure_assignment(ASSIGNMENT)
    yield server
    server.close()


@pytest.fixture
def shared(course, server, tmp_path):
    """Two folders of one course, whose gradebook is one database; and its name."""
    name = f"course{os.urandom(6).hex()}"
    url = server.database(name, like="released")
    other = tmp_path / "other"
    shutil.copytree(course.root, other, symlinks=True)
    for root in (course.root, other):
        postgresql.use(root, url)
    return course, other, name


def write_class(book: CourseGradebook) -> None:
    book.ensure_assignment(ASSIGNMENT)
    write(book, record("ada"), SUBMITTED)
    lost = record("Zoë O'Neill", questions=questions({"counts": wrong()}))
    write(book, lost, SUBMITTED, person=Person("Zoë O'Neill", "Zoë", "d'Arc 张"))
    write(book, unreadable("dan"))


def together(*doing) -> list[BaseException]:
    """Do things at the same time; the errors."""
    start = threading.Barrier(len(doing))

    def run(one):
        start.wait()
        one()

    with ThreadPoolExecutor(len(doing)) as pool:
        errors = [future.exception() for future in [pool.submit(run, one) for one in doing]]
    return [error for error in errors if error]


# -- without a server


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/course", r"starts with 'mysql'; expected sqlite:///PATH or postgresql\+"),
        ("postgresql+pg8000://host/course", r"a package that is missing .*pip install 'psycopg"),
        ("postgresql+psycopg", r"can't be used .*see that the server of db_url"),
    ],
)
def test_a_db_url_that_is_of_no_use_is_named(course, url, says):
    postgresql.use(course.root, url)
    with pytest.raises(GradebookError, match=says):
        CourseGradebook(course.root)


@here
def test_a_server_that_does_not_answer_is_explained_without_the_password(course):
    postgresql.use(course.root, "postgresql+psycopg://me:sesame@127.0.0.1:9/course")
    with pytest.raises(GradebookError, match="see that the server of db_url") as caught:
        CourseGradebook(course.root)
    assert "sesame" not in str(caught.value) and "\n" not in str(caught.value)


# -- one grader


@here
@pytest.mark.slow
def test_the_gradebook_has_the_same_rows_as_sqlites(course, server, tmp_path):
    sqlite = tmp_path / "sqlite"
    shutil.copytree(course.root, sqlite, symlinks=True)
    postgresql.use(course.root, server.database("rows", like="released"))
    contents = []
    for root in (sqlite, course.root):
        with CourseGradebook(root) as book:
            write_class(book)
            inner = book.nbgrader_book
            inner.update_or_create_assignment(ASSIGNMENT, duedate=DUE)
            book.extend(ASSIGNMENT, "ada", 1)
            rows = list(class_rows(book, ASSIGNMENT))
            submissions = inner.assignment_submissions(ASSIGNMENT)
            cells = {
                (s.student_id, g.name, g.auto_score, g.manual_score, g.needs_manual_grade)
                for s in submissions
                for g in s.notebooks[0].grades
            }
            times = {s.student_id: s.timestamp for s in submissions}
            people = {str(person) for person in students(book).people}
            contents.append((rows, cells, times, people))
    assert contents[0] == contents[1]
    # In UTC, as nbgrader stores it.
    assert contents[1][2]["ada"] == datetime(2026, 3, 1, 14, 30, 15)
    assert {row.student: row.points.late_s for row in contents[1][0]}["ada"] == 1.5 * 3600 + 15


@here
def test_a_server_that_restarts_ends_the_run_and_the_next_one_continues(shared, server):
    course, _, _ = shared
    with CourseGradebook(course.root) as book, pytest.raises(GradebookError, match="db_url"):
        write_class(book)
        server.stop()
        server.start()
        write(book, record("eve"))
    with CourseGradebook(course.root) as book:
        assert set(class_points(book, ASSIGNMENT)) == {"ada", "Zoë O'Neill", "dan"}
        write(book, record("eve"))
        assert class_points(book, ASSIGNMENT)["eve"].automatic == 24


@here
def test_a_lost_lock_ends_the_run_even_if_the_gradebook_still_answers(shared, server):
    course, _, name = shared
    with CourseGradebook(course.root) as book:
        book.ensure_assignment(ASSIGNMENT)
        with pytest.raises(GradebookError, match="db_url"), book.grading(ASSIGNMENT):
            write(book, record("ada"))
            server.ask(
                name,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE '%, process %'",
            )
            write(book, record("ben"))
        assert book.nbgrader_book.db.is_active


@here
def test_the_server_notices_soon_that_a_machine_is_gone(shared):
    """Neither the lock nor a row stays locked for the two hours that TCP allows."""
    ask = (
        "SELECT source FROM pg_settings WHERE name LIKE 'tcp_keepalives%' OR name = 'lock_timeout'"
    )
    with CourseGradebook(shared[0].root) as book:
        write_class(book)
        assert set(book.nbgrader_book.db.scalars(text(ask))) == {"session"}


# -- two graders


@here
@pytest.mark.slow
def test_two_graders_may_create_the_gradebook_and_release_into_it_at_once(shared, server):
    """nbgrader's program adds the course to the gradebook: two at once would both add it."""
    course, other, _ = shared
    url = server.database("unreleased")
    for root in (course.root, other):
        postgresql.use(root, url)

    def release(root: Path) -> None:
        with CourseGradebook(root) as book:
            book.ensure_assignment(ASSIGNMENT)

    assert together(lambda: release(course.root), lambda: release(other)) == []


@here
def test_two_graders_may_add_the_same_students_at_once(shared):
    course, other, _ = shared
    roster = Roster((Person(f"s{number}", "Zoë") for number in range(20)), complete=True)

    def add(root: Path, reverse: bool) -> None:
        with CourseGradebook(root) as book:
            save_roster(book, roster)
            for person in sorted(roster.people, key=str, reverse=reverse):
                with book.transaction():
                    save_person(book.nbgrader_book, person)

    assert together(lambda: add(course.root, False), lambda: add(other, True)) == []
    with CourseGradebook(other) as book:
        assert len(students(book).people) == 20


@here
def test_one_grader_never_sees_half_of_what_the_other_writes(shared):
    course, other, _ = shared
    with CourseGradebook(course.root) as book:
        book.ensure_assignment(ASSIGNMENT)
    seen = set()
    done = threading.Event()

    def writes() -> None:
        try:
            with CourseGradebook(course.root) as book:
                for number in range(12):
                    write(book, record(f"s{number}"))
        finally:
            done.set()

    def reads() -> None:
        with CourseGradebook(other) as book:
            while not done.is_set():
                seen.update(p.automatic for p in class_points(book, ASSIGNMENT).values())

    assert together(writes, reads) == []
    assert seen <= {24.0}


@here
def test_an_assignment_has_one_grader_until_that_ends_however_it_ends(shared):
    course, other, _ = shared
    line = [sys.executable, "-c", HOLDS, str(other), ASSIGNMENT]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as first:
        assert first.stdout.readline() == b"holds\n"
        with CourseGradebook(course.root) as book:
            says = rf"{ASSIGNMENT} is being graded already.*process {first.pid}\); wait until"
            with pytest.raises(GradebookError, match=says), book.grading(ASSIGNMENT):
                pass
            with book.grading("another"):
                pass
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            _wait_until_free(book)
            with book.grading(ASSIGNMENT):
                pass


@here
def test_nobody_waits_without_end_for_a_grader_that_has_stopped(shared, monkeypatch):
    course, other, _ = shared
    monkeypatch.setitem(server_lock.SETTINGS, "lock_timeout", "200ms")
    with CourseGradebook(course.root) as one, one.reading():  # noqa: SIM117
        with pytest.raises(GradebookError, match=r"lock timeout.*no other program blocks it"):
            CourseGradebook(other)
    CourseGradebook(other).__exit__(None, None, None)


def _wait_until_free(book: CourseGradebook) -> None:
    """The server notices within moments that a process is gone."""

    def is_free() -> bool:
        try:
            with book.grading(ASSIGNMENT):
                return True
        except GradebookError:
            return False

    wait_until(is_free)
