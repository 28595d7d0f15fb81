"""How submissions are scored: by the checker, or by the tests of a plain nbgrader assignment."""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.assemble import questions_by_cell
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.grade_key import code_structure, length_prefixed
from course_pkg.grading.classroom.execution.runner_output import MAX_RESULTS, RunResult, strict_json
from course_pkg.grading.classroom.gradebook.graded_notebook import is_test
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question import Question
from course_pkg.grading.questions.question_record import (
    FailureRecord,
    PropertyRecord,
    QuestionRecord,
    explanations,
    nothing_earned,
    question_record,
)
from course_pkg.grading.questions.verdict import UNANSWERED, late, says

MAX_TEXT = 1_000  # characters of one text in them
IN_KERNEL = (
    "the tests ran in the student's kernel, where code can forge points and read hidden tests"
)


AGAIN = "grade it again with --regrade --student; if that does not help, report it as a bug"
NOT_RUN = "this test was not run"
UNFINISHED = "this test did not run to its end: it took too long, or the kernel died"
FAILED = "the test failed"
CRASHED = "your answer's cell ended with an error, so nothing was checked: {}"


class CheckerScoring:
    """Questions that the checker judges.

    by_cell: the question of every test cell, by grade id. hash: of the tests. unprotected: as in a
    record.
    """

    unprotected = ""

    def __init__(self, assignment: ClassAssignment, released: NotebookNode) -> None:
        self._questions = assignment.checks.questions
        self.hash = assignment.hash
        self.by_cell = questions_by_cell(released, assignment.name)

    def to_run(self, notebook: NotebookNode) -> NotebookNode:
        return notebook

    def nothing(self) -> tuple[QuestionRecord, ...]:
        return nothing_earned(self._questions)

    def questions(self, notebook: NotebookNode, result: RunResult) -> tuple[QuestionRecord, ...]:
        """The checker's results. Raises ValueError if it wrote none that can be used."""
        if not result.verdicts:
            why = result.no_verdicts or "it ended before it wrote its results"
            raise ValueError(f"the checker could not judge the answers: {why}; {AGAIN}")
        try:
            judged = checked_results(result.verdicts, self._questions)
        except ValueError as error:
            raise ValueError(f"the checker's results can't be used ({error}); {AGAIN}") from None
        reasons = self._reasons(notebook, result)
        return tuple(_with_reason(q, reasons.get(q.question, "")) for q in judged)

    def _reasons(self, notebook: NotebookNode, result: RunResult) -> dict[str, str]:
        """Why a question may have no answer: by its test cell and the answer's cells before it."""
        reasons = {}
        failed = ""
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            error = _error(result.outputs.get(index, []))
            late = index in result.unfinished
            if not is_test(cell):
                mine = cell.metadata.get("nbgrader", {}).get("solution")
                failed = (result.reason if late else error) if mine and (late or error) else failed
                continue
            question = self.by_cell[cell.metadata.nbgrader.grade_id]
            if failed:
                reasons[question] = CRASHED.format(failed)
            elif late or index not in result.outputs:
                reasons[question] = result.reason
            elif error:
                reasons[question] = f"its check ended with an error: {error}"
            failed = ""
        return reasons

    def late_answers(self, questions: tuple[QuestionRecord, ...]) -> tuple[str, ...]:
        said = []
        for q in questions:
            if q.late_s:
                earlier = "; an earlier answer counts" if q.earned else ""
                said.append(f"the answer to {q.question} {late(q.late_s)}{earlier}")
        return tuple(said)


