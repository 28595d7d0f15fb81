"""Comparators, calling an answer, and verdicts."""

import copy
import math
import random

import numpy as np
import pytest
import torch

from course_pkg.grading.questions.calling import NOT_RUN, outcome
from course_pkg.grading.questions.comparators import array, exactly, is_form, number, parts, row
from course_pkg.grading.questions.display import shorten, shorten_pair
from course_pkg.grading.questions.draws import Case, draw_cases
from course_pkg.grading.questions.plain_values import as_plain
from course_pkg.grading.questions.report import as_record
from course_pkg.grading.questions.verdict import NOTHING, finite, judge, wrong_number
from tests.grading.small_assignment import answer_key


def test_number_accepts_and_refuses():
    equal = number()
    right = (4, 4.0, np.float32(4), np.array(4.0))
    assert [given for given in right if equal(4, as_plain(given)) is not None] == []
    wrong = (True, None, "4", [4], math.nan, math.inf, 10**400, 4.1, 5)
    assert [given for given in wrong if equal(4, given) is None] == []


def test_integers_are_asked_for_by_their_type():
    equal = number(integer=True)
    assert [given for given in (4, np.int64(4), np.array(4)) if equal(4, as_plain(given))] == []
    for given in (4.0, np.float32(4), np.array(4.0), True):
        assert "expected an" in str(equal(4, as_plain(given))) or given is True
    codes = array(atol=0.4, integer=True)
    right = as_plain(np.array([1, 2], "uint8"))
    assert codes(right, as_plain(np.array([1, 2]))) is None
    reason = codes(right, as_plain(np.array([1.0, 2.0])))
    assert reason == "expected an integer dtype, but float64 was given" and is_form(reason)


def test_array_says_what_is_wrong():
    expected = as_plain(np.ones((2, 3), "float32"))
    for given, reason in (
        (np.ones((3, 2), "float32"), "expected the shape (2, 3), but (3, 2) was given"),
        (np.full((2, 3), np.nan, "float32"), "NaN"),
        (np.ones((2, 3), "float32") * 1.001, "relative error 0.001"),
        ([[1.0] * 3] * 2, "expected a tensor, but a list was given"),
        (None, "None was given"),
    ):
        assert reason in array(rtol=1e-5)(expected, as_plain(given))


def test_array_compares_bits_without_a_tolerance_and_the_dtype_if_it_is_named():
    one = np.ones(2, "float32")
    expected = as_plain(one)
    assert array()(expected, expected) is None
    assert array()(expected, as_plain(np.nextafter(one, np.float32(2)))) is not None
    given = as_plain(one.astype("float16"))
    assert array(1e-3)(expected, given) is None
    reason = array(1e-3, dtype="float32")(expected, given)
    assert reason == "expected the dtype float32, but float16 was given"
    assert array(1e-5)(as_plain(np.array(True)), as_plain(np.array(False))) == "the value differs"


def test_exactly_tells_true_from_one_and_text_from_bytes():
    assert exactly()([1], [True]) and exactly()(["a"], [b"a"]) and exactly()([1], 1)
    assert exactly()({"a": [(1,)]}, {"a": ([1],)}) is None  # a tuple is as good as a list
    assert exactly()(["a", 1], ["a", 1]) is None


def test_parts_and_rows_name_what_differs_and_what_is_missing():
    compare = parts({"loss": number()})
    assert compare({"loss": 1}, {"loss": 2}) == "loss: the number differs"
    assert compare({"loss": 1}, {}) == "'loss' is missing"
    assert "expected a dict" in compare({"loss": 1}, [1])
    named = row({"r": number(), "BP": number()})
    assert named([8, 1.0], (8, 0.5)) == "BP: the number differs"
    assert named([8, 1.0], [8]) == "expected a list of 2 (r, BP), but a list of 1 was given"
    assert "but a dict was given" in named([8, 1.0], {})
    assert row(each=number())([1, 2], [1, 3]) == "item 2: the number differs"
    pairs = row(names=["n = 1"], each=row(names=["matches", "total"], each=number()))
    assert pairs([[5, 9]], [(5, 8)]) == "n = 1: total: the number differs"
    assert "a list of 1 (n = 1), but a list of 2" in pairs([[5, 9]], [(5, 9), (1, 2)])


def test_a_number_that_is_rounded_too_much_is_recognized():
    assert wrong_number([(0.5333, 0.53), (2.71828, 2.7)]) == ("rounded",)
    assert wrong_number([(0.5333, 0.53), (2.71828, 2.6)]) == ()
    others = [(0.2, 0), (0.98, 1), (0.6, 0.5), (53, 53.0), (0.5, "1"), (0.5, True), (0.5, 10**999)]
    for expected, given in others:
        assert wrong_number([(expected, given)]) == ()


