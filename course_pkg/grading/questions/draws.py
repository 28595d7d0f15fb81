"""The cases of a question: drawn until each wrong answer fails a case of every property it loses.

A case follows from a secret, the student, the name of the question, and what its draws compute: it
is the same at every regrade and resubmission, and nobody without the secret can predict it. Readers
and stock nbgrader use PUBLIC_SECRET, so that everybody can reproduce what they see.
"""

import hashlib
import hmac
import unicodedata
from dataclasses import dataclass
from random import Random
from typing import Any

from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.question import (
    Property,
    Question,
    QuestionError,
    WrongAnswer,
    function_name,
)

MAX_DRAWS = 200
PUBLIC_SECRET = b"public"


@dataclass(frozen=True)
class Case:
    """The inputs of one case of a property, and the right value for them.

    followed: the student's own values of the questions that this one follows, if they are not the
    right ones. They stay where the answer key is.
    """

    property: str
    inputs: Any
    expected: Any
    unchanged: bool = False
    followed: dict[str, Any] | None = None


def draw_cases(
    answers: AnswerKey, question: Question, rng: Random, variant: Any = None
) -> list[Case]:
    """The cases of a question, in the order of its properties, small ones first.

    Args:
        variant: the student's own case, for a number worked by hand.

    Raises:
        QuestionError: the draws don't tell a wrong answer from the right one.
    """
    cases: list[Case] = []
    for prop in question.properties:
        attempts = MAX_DRAWS if prop.draw else 1  # the student's own case is always the same
        for _ in range(attempts):
            drawn = [draw_case(answers, question, prop, rng, i, variant) for i in range(prop.cases)]
            if not (missed := undetected(answers, question, prop, drawn)):
                break
        else:
            raise QuestionError(
                f"{question.name}/{prop.name}: {attempts} draws don't tell {', '.join(missed)} "
                "from the right value"
            )
        cases += drawn
    return cases


def draw_variant(answers: AnswerKey, variant: str, student: str) -> Any:
    """A student's own small case, which is shown to them; the example case for ""."""
    student = same_name(student)
    rng = question_rng(PUBLIC_SECRET, "variant", student, answers.assignment.name, variant)
    question = next(q for q in answers.assignment.questions.values() if q.variant == variant)
    return answers.draw(question, function_name(variant), rng if student else None)


def undetected(
    answers: AnswerKey, question: Question, prop: Property, cases: list[Case]
) -> list[str]:
    """The wrong answers that lose the property, but pass all of these cases of it."""
    return [
        wrong.name
        for wrong in question.losing(prop.name)
        if not any(_fails(answers, question, case, wrong) for case in cases)
    ]


def _fails(answers: AnswerKey, question: Question, case: Case, wrong: WrongAnswer) -> bool:
    result = answers.outcome(question, case.inputs, wrong, case.unchanged, case.followed)
    if "value" not in result:
        return True
    return answers.difference(question, case.property, case.expected, result["value"]) is not None


def draw_case(
    answers: AnswerKey,
    question: Question,
    prop: Property,
    rng: Random,
    size: int,
    variant: Any = None,
) -> Case:
    """One case of a property, drawn once: it need not tell a wrong answer from the right one."""
    inputs = variant
    if prop.draw:
        inputs = answers.draw(question, prop.draw, rng, size, **(prop.options or {}))
    expected = answers.expected(question, inputs)
    if question.artifact:  # what is expected of files is not a file itself
        return Case(prop.name, inputs, expected)
    if (reason := answers.difference(question, prop.name, expected, expected)) is not None:
        raise QuestionError(
            f"{question.name}/{prop.name}: expected is not equal to itself: {reason}"
        )
    return Case(prop.name, inputs, expected, prop.unchanged)


def same_name(name: str) -> str:
    """A name without surrounding space, case, and differences in how accents are encoded."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).strip().casefold())


def question_rng(secret: bytes, *parts: str) -> Random:
    """A generator that depends on `secret` and every one of `parts`, and on nothing else."""
    encoded = [part.encode("utf-8") for part in parts]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return Random(int.from_bytes(hmac.new(secret, message, hashlib.sha256).digest(), "big"))


def each_then_any(rng: Random, size: int, kinds: int) -> int:
    """The kind of a case: each of so many once, then any, so that nobody knows their order."""
    return size if size < kinds else rng.randrange(kinds)


def numpy_rng(rng: Random) -> Any:
    """A numpy generator that continues the randomness of `rng`: for draws of arrays."""
    import numpy as np

    return np.random.default_rng(rng.getrandbits(128))


def normal_arrays(rng: Random, **shapes: int | tuple[int, ...]) -> dict[str, Any]:
    """A float32 array of normally distributed numbers for each name and shape."""
    normal = numpy_rng(rng).standard_normal
    return {name: normal(shape, dtype="float32") for name, shape in shapes.items()}
