"""What a student's cell shows: `Score`, a number that shows a report, and `Recorded`."""

import ast
import builtins
from dataclasses import replace
from typing import Any

from course_pkg.grading.questions.answer_key import defined_name
from course_pkg.grading.questions.calling import with_tensors
from course_pkg.grading.questions.display import mark, shorten, shorten_pair
from course_pkg.grading.questions.question import Question
from course_pkg.grading.questions.question_record import (
    SMALLEST,
    TO_TRY,
    FailureRecord,
    Mistake,
    QuestionRecord,
    explanations,
    following,
    mistakes_of,
    question_record,
    title,
)
from course_pkg.grading.questions.report_html import report_html
from course_pkg.grading.questions.verdict import NOTHING, Failure, Verdict


def as_record(verdict: Verdict) -> QuestionRecord:
    """A verdict in short texts."""
    question = verdict.question
    failures = {
        name: failure
        and FailureRecord(
            **failure_texts(question, failure),
            explanations=explanations(question, failure.recognized),
            is_form=failure.is_form,
        )
        for name, failure in verdict.failures.items()
    }
    return question_record(question, failures, verdict.late_s, verdict.follows)


def failure_texts(question: Question, failure: Failure) -> dict[str, str | None]:
    """The reason, inputs, expected and given of a failure as short texts.

    Of a student's case for numbers by hand, the question's own fields are shown. Of long values,
    the part is shown in which they first differ; the reason then says where.
    """
    inputs = own_fields(question, failure.inputs)
    values = {"inputs": inputs, "expected": failure.expected, "given": failure.given}
    shown = {name: None if v is NOTHING else shorten(v) for name, v in values.items()}
    if not failure.inputs:  # nothing went in, as for files that the answer wrote
        shown["inputs"] = None
    reason = failure.reason[:500]
    if pair := shorten_pair(failure.expected, failure.given):
        shown["expected"], shown["given"], place = pair
        reason = f"{reason}, first at {place}"
    return {"reason": reason, "note": failure.note[:500], **shown}


def own_fields(question: Question, inputs: Any) -> Any:
    """Of a student's case, what the model answer reads of it; all of it if that is not known."""
    if not question.variant or not isinstance(inputs, dict):
        return inputs
    read = set()
    for node in ast.walk(ast.parse(question.answer)):
        match node:
            case ast.Subscript(
                value=ast.Name(id=question.given), slice=ast.Constant(value=str(key))
            ):
                read.add(key)
    return {key: value for key, value in inputs.items() if key in read} or inputs


def to_try(question_id: str, question: Question, property_name: str) -> str:
    """Code for a cell, on one line: the smallest failing input, and what the answer gives."""
    name = defined_name(question.answer)
    case = f'case = check("{question_id}", {name}).case("{property_name}")'
    if isinstance(
        question.call, str
    ):  # the check does more than one call: look at what it is given
        return f"{case}; case"
    arguments = ", ".join(f"case[{key!r}]" for key in question.call)
    return f"{case}; {name}({arguments})"


class Score(float):
    """The points of one question, a float that shows a report; nbgrader reads the plain text.

    Args:
        printed: what the answer printed.
        note: what the reader should know first, or "".
    """

    question_id: str
    verdict: Verdict
    printed: str
    note: str

    def __new__(
        cls, question_id: str, verdict: Verdict, printed: str = "", note: str = ""
    ) -> "Score":
        score = super().__new__(cls, verdict.earned)
        score.question_id = question_id
        score.verdict = verdict
        score.printed = printed
        score.note = note
        return score

    @property
    def report(self) -> str:
        """The report as plain text."""
        record = as_record(self.verdict)
        lines = [title(self.question_id, record)]
        if self.note:
            lines.append(f"  note: {self.note}")
        for mistake in self._mistakes(record):
            lines += [f"  {mark(False)} {p.says} ({p.earned}/{p.points})" for p in mistake.lost]
            lines.append(f"      {mistake.diagnosis}")
            lines += [f"      {label}: {text}" for label, text in mistake.details]
        passed = (p for p in record.properties if p.failure is None)
        lines += [f"  {mark(True)} {p.says} ({p.earned}/{p.points})" for p in passed]
        if text := following(record):
            lines.append(f"      {text}")
        return "\n".join(lines)

    def case(self, name: str) -> Any:
        """The smallest input on which the property called `name` failed, to try your answer on."""
        lost = self.verdict.failures.items()
        failed = {key: f for key, f in lost if f and f.inputs not in (NOTHING, {})}
        if name not in failed:
            raise KeyError(f"no property {name!r} failed here; these did: {', '.join(failed)}")
        return with_tensors(failed[name].inputs)

    def __str__(self) -> str:
        return self.report

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else self.report

    def __reduce__(self) -> tuple:  # a copy has all parts, or is the same score
        return Score, (self.question_id, self.verdict, self.printed, self.note)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The number for a notebook, where nbgrader reads it; the report for IPython's prompt."""
        printer.text(self.report if _at_prompt() else float.__repr__(self))

    def _repr_html_(self) -> str:
        record = as_record(self.verdict)
        mistakes = self._mistakes(record)
        return report_html(self.question_id, record, mistakes, self.note, self.printed)

    def _mistakes(self, record: QuestionRecord) -> list[Mistake]:
        """The mistakes, each with code that tries the answer on its input."""
        mistakes = []
        for mistake in mistakes_of(record):
            details = list(mistake.details)
            labels = [label for label, _ in details]
            if SMALLEST in labels:
                code = to_try(self.question_id, self.verdict.question, mistake.lost[0].name)
                details.insert(labels.index(SMALLEST) + 1, (TO_TRY, code))
            mistakes.append(replace(mistake, details=tuple(details)))
        return mistakes


def _at_prompt() -> bool:
    """Whether this is IPython in a terminal. A notebook's kernel has another kind of shell."""
    shell_of = getattr(builtins, "get_ipython", None)  # IPython adds it; nothing to import
    return shell_of is not None and type(shell_of()).__name__ == "TerminalInteractiveShell"


class Recorded:
    """What `check` returns under the grader: that the answer was recorded, and nothing more."""

    def __init__(self, question_id: str) -> None:
        self.question_id = question_id

    def __repr__(self) -> str:
        return f"{self.question_id}: recorded"
