"""Finds an assignment's files: `questions.toml`, `cases.py` and, if it has one, `student.py`.

A cluster's worker may have received assignments that its own package lacks. Reading questions
imports nothing. `cases` is never imported on the student's side of the sandbox; `student` is.
"""

import functools
import importlib
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from course_pkg.common.errors import CourseError
from course_pkg.grading.questions.question import Assignment, QuestionError, parse_questions

ASSIGNMENTS = Path(__file__).parents[1] / "assignments"
RECEIVED = "COURSE_ASSIGNMENTS"  # an environment variable: a worker's folder of more assignments
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class UnknownQuestion(CourseError, KeyError):
    """No such assignment or question; the message names the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


def assignments() -> list[str]:
    """The names of all assignments."""
    folders = {path.parent.name for root in _roots() for path in root.glob("*/questions.toml")}
    return sorted(name.replace("_", "-") for name in folders)


def split(question_id: str) -> tuple[str, str]:
    """The assignment and the question of an id such as "lora-math/by-hand/parameters"."""
    assignment, _, question = str(question_id).partition("/")
    if not question:
        raise UnknownQuestion(f"{question_id!r} is not a question; expected 'assignment/question'")
    return assignment, question


def find(table: Iterable[str], name: str, kind: str) -> Any:
    """`table[name]`, or UnknownQuestion with the nearest names."""
    if name not in table:
        near = get_close_matches(name, table, n=1) or sorted(table)
        raise UnknownQuestion(f"no {kind} is called {name!r}; did you mean {', '.join(near)}?")
    return table[name]


def load(assignment: str) -> Assignment:
    """The questions of an assignment. Raises UnknownQuestion, and QuestionError for a bad file.

    Example:

        >>> load("lora-math").questions["forward"].points
        5
    """
    path = folder(assignment) / "questions.toml"
    return _read(assignment, path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read(assignment: str, path: Path, _changed: int) -> Assignment:
    try:
        return parse_questions(assignment, path.read_text("utf-8"))
    except QuestionError as error:
        raise QuestionError(f"{path}: {error}") from None


def folder(assignment: str) -> Path:
    """The folder of an assignment. Raises UnknownQuestion."""
    for root in _roots() if _NAME.fullmatch(assignment) else ():
        path = root / assignment.replace("-", "_")
        if (path / "questions.toml").is_file():
            return path
    known = ", ".join(assignments())
    raise UnknownQuestion(f"no assignment is called {assignment!r}; there are: {known}")


def _roots() -> tuple[Path, ...]:
    received = os.environ.get(RECEIVED)
    return (ASSIGNMENTS, Path(received)) if received else (ASSIGNMENTS,)


def module_name(assignment: str, part: str) -> str:
    """The dotted name of an assignment's `cases` or `student`; "" if it has none."""
    path = folder(assignment)
    exists = (path / f"{part}.py").is_file()
    return f"course_pkg.grading.assignments.{path.name}.{part}" if exists else ""


def module(assignment: str, part: str) -> ModuleType | None:
    """An assignment's `cases` or `student`, imported; None if it has none."""
    name = module_name(assignment, part)
    return importlib.import_module(name) if name else None


def student_files(assignment: str) -> tuple[Path, ...]:
    """The files of an assignment that a student's kernel needs, which hold no right answer."""
    path = folder(assignment)
    if not module_name(assignment, "student"):
        return ()
    return ASSIGNMENTS / "__init__.py", path / "__init__.py", path / "student.py"


def assignment_files(assignment: str) -> dict[str, bytes]:
    """All files of an assignment: their contents by relative path."""
    root = folder(assignment)
    paths = sorted([*root.rglob("*.py"), *root.rglob("*.toml")])
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
