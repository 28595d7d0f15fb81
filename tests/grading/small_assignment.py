"""A small assignment as data, for the tests of questions: `double(n)`, and 2n worked by hand."""

from types import SimpleNamespace

from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.question import parse_questions

QUESTIONS = """
setup = "import math"

[question.double]
call = ["n"]
compare = { kind = "number", rtol = 1e-9 }
because = "rounding"
answer = '''
def double(n):
    return 2 * n
'''

[question.double.property.small]
points = 1
says = "2n is returned"
hint = "multiply"

[question.double.property.large]
points = 2
says = "2n is returned for large n too"
hint = "no table"

[question.double.wrong.square]
says = "you squared"
loses = ["small", "large"]
patch = [["2 * n", "n * n"]]

[question.double.wrong.triple]
says = "you tripled"
patch = [["2 *", "3 *"]]

[question.double.wrong.table]
says = "you looked it up"
loses = ["large"]
wrap = "answer(n) if n < 200 else math.nan"

[question."by-hand/twice"]
variant = "one-number"
given = "case"
compare = { kind = "number" }
answer = '''
twice = 2 * case["n"]
'''

[question."by-hand/twice".property.value]
points = 1
says = "twice the number"
hint = "add it to itself"

[question."by-hand/twice".wrong.half]
says = "you halved"
patch = [["2 *", "0.5 *"]]
"""

CASES = {
    "double_small": lambda rng, size: {"n": rng.randint(1, 99) + size},
    "double_large": lambda rng, size: {"n": 1000 + rng.randint(1, 9)},
    "double_expected": lambda inputs: 2 * inputs["n"],
    "one_number": lambda rng: {"n": 21 if rng is None else rng.randint(1, 10_000)},
    "by_hand_twice_expected": lambda inputs: 2 * inputs["n"],
}


def answer_key(*changes: tuple[str, str], **cases) -> AnswerKey:
    """The answer key of the small assignment.

    changes: old and new texts in QUESTIONS. cases: functions that replace those of CASES.
    """
    text = QUESTIONS
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return AnswerKey(parse_questions("small", text), SimpleNamespace(**{**CASES, **cases}))
