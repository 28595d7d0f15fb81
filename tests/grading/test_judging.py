"""Comparators, questions, draws and verdicts."""

import math

import numpy as np
import pytest

from course_pkg.grading.contract.compare import array, exactly, number, parts
from course_pkg.grading.contract.judge import judge
from course_pkg.grading.contract.questions import (
    Case,
    ChecksError,
    Misconception,
    Property,
    Question,
    draw_cases,
)
from course_pkg.grading.contract.values import as_crossing


def draw(rng, size):
    return {"n": int(rng.integers(1, 100)) + size}


def question(**changes):
    fields = {
        "name": "double",
        "expected": lambda inputs: 2 * inputs["n"],
        "compare": number(),
        "properties": (
            Property("small", 1, "2n", "multiply", draw),
            Property("large", 2, "2n of large n", "multiply", lambda r, s: {"n": 1000 + s}),
        ),
    }
    return Question(**{**fields, **changes})


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("given", [True, None, "4", [4], math.nan, math.inf, 10**400, 4.1, 5])
def test_number_refuses(given):
    assert number()(4, given) is not None


@pytest.mark.parametrize("given", [4, 4.0, np.float32(4), np.array(4.0)])
def test_number_takes(given):
    assert number()(4, as_crossing(given)) is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (np.ones((3, 2), "float32"), "the shape is"),
        (np.full((2, 3), np.nan, "float32"), "NaN"),
        (np.ones((2, 3), "float32") * 1.001, "relative error 0.001"),
        ([[1.0] * 3] * 2, "a list was given; wanted a tensor"),
        (None, "None was given"),
    ],
)
def test_array_says_what_is_wrong(given, reason):
    expected = as_crossing(np.ones((2, 3), "float32"))
    assert reason in array(rtol=1e-5)(expected, as_crossing(given))


def test_array_with_no_tolerance_asks_for_equal_bits():
    one = np.ones(2, "float32")
    expected = as_crossing(one)
    assert array(rtol=0)(expected, as_crossing(one)) is None
    assert array(rtol=0)(expected, as_crossing(np.nextafter(one, np.float32(2)))) is not None


def test_dtype_is_named_where_it_matters():
    expected = as_crossing(np.ones(2, "float32"))
    given = as_crossing(np.ones(2, "float16"))
    assert array(1e-3)(expected, given) is None
    assert "float16; wanted float32" in array(1e-3, dtype="float32")(expected, given)


def test_exactly_tells_true_from_one_and_text_from_bytes():
    assert exactly()([1], [True]) and exactly()(["a"], [b"a"]) and exactly()((1,), [1])
    assert exactly()(["a", 1], ["a", 1]) is None


def test_parts_names_the_part():
    compare = parts({"loss": number()})
    assert compare({"loss": 1}, {"loss": 2}) == "loss: the number differs"
    assert compare({"loss": 1}, {}) == "'loss' is missing"
    assert "wanted a dict" in compare({"loss": 1}, [1])


def test_a_property_is_earned_only_if_all_its_cases_pass():
    cases = draw_cases(question(), rng())
    outcomes = [{"value": 2 * case.inputs["n"]} for case in cases]
    assert judge(question(), cases, outcomes).earned == 3
    outcomes[-1] = {"value": 0}
    result = judge(question(), cases, outcomes)
    assert (result.earned, result.max_points) == (1, 3)


@pytest.mark.parametrize(
    "outcomes",
    [
        None,
        "all right",
        [],
        [{"value": 1}],
        [{}] * 6,
        [None] * 6,
        [{"points": 3}] * 6,
        {"value": 3},
    ],
)
def test_malformed_outcomes_earn_nothing(outcomes):
    assert judge(question(), draw_cases(question(), rng()), outcomes).earned == 0


def test_the_smallest_failing_case_is_shown():
    q = question(properties=(Property("p", 1, "", "", lambda r, s: list(range(s + 1))),),
                 expected=len)  # fmt: skip
    cases = draw_cases(q, rng())
    result = judge(q, cases, [{"value": 1}, {"value": 0}, {"value": 0}])
    assert result.properties[0].failure.inputs == [0, 1]


def test_a_misconception_is_recognized_only_if_it_explains_every_failure():
    tripled = Misconception("tripled", "you tripled", lambda i: 3 * i["n"], ("small",))
    q = question(misconceptions=(tripled,))
    cases = draw_cases(q, rng())
    tripling = [{"value": 3 * case.inputs["n"]} for case in cases]
    small, large = judge(q, cases, tripling).properties
    assert small.failure.misconception == "you tripled"
    assert large.failure.misconception is None
    tripling[0] = {"value": 0}
    assert judge(q, cases, tripling).properties[0].failure.misconception is None


