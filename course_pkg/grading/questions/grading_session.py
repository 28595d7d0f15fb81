"""One student's work on one assignment, on the side of the answer key: cases out, answers in.

Inputs go out; nothing that comes in is judged until `verdict` is called, so the session can't be
used as an oracle. The last complete answer that came in time counts. The time of a question runs
from the last look at its inputs.

One mistake should not cost the points of every number that builds on it. A wrong answer to a
question that `follows` earlier ones is judged again, with the student's own values in place of the
right ones. Those are the student's to choose, so they count only if they come from the student's
own case and leave the question as hard as it was:

- they have the form of the right values: as many numbers, whole where those are, and finite;
- at least half of the numbers are right, or all are what a known mistake gives in this case;
- with them, each wrong answer of the question still differs from the right one. Eight zeros, for
  which every rule gives zero, earn nothing.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import AnswerKey, answer_key, defined_name
from course_pkg.grading.questions.comparators import ROOM, within_size
from course_pkg.grading.questions.display import shorten
from course_pkg.grading.questions.draws import (
    PUBLIC_SECRET,
    Case,
    draw_cases,
    draw_variant,
    question_rng,
    same_name,
    undetected,
)
from course_pkg.grading.questions.plain_values import Array
from course_pkg.grading.questions.question import DEADLINE_S, Question
from course_pkg.grading.questions.verdict import Verdict, is_unanswered, judge, lost

MAX_NAME = 100  # characters of a typed name
LARGEST = 1e12  # magnitude of a number that is followed


class GradingSession:
    """A student's session on one assignment, from the first look at the inputs to the verdicts.

    Args:
        student: "" for the example case.
        secret: the submission's key (PUBLIC_SECRET for readers).
        clock: seconds.
        answers: the answer key, by default the assignment's own.
        recorded: outcomes by question from earlier sessions of the student, which are added to.
        called: other names of the student: a case that belongs to one of them is theirs too.
    """

    def __init__(
        self,
        assignment: str,
        student: str = "",
        secret: bytes = PUBLIC_SECRET,
        clock: Callable[[], float] = time.monotonic,
        answers: AnswerKey | None = None,
        recorded: dict[str, Any] | None = None,
        called: tuple[str, ...] = (),
    ) -> None:
        self.student = student
        self.secret = secret
        self.clock = clock
        self.answers = answers or answer_key(assignment)
        self.questions = self.answers.assignment.questions
        self._cases: dict[str, list[Case]] = {}
        self._opened: dict[str, float] = {}
        self._outcomes: dict[str, Any] = {} if recorded is None else recorded
        self._late: dict[str, float] = {}
        self._typed: dict[str, str] = {}
        self._called = {_words(name) for name in called}
        self._signed: dict[str, str] = {}  # by variant: the student's name in the notebook

    def variant(self, name: str, typed: str | None = None) -> Any:
        """The student's own case of a variant. Raises UnknownQuestion.

        typed: the name in the notebook. Only one of the student's own changes the case; with any
        other, `verdict` says if a wrong number fits it.
        """
        variants = {q.variant: q for q in self.questions.values() if q.variant}
        registry.find(variants, name, f"variant of {self.answers.assignment.name}")
        if typed is not None:
            self._typed[name] = typed[:MAX_NAME]
            signed = typed if _words(typed[:MAX_NAME]) in self._called else self.student
            if signed != self._signed.get(name, self.student):
                self._signed[name] = signed
                for question in self.questions.values():
                    if question.variant == name:
                        self._cases.pop(question.name, None)
        return draw_variant(self.answers, name, self._signed.get(name, self.student))

    def inputs(self, name: str) -> list[Any]:
        """The inputs of a question's cases, in order; every call starts the question's time."""
        inputs = [case.inputs for case in self._asked(name)]
        self._opened[name] = self.clock()
        return inputs

    def unchanged(self, name: str) -> list[bool]:
        """For each case of a question, whether the answer must leave its arguments unchanged."""
        return [case.unchanged for case in self._asked(name)]

    def record(self, name: str, outcomes: Any, waited_s: float = 0.0) -> None:
        """Keep an answer, if its inputs were looked at, it is complete, and it came in time.

        waited_s: how long it waited for a processor, as the student's side says, which is not
        trusted: whoever says too much gets at most the time of the cell.
        """
        question = self.answers[name]
        opened = self._opened.get(name)
        if opened is None or not isinstance(outcomes, list):
            return
        took = self.clock() - opened - (waited_s if waited_s > 0 else 0.0)
        if took > DEADLINE_S:
            self._late[name] = took
        elif len(outcomes) == len(self._asked(name)):
            cases = self.cases(name)
            if question.artifact:
                outcomes = outcomes * len(cases)
            pairs = zip(outcomes, cases, strict=True)
            room = max(ROOM, 2 * question.artifact)  # of a file, names and structure count too
            self._outcomes[name] = [
                within_size(given, case.expected, room) for given, case in pairs
            ]
            self._late.pop(name, None)

    def verdict(self, name: str, explain: bool = True) -> Verdict:
        """The verdict on one question, as things are now. explain: as in `judge`."""
        question = self.answers[name]
        outcomes = self._outcomes.get(name)
        late_s = self._late.get(name)
        if outcomes is None or (late_s and all(map(is_unanswered, outcomes))):
            return lost(question, late_s=late_s)
        verdict = judge(self.answers, question, self.cases(name), outcomes, explain)
        if question.follows and verdict.earned < question.points:
            verdict = self._following(verdict, outcomes, explain)
        return replace(self._with_note(verdict, outcomes), late_s=late_s)

    def _following(self, verdict: Verdict, outcomes: list[Any], explain: bool) -> Verdict:
        """The verdict, judged again on the student's own values of the questions it follows."""
        question = verdict.question
        cases = [
            _own_case(self.answers, question, case, self._outcomes)
            for case in self.cases(question.name)
        ]
        if None in cases:
            return verdict
        again = judge(self.answers, question, cases, outcomes, explain)
        if again.earned == question.points:
            return replace(again, follows=question.follows)
        failures = dict(verdict.failures)
        for name, failure in failures.items():
            other = again.failures[name]
            if failure is not None and other is not None and not failure.recognized:
                failures[name] = replace(failure, recognized=other.recognized)
        return replace(verdict, failures=failures)

    def _with_note(self, verdict: Verdict, outcomes: list[Any]) -> Verdict:
        """The verdict, which says so if a number by hand fits the case of the notebook's name."""
        question = verdict.question
        typed = self._typed.get(question.variant)
        names = (self.student, self._signed.get(question.variant, self.student))
        own = typed is None or same_name(typed) in map(same_name, names)
        if own or verdict.earned == question.points:
            return verdict
        case = draw_variant(self.answers, question.variant, typed)
        expected = self.answers.expected(question, case)
        failures = dict(verdict.failures)
        for (name, failure), outcome in zip(failures.items(), outcomes, strict=True):
            if failure is None or "value" not in outcome:
                continue
            if self.answers.difference(question, name, expected, outcome["value"]) is None:
                note = other_name(typed, self.student)
                failures[name] = replace(failure, note=note, recognized=())
        return replace(verdict, failures=failures)

    def cases(self, name: str) -> list[Case]:
        """The cases of a question, with the right values. Raises UnknownQuestion, QuestionError."""
        if name not in self._cases:
            question = self.answers[name]
            rng = question_rng(self.secret, self.student, self.answers.assignment.name, name)
            variant = self.variant(question.variant) if question.variant else None
            self._cases[name] = draw_cases(self.answers, question, rng, variant)
        return self._cases[name]

    def _asked(self, name: str) -> list[Case]:
        """The cases for the student's side: an artifact has one, without inputs."""
        return [Case("", {}, None)] if self.answers[name].artifact else self.cases(name)