def test_an_answer_gets_tensors_and_changes_only_its_own_copy():
    """A changed argument is an error only if the case asks for that."""
    inputs = as_plain({"x": np.ones(2, "float32")})

    def add_in_place(x):
        assert isinstance(x, torch.Tensor)
        return x.add_(1)

    assert outcome(("x",), add_in_place, inputs)["value"].numpy().tolist() == [2.0, 2.0]
    error = outcome(("x",), add_in_place, inputs, unchanged=True)["error"]
    assert "your function changed `x`" in error
    assert inputs == as_plain({"x": np.ones(2, "float32")})


def test_a_property_is_earned_only_if_all_its_cases_pass():
    key = answer_key()
    cases = draw_cases(key, key["double"], random.Random(0))
    outcomes = [{"value": 2 * case.inputs["n"]} for case in cases]
    assert judge(key, key["double"], cases, outcomes).earned == 3
    outcomes[-1] = {"value": 0}
    assert judge(key, key["double"], cases, outcomes).earned == 1


def test_malformed_outcomes_earn_nothing():
    key = answer_key()
    cases = draw_cases(key, key["double"], random.Random(0))
    for outcomes in (None, [], [{"value": 1}], [None] * 6, [{"points": 3}] * 6):
        assert judge(key, key["double"], cases, outcomes).earned == 0, outcomes


def test_the_smallest_failing_case_is_shown():
    key = answer_key()
    cases = [Case("large", {"n": n}, 2 * n) for n in (10**6, 10, 1, 10**9)]
    outcomes = [{"value": 0}, {"value": 0}, {"value": 2}, {"value": 0}]
    assert judge(key, key["double"], cases, outcomes).failures["large"].inputs == {"n": 10}


def judged(key, wrong_name, change=lambda outcome: outcome):
    """The failures of a wrong answer to `double`, whose errors `change` may replace."""
    question = key["double"]
    wrong = next(wrong for wrong in question.wrong if wrong.name == wrong_name)
    cases = draw_cases(key, question, random.Random(0))
    outcomes = [change(key.outcome(question, case.inputs, wrong)) for case in cases]
    return judge(key, question, cases, outcomes).failures


def test_a_mistake_is_recognized_by_nan():
    failures = judged(answer_key(), "table")
    assert failures["small"] is None and failures["large"].recognized == ("table",)


def test_a_mistake_is_recognized_by_its_error_if_other_values_agree_too():
    key = answer_key(("else math.nan", "else 1 // 0"))
    assert judged(key, "table")["large"].recognized == ("table",)

    def elsewhere(outcome):
        error = "ZeroDivisionError: integer division or modulo by zero (at `n // 0`)"
        return {"error": error} if "error" in outcome else outcome

    assert judged(key, "table", elsewhere)["large"].recognized == ("table",)
    for error in ("ZeroDivisionError: division", "TypeError: no", NOT_RUN):
        failures = judged(key, "table", lambda o, e=error: {"error": e} if "error" in o else o)
        assert failures["large"].recognized == ()
    everywhere = {"error": "ZeroDivisionError: integer division or modulo by zero"}
    failures = judged(key, "table", lambda _: everywhere)
    assert failures["small"].recognized == failures["large"].recognized == ()


def test_what_is_not_finite_is_equal_to_itself_alone():
    for value in (math.nan, [1.0, math.inf], {"a": (-math.inf,)}):
        assert finite(value) == finite(copy.deepcopy(value))
    assert finite(math.nan) != finite(math.inf) != finite(-math.inf)
    numbers = as_plain(np.array([1, math.nan, math.inf, -math.inf], "float16"))
    assert finite(numbers).numpy().tolist()[1:] == [
        finite(number) for number in (math.nan, math.inf, -math.inf)
    ]
    plain = as_plain(np.array([1, 2], "float16"))
    assert finite(plain) is plain


def test_a_wrong_answer_is_recognized_only_if_it_explains_every_failure_of_a_property():
    key = answer_key()
    cases = draw_cases(key, key["double"], random.Random(0))
    tripled = [{"value": 3 * case.inputs["n"]} for case in cases]
    verdict = judge(key, key["double"], cases, tripled)
    assert [f.recognized for f in verdict.failures.values()] == [("triple",)] * 2
    explained = as_record(verdict).properties[0].failure.explanations
    assert explained == ("you tripled",)
    tripled[0] = {"value": 0}
    verdict = judge(key, key["double"], cases, tripled)
    assert [f.recognized for f in verdict.failures.values()] == [(), ("triple",)]


