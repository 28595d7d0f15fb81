"""Records made in this process, as the grader would make them of a submission."""

from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.assemble import questions_by_cell
from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.graded_notebook import with_results
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.question_record import (
    FailureRecord,
    QuestionRecord,
    nothing_earned,
    question_record,
)

ROOT = Path(__file__).parents[3]
ASSIGNMENT = "lora-math"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> $\\href{javascript:alert(3)}{x}$"


def questions(lost: dict[str, FailureRecord] | None = None) -> tuple[QuestionRecord, ...]:
    """Every question, right but for `lost`: by "question/property", or "question"."""
    lost = lost or {}
    return tuple(
        question_record(
            question,
            {p.name: lost.get(f"{name}/{p.name}", lost.get(name)) for p in question.properties},
        )
        for name, question in registry.load(ASSIGNMENT).questions.items()
    )


def wrong(reason: str = "expected 4, but 5 was given", **texts: Any) -> FailureRecord:
    texts = {"inputs": "{n: 2}", "expected": "4", "given": "5", **texts}
    return FailureRecord(reason, **texts)


def record(student: str = "ada", **changes) -> Record:
    """A record of a submission in which everything was right, but for `changes`."""
    fields = {
        "student": student,
        "assignment": ASSIGNMENT,
        "state": State.GRADED,
        "reason": "",
        "questions": questions(),
        "start_s": 0.4,
        "run_s": 3.2,
        "write_s": 0.1,
        "peak_bytes": 600_000_000,
        "limits": "cgroup v1",
        "sandbox": "bubblewrap",
        "key": "00" * 32,
        "graded_at": "2026-03-01T12:00:00+00:00",
    }
    return Record(**{**fields, **changes})


def unreadable(student: str = "ada") -> Record:
    return record(
        student,
        state=State.UNREADABLE,
        reason="the file breaks off at line 4",
        questions=nothing_earned(registry.load(ASSIGNMENT).questions),
    )


def released() -> NotebookNode:
    return nbformat.read(ROOT / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)


def answered() -> NotebookNode:
    path = ROOT / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    right = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if "nbgrader" in cell.metadata:
            right[cell.metadata.nbgrader.grade_id] = cell.source
    notebook = released()
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = right[cell.metadata.nbgrader.grade_id]
    return notebook


def notebook(rec: Record, outputs: dict[int, list] | None = None) -> NotebookNode:
    ran = answered()
    return with_results(ran, rec, questions_by_cell(ran, ASSIGNMENT), outputs or {})


def write(book: CourseGradebook, rec: Record, timestamp=None, files=None, person=None) -> None:
    """Write a record to the gradebook as the grader does, without a notebook if nothing ran."""
    ran = rec.state is not State.UNREADABLE
    book.write(rec, notebook(rec) if ran else None, files or {}, timestamp, person)
