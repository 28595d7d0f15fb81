"""Answers that need no work are found, whichever way they give their values."""

from types import SimpleNamespace

from course_pkg.grading.guesses import MOST, STUDENTS, best_guess
from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.question import parse_questions
from tests.tables import each_row

QUESTION = """
[question.one]
call = "call"
answer = "def answer(right): return right"
compare = { kind = "row", items = { a = { kind = "exactly" }, b = { kind = "COMPARED" } } }
property.only = { points = 1, cases = CASES, says = "right", hint = "think" }
"""


def large(rng):
    return rng.randrange(10**6)


def coin(rng):
    return rng.random() < 0.5


@each_row(
    ("right", "compared", "cases", "guessed"),
    [
        (lambda rng, size, given: (7, True), "exactly", 3, True),
        (lambda rng, size, given: (7, large(rng)), "anything", 3, True),  # only `a` is judged
        (lambda rng, size, given: (7, large(rng)), "exactly", 3, False),
        (lambda rng, size, given: ([5, 6, 8][size], size == 1), "exactly", 3, True),  # in turn
        (lambda rng, size, given: ([5, large(rng), 8][size], 0), "exactly", 3, False),
        (lambda rng, size, given: (7, coin(rng)), "exactly", 1, True),
        (lambda rng, size, given: (7, coin(rng)), "exactly", 3, False),
        (lambda rng, size, given: (given["x"], 7), "exactly", 3, True),  # an argument
        (lambda rng, size, given: (given["x"][1], len(given["x"])), "exactly", 3, True),
        (lambda rng, size, given: (list(given["names"]), 7), "exactly", 3, True),
        (lambda rng, size, given: ([list(given["names"])[1]], given["x"]), "exactly", 3, True),
        (lambda rng, size, given: (2 * given["x"][0], 7), "exactly", 3, False),
        (lambda rng, size, given: (given["_hidden"], 7), "exactly", 3, False),
    ],
)
def test_a_guess_by_place_and_by_part_is_found_where_it_is_right(right, compared, cases, guessed):
    def draw(rng, size):
        given = {"x": [large(rng) for _ in range(3)], "_hidden": large(rng)}
        given["names"] = {f"name {large(rng)}": 0, f"other {large(rng)}": 1}
        return given | {"_right": right(rng, size, given)}

    text = QUESTION.replace("COMPARED", compared).replace("CASES", str(cases))
    functions = SimpleNamespace(one_only=draw, one_expected=lambda inputs: inputs["_right"])
    callers = SimpleNamespace(call=lambda answer, inputs: answer(inputs["_right"]))
    answers = AnswerKey(parse_questions("small", text), functions, callers)
    question = answers["one"]
    guess = best_guess(answers, question, question.by_name("only"))
    assert guess.right == STUDENTS if guessed and cases > 1 else (guess.right > MOST) == guessed
