"""One student's sitting of one assignment, on the trusted side: cases out, answers in, results.

The same `Exam` serves a reader in process and a student behind a socket. Inputs go out; of what
comes in nothing is judged until `results` is called, so a sitting can't be used as an oracle.
The last complete answer within a question's deadline, counted from the first look at its inputs,
is the one that counts.

Chapter: appendix/for-instructors.
"""

import time
from collections.abc import Callable
from typing import Any

from . import registry
from .judge import QuestionResult, judge
from .questions import Case, draw_cases
from .seeds import PUBLIC_KEY, question_rng


def variant_rng(student: str, assignment: str, name: str) -> Any:
    """The generator of a student's own small case: public, for it must be shown to them."""
    return question_rng(PUBLIC_KEY, "variant", student, assignment, name)


class Exam:
    """key: secret of the course (PUBLIC_KEY for readers). student: "" for the documents' case.

    >>> exam = Exam("lora-math", student="ada")
    >>> exam.result("counts").earned
    0
    """

    def __init__(
        self,
        assignment: str,
        student: str = "",
        key: bytes = PUBLIC_KEY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.assignment, self.student, self.key, self.clock = assignment, student, key, clock
        self.questions = registry.trusted(assignment)
        self._hash = registry.assignment_hash(assignment)
        self._cases: dict[str, list[Case]] = {}
        self._opened: dict[str, float] = {}
        self._answers: dict[str, Any] = {}

    def inputs(self, name: str) -> list[Any]:
        """The inputs of a question's cases, in order; starts its deadline at the first call."""
        cases = self._draw(name)
        self._opened.setdefault(name, self.clock())
        return [case.inputs for case in cases]

    def record(self, name: str, outcomes: Any) -> None:
        """Keep what was handed in, if its inputs were looked at and it came in time."""
        question = registry.find(self.questions, name, f"question of {self.assignment}")
        opened = self._opened.get(name)
        complete = isinstance(outcomes, list) and len(outcomes) == len(self._draw(name))
        if opened is not None and complete and self.clock() - opened <= question.deadline_s:
            self._answers[name] = outcomes

    def result(self, name: str) -> QuestionResult:
        """The verdict on one question, as things stand."""
        return judge(self.questions[name], self._draw(name), self._answers.get(name))

    def results(self) -> list[QuestionResult]:
        """The verdict on every question of the assignment."""
        return [self.result(name) for name in self.questions]

    def _draw(self, name: str) -> list[Case]:
        if name not in self._cases:
            question = registry.find(self.questions, name, f"question of {self.assignment}")
            variant = None
            if question.variant is not None:
                make = registry.ask(self.assignment).VARIANTS[question.variant]
                own = variant_rng(self.student, self.assignment, question.variant)
                variant = make(own if self.student else None)
            rng = question_rng(self.key, self.student, self.assignment, name, self._hash)
            self._cases[name] = draw_cases(question, rng, variant)
        return self._cases[name]
