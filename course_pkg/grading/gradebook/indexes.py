"""Indexes on nbgrader's tables, so that the time for one submission doesn't grow with the class.

nbgrader looks for the notebooks of a submission, and for the grades and comments of a notebook, by
columns that have no index: each look reads the whole table. An index changes no content, and any
nbgrader can use the database with or without it.

Chapter: appendix/for-instructors.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

INDEXES = (
    ("submitted_assignment", "student_id"),
    ("submitted_notebook", "assignment_id"),
    ("grade", "notebook_id"),
    ("comment", "notebook_id"),
)


def ensure_indexes(book: "Gradebook") -> None:
    """Create the indexes that are missing. If the database refuses, it stays as it is, only slower.

    The catalog is read first, because creating an index locks the table, even one that exists.
    """
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError

    with suppress(SQLAlchemyError):
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
