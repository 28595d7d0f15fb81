"""What a question is: data, without running anything. `parsing` reads it from `questions.toml`.

A `Question` says how an answer is called, how its value is compared, what the model answer is,
which properties earn points, and which wrong answers learners give. One `WrongAnswer` filters the
draws, recognizes the mistake for the feedback, is tested to lose exactly its points, and is a row
of the printed matrix.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass
from typing import Any

DEADLINE_S = 60.0
JUDGING_S = 2.0


class ChecksError(RuntimeError):
    """A question is written wrongly: an author's mistake, never a student's."""


@dataclass(frozen=True)
class Property:
    """Something that must hold, worth `points`, earned only if all its cases pass.

    says: what must hold, in the student's words. hint: what to look at on failure. draw: the
    function in `cases.py` that draws the inputs of one case; "" for a number worked by hand.
    cases: how many are drawn. unchanged: an answer must also leave its arguments unchanged.
    constant: by nature, the right answers are the same for everybody; then it is worth one point.
    attested: part of it is only observed in the student's process, which a program there can forge.
    compare: the comparator, if it is not the question's.
    """

    name: str
    points: int
    says: str
    hint: str
    draw: str = ""
    cases: int = 3
    unchanged: bool = False
    constant: bool = False
    attested: bool = False
    compare: dict[str, Any] | None = None


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer: a patch of the model answer, an expression around it, or a whole answer.

    says: what the student is told. loses: the properties that it loses. patch: pairs of the old
    text, which the model answer has exactly once, and the new one. wrap: an expression of
    `answer` and the names of the inputs.
    """

    name: str
    says: str
    loses: tuple[str, ...]
    patch: tuple[tuple[str, str], ...] = ()
    wrap: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Question:
    """One question. Its points are the sum over its properties.

    call: the names of the inputs that an answer gets, or the function of `student.py` that calls
    it, or () for a number worked by hand. Such a number has a variant, the function of `cases.py`
    that draws the student's own case (by default the question's name up to the slash), and
    `given`, the case's name in the notebook. compare: the comparator, by default equal numbers;
    because: the reason for its tolerance. answer: the model answer's code. expected:
    the function of `cases.py` that gives the right value. deadline: seconds from the first look
    at the inputs to the last answer that counts. judging: seconds to judge an answer, without
    recognizing mistakes. artifact: for files that the answer's program wrote, the bytes that they
    may have; `call` reads them, once for all properties, and no input crosses. follows: the
    earlier questions on whose values a number worked by hand builds; see `following`.
    """

    name: str
    answer: str
    compare: dict[str, Any]
    properties: tuple[Property, ...]
    wrong: tuple[WrongAnswer, ...] = ()
    call: tuple[str, ...] | str = ()
    variant: str = ""
    given: str = ""
    because: str = ""
    expected: str = ""
    deadline: float = DEADLINE_S
    judging: float = JUDGING_S
    artifact: int = 0
    follows: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """The points of the question: the sum over its properties."""
        return sum(p.points for p in self.properties)

    def by_name(self, name: str) -> Property:
        """The property of that name. Raises KeyError."""
        return {p.name: p for p in self.properties}[name]

    def losing(self, name: str) -> list[WrongAnswer]:
        """The wrong answers that lose the property of that name."""
        return [wrong for wrong in self.wrong if name in wrong.loses]


@dataclass(frozen=True)
class Assignment:
    """The questions of an assignment by name, and what they share.

    imports: libraries that answers need. masked: modules that would answer a question, which the
    grader hides from students. setup: the imports that every model answer may use. gpu: "none",
    "optional" (answers use a GPU if there is one) or "required" (they wait for one). models: the
    cached models that the checker judges with. cell_s: the seconds that a cell may take, if that
    is more than the grader allows anyway, for a cell that trains.
    """

    name: str
    questions: dict[str, Question]
    imports: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    setup: str = ""
    gpu: str = "none"
    models: tuple[str, ...] = ()
    cell_s: float = 0.0

    @property
    def artifacts_s(self) -> float:
        """The seconds that judging all artifacts may take."""
        return sum(q.judging for q in self.questions.values() if q.artifact)


def function_name(text: str) -> str:
    """The Python name for a question's or variant's name.

    >>> function_name("by-hand/two-references")
    'by_hand_two_references'
    """
    return text.replace("-", "_").replace("/", "_")
