"""One student's session with one assignment, where the answer key is: cases out, answers in.

The same `Session` serves a reader in the notebook's own process and a student behind a socket.
Inputs go out; nothing that comes in is judged until `verdict` is called, so a session can't be
used as an oracle. The last complete answer that came in time counts. The time of a question runs
from the last look at its inputs, so looking early, before the answer is finished, costs nothing.

Chapter: appendix/for-instructors.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import registry
from .answer_key import AnswerKey, answer_key
from .display import shorten
from .draws import Case, draw_cases, draw_variant
from .following import own_case
from .limits import ROOM, within_size
from .seeds import PUBLIC_KEY, question_rng, same_name
from .verdict import Verdict, is_unanswered, judge, lost

MAX_NAME = 100  # characters of a typed name


class Session:
    """key: secret of the submission (PUBLIC_KEY for readers). student: "" for the documents' case.

    answers: the answer key, by default the assignment's own. recorded: the outcomes that earlier
    sessions of the same student with the assignment recorded, by question; this one adds its own.

    >>> session = Session("bleu", student="ada")
    >>> session.verdict("corpus").earned
    0
    """

    def __init__(
        self,
        assignment: str,
        student: str = "",
        key: bytes = PUBLIC_KEY,
        clock: Callable[[], float] = time.monotonic,
        answers: AnswerKey | None = None,
        recorded: dict[str, Any] | None = None,
    ) -> None:
        self.student, self.key, self.clock = student, key, clock
        self.answers = answers or answer_key(assignment)
        self.questions = self.answers.assignment.questions
        self._seed = (student, assignment, registry.draws_hash(assignment) if not answers else "")
        self._cases: dict[str, list[Case]] = {}
        self._opened: dict[str, float] = {}
        self._outcomes: dict[str, Any] = {} if recorded is None else recorded
        self._late: dict[str, float] = {}
        self._typed: dict[str, str] = {}

    def variant(self, name: str, typed: str | None = None) -> Any:
        """The student's own case of a variant. Raises UnknownQuestion.

        typed: the name in the student's notebook. It does not change the case; if it is another
        student's, `verdict` can say whether a wrong number fits that one's case.
        """
        variants = {q.variant: q.variant for q in self.questions.values() if q.variant}
        known = f"variant of {self.answers.assignment.name}"
        found = registry.find(variants, name, known)
        if typed is not None:
            self._typed[name] = typed[:MAX_NAME]
        return draw_variant(self.answers, found, self.student)

    def inputs(self, name: str) -> list[Any]:
        """The inputs of a question's cases, in order; every call starts the question's time.

        An artifact gets no inputs: it is made before its cases are drawn, and sent once.
        """
        inputs = [case.inputs for case in self._asked(name)]
        self._opened[name] = self.clock()
        return inputs

    def unchanged(self, name: str) -> list[bool]:
        """For each case of a question, whether the answer must leave its arguments unchanged."""
        return [case.unchanged for case in self._asked(name)]

    def record(self, name: str, outcomes: Any) -> None:
        """Keep an answer, if its inputs were looked at, it is complete, and it came in time."""
        question, opened = self.answers[name], self._opened.get(name)
        if opened is None or not isinstance(outcomes, list):
            return
        took = self.clock() - opened
        if took > question.deadline:
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
        question, late_s = self.answers[name], self._late.get(name)
        outcomes = self._outcomes.get(name)
        if outcomes is None or (late_s and all(map(is_unanswered, outcomes))):
            return lost(question, late_s=late_s)
        verdict = judge(self.answers, question, self.cases(name), outcomes, explain)
        if question.follows and verdict.earned < question.points:
            verdict = self._following(verdict, outcomes, explain)
        return replace(self._with_note(verdict, outcomes), late_s=late_s)

    def verdicts(self) -> list[Verdict]:
        """The verdict on every question of the assignment."""
        return [self.verdict(name) for name in self.questions]

    def _following(self, verdict: Verdict, outcomes: list[Any], explain: bool) -> Verdict:
        """The verdict, judged again on the student's own values of the questions it follows.

        An answer that follows from them earns everything. A mistake that gives what was given from
        them is recognized, if none is from the right values.
        """
        question, own = verdict.question, []
        for case in self.cases(question.name):
            found = own_case(self.answers, question, case, self._outcomes)
            if found is None:
                return verdict
            own.append(found)
        again = judge(self.answers, question, own, outcomes, explain)
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
        question, typed = verdict.question, self._typed.get(verdict.question.variant)
        own = typed is None or same_name(typed) == same_name(self.student)
        if own or verdict.earned == question.points:
            return verdict
        case = draw_variant(self.answers, question.variant, typed)
        expected, failures = self.answers.expected(question, case), dict(verdict.failures)
        for (name, failure), outcome in zip(failures.items(), outcomes, strict=True):
            if failure is None or "value" not in outcome:
                continue
            if self.answers.difference(question, name, expected, outcome["value"]) is None:
                note = other_name(typed, self.student)
                failures[name] = replace(failure, note=note, recognized=())
        return replace(verdict, failures=failures)

    def cases(self, name: str) -> list[Case]:
        """The cases of a question, with the right values. Raises UnknownQuestion, ChecksError."""
        if name not in self._cases:
            question = self.answers[name]
            rng = question_rng(self.key, *self._seed, name)
            variant = self.variant(question.variant) if question.variant else None
            self._cases[name] = draw_cases(self.answers, question, rng, variant)
        return self._cases[name]

    def _asked(self, name: str) -> list[Case]:
        """The cases that the student's side is asked for."""
        return [Case("", {}, None)] if self.answers[name].artifact else self.cases(name)


def other_name(typed: str, student: str) -> str:
    """That a number fits the case of the name in the notebook, not that of the submission.

    >>> other_name("Hana", "hana-m")
    "your notebook says 'Hana', but you submitted as 'hana-m': your number fits the case of 'Hana'"
    """
    if not same_name(typed):
        says, fits = "has no name", "the example case"
    else:
        name = shorten(typed, MAX_NAME)  # hidden characters take several each
        says, fits = f"says {name}", f"the case of {name}"
    return f"your notebook {says}, but you submitted as {student!r}: your number fits {fits}"
