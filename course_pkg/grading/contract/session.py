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
from .draws import Case, draw_cases, draw_variant
from .seeds import PUBLIC_KEY, question_rng
from .verdict import Verdict, is_unanswered, judge, lost


class Session:
    """key: secret of the submission (PUBLIC_KEY for readers). student: "" for the documents' case.

    answers: the answer key, by default the assignment's own.

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
    ) -> None:
        self.student, self.key, self.clock = student, key, clock
        self.answers = answers or answer_key(assignment)
        self.questions = self.answers.assignment.questions
        self._seed = (student, assignment, registry.draws_hash(assignment) if not answers else "")
        self._cases: dict[str, list[Case]] = {}
        self._opened: dict[str, float] = {}
        self._outcomes: dict[str, Any] = {}
        self._late: dict[str, float] = {}

    def variant(self, name: str) -> Any:
        """The student's own case of a variant. Raises UnknownQuestion."""
        variants = {q.variant: q.variant for q in self.questions.values() if q.variant}
        known = f"variant of {self.answers.assignment.name}"
        return draw_variant(self.answers, registry.find(variants, name, known), self.student)

    def inputs(self, name: str) -> list[Any]:
        """The inputs of a question's cases, in order; every call starts the question's time."""
        cases = self.cases(name)
        self._opened[name] = self.clock()
        return [case.inputs for case in cases]

    def unchanged(self, name: str) -> list[bool]:
        """For each case of a question, whether the answer must leave its arguments unchanged."""
        return [case.unchanged for case in self.cases(name)]

    def record(self, name: str, outcomes: Any) -> None:
        """Keep an answer, if its inputs were looked at, it is complete, and it came in time."""
        question, opened = self.answers[name], self._opened.get(name)
        if opened is None or not isinstance(outcomes, list):
            return
        took = self.clock() - opened
        if took > question.deadline:
            self._late[name] = took
        elif len(outcomes) == len(self.cases(name)):
            self._outcomes[name] = outcomes
            self._late.pop(name, None)

    def verdict(self, name: str) -> Verdict:
        """The verdict on one question, as things are now."""
        question, late_s = self.answers[name], self._late.get(name)
        outcomes = self._outcomes.get(name)
        if outcomes is None or (late_s and all(map(is_unanswered, outcomes))):
            return lost(question, late_s=late_s)
        verdict = judge(self.answers, question, self.cases(name), outcomes)
        return replace(verdict, late_s=late_s)

    def verdicts(self) -> list[Verdict]:
        """The verdict on every question of the assignment."""
        return [self.verdict(name) for name in self.questions]

    def cases(self, name: str) -> list[Case]:
        """The cases of a question, with the right values. Raises UnknownQuestion, ChecksError."""
        if name not in self._cases:
            question = self.answers[name]
            rng = question_rng(self.key, *self._seed, name)
            variant = self.variant(question.variant) if question.variant else None
            self._cases[name] = draw_cases(self.answers, question, rng, variant)
        return self._cases[name]
