"""nbgrader with the course's configuration: its folders, permissions, plugin and database."""

import contextlib
import errno
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_pkg.common.errors import CourseError, FailedError
from course_pkg.grading.classroom.execution.assignment import ClassAssignment, resolve
from course_pkg.grading.classroom.gradebook.server_lock import FileLock, Held, ServerLock
from course_pkg.grading.classroom.release import program_path, require_course
from course_pkg.grading.classroom.submissions.names import valid_assignment
from course_pkg.grading.classroom.submissions.roster import Person
from course_pkg.grading.questions.registry import UnknownQuestion

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.preprocessors import AssignLatePenalties

BUSY_S = 30  # seconds to wait for another program that writes to the gradebook
LOCKED = (
    f"another program has locked gradebook.db for more than {BUSY_S} s, such as formgrader or an "
    "nbgrader command (`fuser gradebook.db` names it); wait for it, or end it, and run the same "
    "command again: nothing of this step was written"
)
SERVER = "postgresql"
INDEXES = (
    ("submitted_assignment", "student_id"),
    ("submitted_notebook", "assignment_id"),
    ("grade", "notebook_id"),
    ("comment", "notebook_id"),
)


class GradebookError(CourseError, RuntimeError):
    """The gradebook can't be used as it is; the message says why, and how to fix it."""


class GradebookLost(FailedError, GradebookError):
    """The connection to the gradebook's server has ended: the same command may continue."""


@dataclass(frozen=True)
class Nbgrader:
    """nbgrader's configuration; `mode` is the permissions of files in autograded/."""

    folders: "CourseDirectory"
    mode: int
    penalties: "AssignLatePenalties"


def configured(course: Path) -> Nbgrader:
    """The nbgrader configuration of a course, from the files that nbgrader itself reads."""
    from jupyter_core.paths import jupyter_config_path
    from nbgrader.apps import NbGrader
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.preprocessors import AssignLatePenalties
    from traitlets import TraitError
    from traitlets.config import Application

    require_course(course)
    app = NbGrader(log_level=logging.WARNING)
    paths = [str(course), *jupyter_config_path()]
    before = list(sys.path)
    sys.path.append(str(course))  # a plugin may be a module in the course's folder
    try:
        Application.load_config_file(app, "nbgrader_config", path=paths)
        folders = CourseDirectory(parent=app, root=str(course))
        penalties = AssignLatePenalties(parent=app)
        penalties.init_plugin()
        mode = int(str(Autograde(coursedir=folders, parent=app).permissions), 8)
    except TraitError as error:
        raise GradebookError(f"{course / 'nbgrader_config.py'}: {error}") from None
    finally:
        sys.path[:] = before
    return Nbgrader(folders, mode, penalties)


def find_assignment(course: Path, name: str) -> ClassAssignment:
    """The assignment of a course, as this run sees it. Writes nothing.

    It has a notebook of its name in the course's source or release folder, as nbgrader_config.py
    calls them. Raises UnknownQuestion if there is none.
    """
    require_course(course)
    assignment = resolve(name)
    usual = [course / folder / name for folder in ("solutions", "exercises")]
    if assignment.checks and any(map(_has_notebook, usual)):
        return assignment  # without nbgrader, which takes a second to import
    names = configured(course).folders
    folders = [course / names.source_directory, course / names.release_directory]
    if valid_assignment(name) and any(_has_notebook(f / name) for f in folders):
        return assignment
    known = {p.name for f in folders if f.is_dir() for p in f.iterdir() if _has_notebook(p)}
    there = ", ".join(sorted(known)) or "none"
    raise UnknownQuestion(
        f"no assignment is called {name!r}; {names.source_directory}/ and "
        f"{names.release_directory}/ have: {there}"
    )


def _has_notebook(folder: Path) -> bool:
    return (folder / f"{folder.name}.ipynb").is_file()