def _words(name: str) -> str:
    """A name by which its owner is recognized: "Lovelace, Ada" is "Ada Lovelace"."""
    return " ".join(sorted(re.findall(r"\w+", same_name(name))))


def other_name(typed: str, student: str) -> str:
    """Says that a number fits the case of the notebook's name, not of the submission's."""
    says = "has no name"
    fits = "the example case"
    if same_name(typed):
        name = shorten(typed, MAX_NAME)  # hidden characters take several each
        says = f"says {name}"
        fits = f"the case of {name}"
    return f"your notebook {says}, but you submitted as {student!r}: your number fits {fits}"


def _own_case(
    answers: AnswerKey, question: Question, case: Case, outcomes: Mapping[str, Any]
) -> Case | None:
    """A case with the student's own values of what it follows; None if one can't count."""
    followed: dict[str, Any] = {}
    for name in question.follows:
        earlier = answers[name]
        right = answers.expected(earlier, case.inputs)
        try:
            value = same_form(right, outcomes[name][0]["value"])
        except (KeyError, ValueError):  # not answered, an error, or another form
            return None
        if not (
            _half_right(answers, earlier, right, value) or _known(answers, earlier, case, value)
        ):
            return None
        followed[defined_name(earlier.answer)] = value
    try:
        expected = answers.expected(question, case.inputs, followed)
        own = replace(case, expected=expected, followed=followed)
        itself = answers.difference(question, case.property, expected, expected)
        missed = undetected(answers, question, question.by_name(case.property), [own])
    except Exception:  # no value comes from these: a division by zero, or a code above 15
        return None
    return own if itself is None and not missed else None


def same_form(right: Any, given: Any) -> Any:
    """A given value with the lengths and number types of the right one.

    Raises:
        ValueError: it has another form, or a number that is not finite or above LARGEST.
    """
    if isinstance(given, Array) and given.shape == ():
        given = given.numpy().item()
    if isinstance(right, list | tuple) and isinstance(given, list | tuple):
        if len(given) == len(right):
            return type(right)(same_form(*pair) for pair in zip(right, given, strict=True))
    elif _is_number(right) and _is_number(given) and abs(given) <= LARGEST:
        number = type(right)(given)
        if number == given:
            return number
    raise ValueError("not of the form of the right value")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _half_right(answers: AnswerKey, question: Question, right: Any, value: Any) -> bool:
    if not isinstance(right, list | tuple):
        return _agree(answers, question, right, value)
    mixed = ([*right[:i], item, *right[i + 1 :]] for i, item in enumerate(value))
    return 2 * sum(_agree(answers, question, right, one) for one in mixed) >= len(right)


def _known(answers: AnswerKey, question: Question, case: Case, value: Any) -> bool:
    """Whether one of the question's wrong answers gives the value in this case."""
    outcomes = (answers.outcome(question, case.inputs, wrong) for wrong in question.wrong)
    return any("value" in o and _agree(answers, question, o["value"], value) for o in outcomes)


def _agree(answers: AnswerKey, question: Question, expected: Any, value: Any) -> bool:
    """Whether a value earns every property of a question whose right value is `expected`."""
    return all(
        answers.difference(question, p.name, expected, value) is None for p in question.properties
    )
