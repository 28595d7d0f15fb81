"""How submissions are scored: by the checker, or by the tests of a plain nbgrader assignment.

`Checked` is for assignments with questions: the checker judges the values of the answers. `Plain`
is for any other nbgrader assignment: its tests are asserts, hidden ones included, that run in the
student's kernel, and their outputs give the points, by nbgrader's own rules. A program in that
kernel can forge them, which every record says.

Chapter: appendix/for-instructors.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import nbformat
from nbformat import NotebookNode

from ..contract import registry
from ..contract.display import one_line
from ..contract.question_record import FailureRecord, PropertyRecord, QuestionRecord, nothing_earned
from ..contract.verdict import late
from ..feedback.graded_notebook import is_test
from ..results.keys import length_prefixed
from ..results.records import IN_KERNEL, checked_results
from ..submissions.assemble import questions_by_cell
from .runner_output import RunResult

AGAIN = "grade it again with --regrade --student; if that does not help, report it as a bug"
NOT_RUN = "this test was not run"
UNFINISHED = "this test did not run to its end: it took too long, or the kernel died"
FAILED = "the test failed"


class Judging(Protocol):
    """How the submissions to one assignment are scored.

    by_cell: the question of every test cell, by grade id. unprotected: as in a record.
    """

    by_cell: Mapping[str, str]
    unprotected: str

    def to_run(self, notebook: NotebookNode) -> NotebookNode:
        """The notebook to run, from the assembled one."""

    def nothing(self) -> tuple[QuestionRecord, ...]:
        """The questions of a submission that was not run."""

    def questions(self, notebook: NotebookNode, result: RunResult) -> tuple[QuestionRecord, ...]:
        """What a run earned. Raises ValueError if what judged it gave no usable results."""

    def hash(self) -> str:
        """A hash of the tests."""

    def limit_s(self, question: str) -> float:
        """The seconds within which an answer to the question must come."""


class Checked:
    """Questions that the checker judges."""

    unprotected = ""

    def __init__(self, assignment: str, released: NotebookNode) -> None:
        self.assignment = assignment
        self._questions = registry.load(assignment).questions
        self.by_cell = questions_by_cell(released, assignment)

    def to_run(self, notebook: NotebookNode) -> NotebookNode:
        """The notebook as it is."""
        return notebook

    def nothing(self) -> tuple[QuestionRecord, ...]:
        """Every question, not answered."""
        return nothing_earned(self._questions)

    def questions(self, notebook: NotebookNode, result: RunResult) -> tuple[QuestionRecord, ...]:
        """The checker's results. Raises ValueError if it wrote none that can be used."""
        if not result.verdicts:
            why = result.no_verdicts or "it ended before it wrote its results"
            raise ValueError(f"the checker could not judge the answers: {why}; {AGAIN}")
        try:
            return checked_results(result.verdicts, self._questions)
        except ValueError as error:
            raise ValueError(f"the checker's results can't be used ({error}); {AGAIN}") from None

    def hash(self) -> str:
        """A hash of all files of the checks."""
        return registry.checks_hash(self.assignment)

    def limit_s(self, question: str) -> float:
        """The question's deadline."""
        return self._questions[question].deadline


class Plain:
    """Tests in the notebook itself. sources: of the locked cells by grade id, hidden tests too."""

    unprotected = IN_KERNEL

    def __init__(self, released: NotebookNode, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._points = {
            cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
            for cell in released.cells
            if is_test(cell)
        }
        self.by_cell = {name: name for name in self._points}

    def to_run(self, notebook: NotebookNode) -> NotebookNode:
        """The notebook with the source of every locked cell, which holds the hidden tests."""
        copy = nbformat.from_dict(notebook)
        for cell in copy.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            if cell.cell_type == "code":  # a mark scheme stays out of the sandbox
                cell.source = self._sources.get(name, cell.source)
        return copy

    def nothing(self) -> tuple[QuestionRecord, ...]:
        """Every test, not run."""
        return tuple(question_of_test(name, p, 0.0, NOT_RUN) for name, p in self._points.items())

    def questions(self, notebook: NotebookNode, result: RunResult) -> tuple[QuestionRecord, ...]:
        """What the tests' outputs earn, by nbgrader's rules; a test that did not end earns 0."""
        found = {}
        for index, cell in enumerate(notebook.cells):
            if is_test(cell):
                name = cell.metadata.nbgrader.grade_id
                earned, reason = 0.0, NOT_RUN
                if index in result.unfinished:  # without an output it would earn everything
                    reason = UNFINISHED
                elif index in result.outputs or not cell.source.strip():
                    earned, reason = _earned(cell, result.outputs.get(index, []))
                found[name] = question_of_test(name, self._points[name], earned, reason)
        return tuple(found[name] for name in self._points)

    def hash(self) -> str:
        """A hash of the tests, hidden ones included."""
        parts = [text for item in sorted(self._sources.items()) for text in item]
        return hashlib.sha256(length_prefixed(*parts)).hexdigest()

    def limit_s(self, question: str) -> float:
        """There is no limit on an answer but those on cells and on the submission."""
        return float("inf")


def late_answers(judging: Judging, questions: tuple[QuestionRecord, ...]) -> tuple[str, ...]:
    """For each question whose last answer came too late: that it did, in words."""
    return tuple(
        f"the answer to {q.question} {late(q.late_s, judging.limit_s(q.question))}"
        + ("; an earlier answer counts" if q.earned else "")
        for q in questions
        if q.late_s
    )


def question_of_test(name: str, points: float, earned: float, reason: str) -> QuestionRecord:
    """A test as a question; partial credit splits it into what was earned and what was lost.

    >>> question_of_test("t", 2, 0.5, "half").earned
    0.5
    """
    lost = FailureRecord(reason)
    whole = PropertyRecord(name, "the test passes", "", points, None if earned >= points else lost)
    if not 0 < earned < points:
        return QuestionRecord(name, (whole,))
    parts = (
        PropertyRecord(f"{name}, earned", "partial credit", "", earned, None),
        PropertyRecord(f"{name}, lost", "the rest of the points", "", points - earned, lost),
    )
    return QuestionRecord(name, parts)


def _earned(cell: NotebookNode, outputs: Any) -> tuple[float, str]:
    """The points of a test cell with these outputs, and why some were lost."""
    from nbgrader.utils import determine_grade

    try:
        shown = nbformat.from_dict({**cell, "outputs": outputs})
        earned, points = determine_grade(shown)
        errors = [output for output in shown.outputs if output.output_type == "error"]
        said = [str(error.get(part) or "") for error in errors[:1] for part in ("ename", "evalue")]
    except Exception as error:  # the outputs are any JSON
        return 0.0, f"nbgrader can't read the test's output: {one_line(str(error), 200)}"
    if earned >= points:
        return earned, ""
    if not errors:
        return earned, "the test wrote to stderr" if not earned else "the test gave a part"
    return earned, f"{FAILED}: {one_line(': '.join(filter(None, said)), 300)}"