def opened(folders: "CourseDirectory") -> "tuple[Gradebook, FileLock | ServerLock]":
    """The course's gradebook, created if it does not exist, and its lock. Raises GradebookError."""
    from nbgrader.api import Gradebook

    url = folders.db_url
    lock = _server_lock(url) if is_server(url) else FileLock()
    if not is_server(url) and "?" not in url:
        url += f"?timeout={BUSY_S}"
    try:
        with explained(lock.fix), _programs(), lock.alone():  # two would both create the tables
            book = Gradebook(url, folders.course_id)
            if book.engine.name == "sqlite" and book.engine.url.database:
                hide(Path(book.engine.url.database))
            lock.watch(book.db)
            ensure_indexes(book)
            return book, lock
    except BaseException:
        lock.close()
        raise


def hide(path: Path) -> None:
    """Take the permissions on a file or folder from other users, if it exists and is ours."""
    with contextlib.suppress(OSError):
        path.chmod(path.stat().st_mode & 0o770)


def is_server(url: str) -> bool:
    """Whether a db_url is PostgreSQL's. Raises GradebookError if it is not SQLite's either."""
    kind = url.partition(":")[0].partition("+")[0]
    if kind not in ("sqlite", SERVER):
        raise GradebookError(
            f"db_url in nbgrader_config.py starts with {kind!r}; expected sqlite:///PATH or "
            "postgresql+psycopg://USER@HOST/DATABASE"
        )
    return kind == SERVER


def _server_lock(url: str) -> ServerLock:
    from sqlalchemy import create_engine

    try:
        with explained(ServerLock.fix):
            return ServerLock(create_engine(url))
    except ImportError as error:
        raise GradebookError(
            f"db_url in nbgrader_config.py needs a package that is missing ({error}): "
            "`pip install 'psycopg[binary]'`, and write postgresql+psycopg://"
        ) from None


@contextlib.contextmanager
def _programs() -> Iterator[None]:
    """Let nbgrader find alembic, which it starts by name to create a gradebook."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = program_path()
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextlib.contextmanager
def explained(fix: str) -> Iterator[None]:
    """Turn database errors into GradebookError, which says what to do, a full disk into OSError."""
    from nbgrader.api import InvalidEntry
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    log = logging.getLogger("tornado.application")
    before = log.disabled
    log.disabled = True  # nbgrader prints tracebacks there
    try:
        yield
    except Held as error:
        raise GradebookError(str(error)) from None
    except (SQLAlchemyError, InvalidEntry) as error:
        if _is_full_disk(error):
            full = errno.ENOSPC
            raise OSError(full, "the disk is full, so it was not changed", "gradebook.db") from None
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise GradebookError(LOCKED) from None
        why = " ".join(str(error.__cause__ or error).split())
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        kind = GradebookLost if lost else GradebookError
        raise kind(f"the gradebook can't be used ({why}): {fix}") from None
    finally:
        log.disabled = before


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether a database says so, by SQLite's code or PostgreSQL's; nbgrader may hide its error."""
    while error is not None:
        own = getattr(error, "orig", None)
        if getattr(own, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        if getattr(own, "sqlstate", None) == "53100":
            return True
        error = error.__cause__ or error.__context__
    return False


def save_person(book: "Gradebook", person: Person) -> None:
    """Add a student, or update what the roster knows; what it does not know stays."""
    fields = {
        "first_name": person.first_name,
        "last_name": person.last_name,
        "email": person.email,
        "lms_user_id": person.lms_id,
    }
    known = {name: text[:128] for name, text in fields.items() if text}
    book.update_or_create_student(person.id, **known)


def ensure_indexes(book: "Gradebook") -> None:
    """Create the indexes that nbgrader's tables lack, so that a look-up doesn't read a whole table.

    An index changes no content; if the database refuses, it stays as it is, only slower. The
    catalog is read first, because creating an index locks the table, even one that exists.
    """
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError

    with contextlib.suppress(SQLAlchemyError):
        try:
            tables = inspect(book.db.connection())
            for table, column in INDEXES:
                name = f"ix_course_{table}_{column}"
                if name not in {index["name"] for index in tables.get_indexes(table)}:
                    book.db.execute(
                        text(f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({column})")
                    )
            book.db.commit()
        except SQLAlchemyError:
            book.db.rollback()
            raise