def test_a_draw_is_repeated_until_it_tells_the_misconception():
    halved = Misconception("same for 4", "n²/2", lambda i: i["n"] ** 2 / 2, ("p",))
    drawn = []

    def mostly_four(rng, size):
        drawn.append(4 if rng.random() < 0.8 else 5)
        return {"n": drawn[-1]}

    q = question(properties=(Property("p", 1, "", "", mostly_four),), misconceptions=(halved,))
    cases = draw_cases(q, rng())
    assert {case.inputs["n"] for case in cases} == {5}
    assert drawn.count(4) > 0


def test_a_value_that_can_not_be_compared_is_wrong_and_the_rest_keeps_its_marks():
    def compare(expected, given):
        return None if sorted(given) == [expected] else "differs"

    zero = Misconception("zero", "always 0", lambda i: 0, ("small",))
    q = question(compare=compare, misconceptions=(zero,))
    cases = [Case(name, {"n": n}, 2 * n) for name, n in (("small", 1), ("large", 1000))]
    result = judge(q, cases, [{"value": [2, "a"]}, {"value": [2000]}])
    assert result.earned == 2
    assert "can't be compared" in result.properties[0].failure.reason


def test_a_misconception_that_no_draw_tells_is_an_error_of_the_author():
    same = Misconception("same", "the same", lambda i: 2 * i["n"], ("small",))
    with pytest.raises(ChecksError, match="none tells same from the right value"):
        draw_cases(question(misconceptions=(same,)), rng())


def lucky(value, **options):
    """A question with three cases, n = 0, 1 and 2 or more; `value` may be right in some."""
    prop = Property("p", 1, "", "", lambda rng, size: {"n": size if size < 2 else rng.integers(9)})
    wrong = Misconception("lucky", "lucky", value, ("p",), **options)
    return question(properties=(prop,), misconceptions=(wrong,))


def test_a_method_that_may_be_right_by_luck_is_told_by_one_case_at_least():
    q = lucky(lambda i: i["n"] ** 2, sometimes_right=True)  # right for 0 and for 2
    for seed in range(40):
        cases = draw_cases(q, np.random.default_rng(seed))
        assert [case.inputs["n"] for case in cases[:2]] == [0, 1]
    q = lucky(lambda i: 2 * i["n"] + (i["n"] == 7), sometimes_right=True)
    for seed in range(40):
        cases = draw_cases(q, np.random.default_rng(seed))
        assert [case.inputs["n"] for case in cases] == [0, 1, 7]


def test_a_method_must_be_wrong_in_every_case_unless_it_may_be_right_by_luck():
    with pytest.raises(ChecksError, match="200 draws, and none tells lucky"):
        draw_cases(lucky(lambda i: i["n"] ** 2), rng())


def test_a_method_that_luck_makes_right_in_all_cases_is_an_error_of_the_author():
    with pytest.raises(ChecksError, match="200 draws, and none tells lucky"):
        draw_cases(lucky(lambda i: 2 * i["n"], sometimes_right=True), rng())


def test_a_case_by_hand_has_one_draw_to_tell_what_may_be_right_by_luck():
    wrong = Misconception("lucky", "", lambda i: i["n"] ** 2, ("p",), sometimes_right=True)
    q = question(properties=(Property("p", 1, "", ""),), misconceptions=(wrong,), variant="by-hand")
    assert len(draw_cases(q, rng(), {"n": 3})) == 1
    with pytest.raises(ChecksError, match="1 draw, and none tells lucky"):
        draw_cases(q, rng(), {"n": 2})


def test_an_expected_value_that_does_not_pass_is_an_error_of_the_author():
    with pytest.raises(ChecksError, match="expected is not itself"):
        draw_cases(question(expected=lambda inputs: math.nan), rng())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"properties": ()}, "one or more properties"),
        ({"properties": (Property("p", 1, "", "", draw),) * 2}, "distinct names"),
        ({"properties": (Property("p", 0, "", "", draw),)}, "at least one point"),
        ({"properties": (Property("p", 1, "", ""),)}, "either a draw or a variant"),
        ({"misconceptions": (Misconception("m", "", len, ("x",)),)}, "must name the properties"),
    ],
)
def test_questions_written_wrongly_are_refused(changes, message):
    with pytest.raises(ChecksError, match=message):
        question(**changes)