class NotebookScoring:
    """Asserts in the notebook, hidden ones included, scored by nbgrader's own rules.

    They run in the student's kernel, where a program can forge them, which every record says. The
    methods are those of `CheckerScoring`.

    Args:
        sources: of the locked cells by grade id, hidden tests too.
    """

    unprotected = IN_KERNEL

    def __init__(self, released: NotebookNode, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        code = {_name(cell) for cell in released.cells if cell.cell_type == "code"}
        tests = sorted((n, code_structure(s)) for n, s in self._sources.items() if n in code)
        self.hash = hashlib.sha256(length_prefixed(*itertools.chain(*tests))).hexdigest()
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
            name = _name(cell)
            if cell.cell_type == "code":  # a mark scheme stays out of the sandbox
                cell.source = self._sources.get(name, cell.source)
        return copy

    def nothing(self) -> tuple[QuestionRecord, ...]:
        return tuple(question_of_test(name, p, 0.0, NOT_RUN) for name, p in self._points.items())

    def questions(self, notebook: NotebookNode, result: RunResult) -> tuple[QuestionRecord, ...]:
        """What the tests' outputs earn, by nbgrader's rules; a test that did not end earns 0."""
        scored = {}
        for index, cell in enumerate(notebook.cells):
            if is_test(cell):
                name = cell.metadata.nbgrader.grade_id
                earned = 0.0
                reason = NOT_RUN
                if index in result.unfinished:  # without an output it would earn everything
                    reason = UNFINISHED
                elif index in result.outputs or not cell.source.strip():
                    earned, reason = _earned(cell, result.outputs.get(index, []))
                scored[name] = question_of_test(name, self._points[name], earned, reason)
        return tuple(scored[name] for name in self._points)

    def late_answers(self, questions: tuple[QuestionRecord, ...]) -> tuple[str, ...]:
        return ()


def _with_reason(question: QuestionRecord, why: str) -> QuestionRecord:
    failures = [p.failure for p in question.properties]
    if not why or not all(f is not None and f.reason == UNANSWERED for f in failures):
        return question
    text = one_line(why, 400)
    lost = tuple(replace(p, failure=FailureRecord(text)) for p in question.properties)
    return replace(question, properties=lost, unjudged=text)


def _error(outputs: Any) -> str:
    """The error that ended a cell, from its untrusted outputs; "" for none, and for a stub's."""
    for output in outputs if isinstance(outputs, list) else ():
        if isinstance(output, dict) and output.get("output_type") == "error":
            parts = (output.get(part) for part in ("ename", "evalue"))
            name, value = (part[:300] if isinstance(part, str) else "?" for part in parts)
            return "" if name == "NotImplementedError" else f"{name}: {value}"
    return ""


def _name(cell: NotebookNode) -> str | None:
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def question_of_test(name: str, points: float, earned: float, reason: str) -> QuestionRecord:
    """A test as a question; partial credit splits it into what was earned and what was lost."""
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
        return earned, "the test gave a part" if earned else "the test wrote to stderr"
    return earned, f"{FAILED}: {one_line(': '.join(filter(None, said)), 300)}"


def checked_results(text: bytes, questions: Mapping[str, Question]) -> tuple[QuestionRecord, ...]:
    """The verdicts that a checker wrote, if they judge every one of `questions`, in their order.

    Points and words are those of `questions`; a property earns all its points or none. The right
    value of a number worked by hand is dropped. Raises ValueError for anything else.
    """
    if len(text) > MAX_RESULTS:
        raise ValueError(
            f"the results are {len(text):,} bytes; at most {MAX_RESULTS:,} are accepted"
        )
    rows = strict_json(text)
    if not isinstance(rows, list) or len(rows) != len(questions):
        raise ValueError(f"the results are not a list of the {len(questions)} questions")
    return tuple(
        _question(row, question) for row, question in zip(rows, questions.values(), strict=True)
    )


def _question(row: Any, question: Question) -> QuestionRecord:
    _require(row, {"question", "failures", "late_s", "follows"})
    if row["question"] != question.name:
        raise ValueError(f"expected the question {question.name}")
    _require(row["failures"], {p.name for p in question.properties})
    failures = {name: _failure(question, failure) for name, failure in row["failures"].items()}
    late_s = row["late_s"]
    if late_s is not None and not (type(late_s) in (int, float) and 0 < late_s < 1e6):
        raise ValueError(f"{question.name}: late_s is not a number of seconds")
    follows = row["follows"]
    if follows not in ([], list(question.follows)) or (follows and any(failures.values())):
        raise ValueError(f"{question.name}: `follows` does not fit the question")
    return question_record(question, failures, late_s, tuple(follows))


def _require(row: Any, names: set[str]) -> None:
    if not isinstance(row, dict) or set(row) != names:
        raise ValueError(f"expected an object with {sorted(names)}")


def _failure(question: Question, row: Any) -> FailureRecord | None:
    if row is None:
        return None
    _require(row, {"inputs", "expected", "given", "reason", "note", "recognized", "is_form"})
    texts = {name: row[name] for name in ("inputs", "expected", "given", "reason", "note")}
    for name, text in texts.items():
        if text is None and name not in ("reason", "note"):
            continue
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"{question.name}: {name} is not a short text")
    names = row["recognized"]
    if not isinstance(names, list) or not set(map(str, names)) <= says(question).keys():
        raise ValueError(f"{question.name}: no such wrong answer")
    shown = {name: text and one_line(text, MAX_TEXT) for name, text in texts.items()}
    if question.variant:  # the student should work it out
        shown["expected"] = None
    told = explanations(question, names)
    return FailureRecord(**shown, explanations=told, is_form=row["is_form"] is True)
