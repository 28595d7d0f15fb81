"""Locks between graders that share a gradebook on a PostgreSQL server, perhaps from two machines.

SQLite locks its own file, and graders of one folder have the folder's lock. On a server, nbgrader's
own functions look, add and commit in separate steps: of five graders that add the same students at
once, four fail without these locks, and none with. They are PostgreSQL's advisory locks, which end
with the process that holds them. nbgrader's own commands do not take them.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from course_pkg.grading.classroom.execution.grade_key import length_prefixed

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session, scoped_session


# The server notices within a minute that a machine is gone, whose locks then end; and nobody waits
# without end for a program that has stopped while it holds one.
SETTINGS = {
    "tcp_keepalives_idle": "30s",
    "tcp_keepalives_interval": "10s",
    "tcp_keepalives_count": "3",
    "lock_timeout": "120s",
}
SET = "SELECT set_config(:name, :value, false)"
HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (l.classid::bigint << 32) | l.objid::bigint = :key"
)


class Held(RuntimeError):
    """Another grader grades the assignment; the message says so."""


class FileLock:
    """For a gradebook in a file: SQLite and the lock of the course's folder are enough."""

    fix = "back up gradebook.db, close other programs that use it, and try `nbgrader db upgrade`"

    def close(self) -> None:
        """Release nothing."""

    def watch(self, session: "scoped_session[Session]") -> None:
        """Take over a gradebook's session."""

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def grading(self, course_id: str, assignment: str) -> AbstractContextManager[None]:
        return nullcontext()


class ServerLock:
    """For a gradebook on a server, with an engine of its own. Raises SQLAlchemyError."""

    fix = (
        "see that the server of db_url in nbgrader_config.py runs and that no other program blocks "
        "it, and run the same command again; after an update of nbgrader, back up the database and "
        "run `nbgrader db upgrade`"
    )

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Connection = self._engine.connect()
        for name, value in SETTINGS.items():
            self._ask(SET, name=name, value=value)

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()

    def watch(self, session: "scoped_session[Session]") -> None:
        """Take over a gradebook's session: waiting for locks on its rows ends as soon."""
        from sqlalchemy import text

        for name, value in SETTINGS.items():
            session.execute(text(SET), {"name": name, "value": value})
        session.commit()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block that reads or writes; waits until no other grader does. Blocks may be nested."""
        key = lock_key("reads or writes")
        self._ask("SELECT pg_advisory_lock(:key)", key=key)
        try:
            yield
        finally:
            self._release(key)

    @contextmanager
    def grading(self, course_id: str, assignment: str) -> Iterator[None]:
        """A block that grades an assignment. Raises Held if another grader does."""
        key = lock_key("grades", course_id, assignment)
        if not self._ask("SELECT pg_try_advisory_lock(:key)", key=key):
            other = self._ask(HOLDER, key=key) or "another grader"
            raise Held(
                f"{assignment} is being graded already, into the same gradebook ({other}); wait "
                "until that has ended"
            )
        self._ask("SELECT set_config('application_name', :name, false)", name=holder())
        try:
            yield
        finally:
            self._release(key)

    def _ask(self, question: str, **values: object) -> Any:
        from sqlalchemy import text

        return self._connection.execute(text(question), values).scalar()

    def _release(self, key: int) -> None:
        """Release a lock, unless the connection is gone, which has released it."""
        if not self._connection.invalidated:
            self._ask("SELECT pg_advisory_unlock(:key)", key=key)


def lock_key(*parts: str) -> int:
    """The number of a lock: 64 bits, signed, as PostgreSQL has them."""
    raw = hashlib.sha256(length_prefixed("course grading", *parts)).digest()
    return int.from_bytes(raw[:8], "big", signed=True)


def holder() -> str:
    """The name under which another grader sees this one: machine and process, at most 63 bytes."""
    return f"{socket.gethostname()[:40]}, process {os.getpid()}".encode("ascii", "replace").decode()