def test_two_wrong_answers_that_both_explain_every_failure_are_both_named():
    key = answer_key()
    cases = [Case("small", {"n": 3}, 6), Case("large", {"n": 1000}, 2000)]
    outcomes = [{"value": 9}, {"value": 2000}]  # 3² and 3 · 3
    failures = judge(key, key["double"], cases, outcomes).failures
    assert failures["small"].recognized == ("square", "triple")
    outcomes = [{"value": 9}, {"value": 3000}]  # the other property decides
    failures = judge(key, key["double"], cases, outcomes).failures
    assert failures["small"].recognized == failures["large"].recognized == ("triple",)


def test_the_right_value_of_a_number_by_hand_is_not_shown():
    key = answer_key()
    cases = draw_cases(key, key["by-hand/twice"], random.Random(0), {"n": 3})
    failure = judge(key, key["by-hand/twice"], cases, [{"value": 1.5}]).failures["value"]
    assert (failure.expected, failure.given, failure.recognized) == (NOTHING, 1.5, ("half",))


def test_a_value_that_can_not_be_compared_is_wrong_and_the_rest_keeps_its_points():
    def same(expected, given):
        return None if sorted(given) == [expected] else "differs"

    spec = (
        'compare = { kind = "number", rtol = 1e-9 }',
        'compare = { kind = "cases", name = "same" }',
    )
    key = answer_key(spec, same=same)
    cases = [Case(name, {"n": n}, 2 * n) for name, n in (("small", 1), ("large", 1000))]
    verdict = judge(key, key["double"], cases, [{"value": [2, "a"]}, {"value": [2000]}])
    assert verdict.earned == 2
    assert "can't be compared" in verdict.failures["small"].reason


@pytest.mark.parametrize(
    ("factor", "says"),
    [(100, "you gave a percentage: your"), (0.01, "you gave a share, not a"), (50, "")],
)
def test_a_percentage_and_a_share_are_recognized_at_every_level(factor, says):
    row = 'compare = { kind = "row", each = { kind = "number", rtol = 1e-9 } }'
    key = answer_key(
        ('compare = { kind = "number", rtol = 1e-9 }', row),
        double_expected=lambda inputs: [inputs["n"], 2.0 * inputs["n"]],
        double_small=lambda rng, size: {"n": 1 + size},
        double_large=lambda rng, size: {"n": 10 + size},
    )
    question = key["double"]
    cases = [Case(name, {"n": n}, [n, 0.2 * n]) for name, n in (("small", 1), ("large", 4))]
    outcomes = [{"value": [c.inputs["n"], round(c.expected[1] * factor, 4)]} for c in cases]
    verdict = judge(key, question, cases, outcomes)
    told = [p.failure.explanations for p in as_record(verdict).properties]
    assert [bool(t) for t in told] == [bool(says)] * 2
    assert all(text.startswith(says) for texts in told for text in texts)
    failure = verdict.failures["small"]
    assert (failure.reason, failure.expected) == ("item 2: the number differs", 0.2)


def test_a_tensor_of_percentages_is_recognized():
    right = as_plain(np.linspace(0.1, 0.9, 5))
    assert wrong_number([(right, as_plain(right.numpy() * 100))]) == ("a percentage",)
    assert wrong_number([(right, as_plain(np.ones(4)))]) == ()
    assert wrong_number([(0.5, True), (0.5, "50")]) == wrong_number([]) == ()


def test_only_the_field_that_differs_is_reported():
    compare = parts({"nll": number(), "sizes": row(each=number())})
    given = {"nll": 1, "sizes": [2, 4], "seen": [[0] * 9]}
    difference = compare({"nll": 1, "sizes": [2, 3]}, given)
    assert difference == "sizes: item 2: the number differs"
    assert (difference.expected, difference.given) == (3, 4)


def test_a_case_that_was_not_run_is_shown_only_if_no_other_failed():
    key = answer_key()
    cases = [Case("large", {"n": n}, 2 * n) for n in (1, 1000)]
    outcomes = [{"error": NOT_RUN}, {"error": "stopped"}]
    assert judge(key, key["double"], cases, outcomes).failures["large"].reason == "stopped"


def test_of_long_values_the_place_is_shown_where_they_first_differ():
    right = np.zeros((5, 7), "float32")
    given = right + 1e-6  # noise
    given[2, 3:] = 1.0
    assert shorten(as_plain(np.array(True))) == "True" and shorten({"_seen": 1, "n": 2}) == "{n: 2}"
    expected, other, place = shorten_pair(as_plain(right), as_plain(given))
    assert place == "[2, 3]" and ", 1, " in other and "1" not in expected.partition("[")[2]
    texts = shorten_pair("a" * 500 + "b", "a" * 501)
    assert texts[2] == "character 501" and len(texts[0]) < 100
    assert shorten_pair([0] * 20, [0] * 30)[2] == "item 21"
    assert shorten_pair([1, 2], [1, 3]) is shorten_pair(1.0, 2.0) is shorten_pair("a", 1) is None
