"""Finds the two halves of an assignment's checks: `ask`, beside the student, and `trusted`.

`checks/<assignment>/ask.py` has CALLS, a dict from a question's name to `call(answer, inputs)`,
VARIANTS, a dict from a variant's name to `variant(rng | None) -> dict`, and MASKED, the modules
that would answer a question, which the grader hides from students.
`checks/<assignment>/trusted.py` has QUESTIONS, a tuple of `Question`. The student's side imports
only `ask`; dashes in an assignment's name are underscores in its folder's.

Chapter: appendix/for-instructors.
"""

import ast
import importlib
import re
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from .questions import Question
from .seeds import checks_hash

CHECKS = Path(__file__).parents[1] / "checks"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class UnknownQuestion(KeyError):
    """No such assignment or question; the message names the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


def assignments() -> list[str]:
    """The names of all assignments that have checks.

    >>> "lora-math" in assignments()
    True
    """
    return sorted(p.parent.name.replace("_", "-") for p in CHECKS.glob("*/trusted.py"))


def split(question_id: str) -> tuple[str, str]:
    """The assignment and the question of an id.

    >>> split("lora-math/by-hand/parameters")
    ('lora-math', 'by-hand/parameters')
    """
    assignment, _, question = str(question_id).partition("/")
    if not question:
        raise UnknownQuestion(f"{question_id!r} is no question; wanted 'assignment/question'")
    return assignment, question


def ask(assignment: str) -> ModuleType:
    """The student's half of an assignment's checks."""
    return _load(assignment, "ask")


def student_side(assignment: str) -> tuple[Path, ...]:
    """The files of the checks that a student's kernel needs: `ask`, and what it imports beside it.

    >>> sorted(path.name for path in student_side("lora-math"))
    ['__init__.py', '__init__.py', 'ask.py', 'models.py']
    """
    folder = _folder(assignment, "ask")
    found, wanted = {CHECKS / "__init__.py", folder / "__init__.py"}, [folder / "ask.py"]
    while wanted:
        path = wanted.pop()
        found.add(path)
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        beside = {folder / f"{n.module}.py" for n in nodes if n.level == 1}
        wanted += beside - found
    return tuple(sorted(found))


def masked(assignment: str) -> tuple[str, ...]:
    """The modules that would answer a question of an assignment, read without running anything.

    >>> "course_pkg.adapters" in masked("lora-math")
    True
    """
    for node in ast.parse((_folder(assignment, "ask") / "ask.py").read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="MASKED")], value=value):
                return tuple(ast.literal_eval(value))
    return ()


def ask_module(assignment: str) -> str:
    """The dotted name of an assignment's `ask`, not imported. Raises UnknownQuestion."""
    return _module(assignment, "ask")


def trusted(assignment: str) -> dict[str, Question]:
    """The questions of an assignment by name. Never imported on the student's side of a wall."""
    return {q.name: q for q in _load(assignment, "trusted").QUESTIONS}


def find(table: dict[str, Any], name: str, kind: str) -> Any:
    """`table[name]`, or UnknownQuestion with the nearest names."""
    if name not in table:
        near = get_close_matches(name, table, n=1) or sorted(table)
        raise UnknownQuestion(f"no {kind} is called {name!r}; did you mean {', '.join(near)}?")
    return table[name]


def assignment_hash(assignment: str) -> str:
    """The hash of an assignment's checks, which its draws depend on."""
    return checks_hash(_folder(assignment, "ask"))


def _load(assignment: str, half: str) -> ModuleType:
    return importlib.import_module(_module(assignment, half))


def _module(assignment: str, half: str) -> str:
    return f"course_pkg.grading.checks.{_folder(assignment, half).name}.{half}"


def _folder(assignment: str, half: str) -> Path:
    folder = CHECKS / assignment.replace("-", "_")
    if not _NAME.fullmatch(assignment) or not (folder / f"{half}.py").is_file():
        known = ", ".join(assignments())
        raise UnknownQuestion(f"no assignment is called {assignment!r}; there are: {known}")
    return folder
