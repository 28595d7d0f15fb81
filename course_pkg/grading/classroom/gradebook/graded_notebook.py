"""The graded notebook: the student's cells and outputs, the grader's results, a note on top.

nbgrader reads a score from the output of a test cell. Here that is only the grader's result, so
nothing that a student's code printed can count as one.
"""

import html
import math
from collections.abc import Mapping

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.questions.display import NO_TEX, one_line
from course_pkg.grading.questions.report_html import report_html


def with_results(
    notebook: NotebookNode,
    record: Record,
    checks: Mapping[str, str],
    outputs: Mapping[int, list[NotebookNode]],
) -> NotebookNode:
    """A copy of the notebook with its cells' outputs, and the grader's result in every test cell.

    Args:
        checks: the question of every test cell, by grade_id.
        outputs: sanitized outputs by index of the cell; those of test cells follow the result if
            they are what was judged, or else are dropped.
    """
    copy = nbformat.from_dict(notebook)
    questions = {question.question: question for question in record.questions}
    for index, cell in enumerate(copy.cells):
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        if not is_test(cell):
            cell.outputs = list(outputs.get(index, []))
            continue
        meta = cell.metadata.nbgrader
        question = questions.get(checks.get(meta.grade_id, ""))
        if question is None or question.points != meta.points:
            raise ValueError(
                f"the test cell {meta.grade_id!r} is worth {meta.points} points; expected the "
                f"points of one question of {record.assignment}"
            )
        shown = report_html(f"{record.assignment}/{question.question}", question)
        cell.outputs = [_result(question.earned, shown)]
        if record.unprotected:  # nbgrader reads the first result, and the rest explains it
            cell.outputs += outputs.get(index, [])
    return copy


def with_nothing(released: NotebookNode) -> NotebookNode:
    """A copy of the released notebook for a submission that was not run: every test gives 0."""
    copy = nbformat.from_dict(released)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs = [_result(0, "<i>nothing was run</i>")] if is_test(cell) else []
    return copy


def with_note(notebook: NotebookNode, record: Record) -> NotebookNode:
    """A copy of the notebook, with a first cell that reports anything unusual, in inert texts."""
    copy = nbformat.from_dict(notebook)
    lines = [] if record.state == State.GRADED else [f"{record.state.means}. {record.reason}"]
    lines += record.remarks
    if record.is_unsafe:
        lines.append(f"graded WITHOUT a sandbox ({record.sandbox})")
    if record.unprotected:
        lines.append(record.unprotected)
    if not lines:
        return copy
    items = "".join(f"<li>{_inert(line)}</li>" for line in lines)
    cell = new_markdown_cell(
        f'<div class="{NO_TEX}" style="border-left:4px solid #b35900;padding:.5em 1em">'
        f"<b>The grader: {_inert(record.state)}</b><ul>{items}</ul></div>"
    )
    if copy.nbformat_minor < 5:
        del cell["id"]
    copy.cells.insert(0, cell)
    return copy


def has_grade_id(cell: NotebookNode) -> bool:
    """Whether nbgrader knows the cell by a name."""
    return "grade_id" in cell.metadata.get("nbgrader", {})


def is_test(cell: NotebookNode) -> bool:
    """Whether a cell is a test: graded code that is not an answer."""
    meta = cell.metadata.get("nbgrader", {})
    return bool(cell.cell_type == "code" and meta.get("grade") and not meta.get("solution"))


def work_by_grade(notebook: NotebookNode) -> dict[str, list[str]]:
    """For each graded cell, the student's texts that are graded there, by grade id.

    Of a test, the code since the graded cell before it; of a written answer, its own text; of a
    written task, the cells behind it, up to the next cell of the release.
    """
    work: dict[str, list[str]] = {}
    code: list[str] = []
    task = ""
    for cell in notebook.cells:
        meta = cell.metadata.get("nbgrader", {})
        if has_grade_id(cell):
            task = meta.grade_id if meta.get("task") else ""
        if meta.get("task"):
            work[meta.grade_id] = []
        elif meta.get("grade") and meta.get("solution"):
            work[meta.grade_id] = [cell.source]
        elif is_test(cell):
            work[meta.grade_id] = code
            code = []
        elif task:
            work[task].append(cell.source)
        elif cell.cell_type == "code":
            code.append(cell.source)
    return work


def points_shown(notebook: NotebookNode) -> float:
    """The points of all tests, as nbgrader reads them."""
    from nbgrader.utils import determine_grade

    return math.fsum(determine_grade(cell)[0] for cell in notebook.cells if is_test(cell))


def _result(points: float, table: str) -> NotebookNode:
    data = {"text/plain": repr(float(points)), "text/html": table}
    return new_output("execute_result", data=data, execution_count=None)


def _inert(text: str) -> str:
    """The text, escaped so that Markdown renderers show it unchanged."""
    escaped = html.escape(one_line(text))
    return "".join(f"&#{ord(c)};" if c in "$\\`*_[]~|" else c for c in escaped)
