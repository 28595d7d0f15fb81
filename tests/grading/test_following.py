"""Follow-through: a number that follows correctly from the student's own earlier value earns."""

import dataclasses
import json

import pytest

from course_pkg.grading.check import check, variant
from course_pkg.grading.checker_process import as_json
from course_pkg.grading.classroom.gradebook.record import _record
from course_pkg.grading.classroom.runs.scoring import checked_results
from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.grading_session import LARGEST, GradingSession, same_form
from course_pkg.grading.questions.question import QuestionError, parse_questions
from course_pkg.grading.questions.report import as_record
from course_pkg.grading.questions.report_html import report_html
from tests.grading.small_assignment import QUESTIONS

CODES = "by-hand/codes"
BYTES = "by-hand/bytes"


def pack(codes):
    return [16 * first + second for first, second in zip(codes[::2], codes[1::2], strict=True)]


def one_mistake(codes):
    """The codes, the first of which is one too large, or one too small if there is no larger."""
    first = codes[0] + 1 if codes[0] < 15 else 14
    return [first, *codes[1:]]


def answered(codes, packed, student="ada"):
    """The verdict on 1b after both answers were recorded, 1b first."""
    session = GradingSession("quantization", student)
    for name, value in ((BYTES, packed), (CODES, codes)):
        session.inputs(name)
        if value is not None:
            session.record(name, [{"value": value}])
    return session.verdict(BYTES)


@pytest.fixture
def right():
    return GradingSession("quantization", "ada").cases(CODES)[0].expected


def test_one_mistake_costs_one_point(right):
    own = one_mistake(right)
    verdict = answered(own, pack(own))
    assert (verdict.earned, verdict.follows) == (1, (CODES,))
    page = report_html(BYTES, as_record(verdict), on_page=True)
    assert "follows correctly from your value in by-hand/codes" in page


def test_right_values_earn_as_before_whatever_the_earlier_ones_are(right):
    for codes in (None, right, one_mistake(right), [0] * 8, "codes"):
        verdict = answered(codes, pack(right))
        assert (verdict.earned, verdict.follows) == (1, ())


@pytest.mark.parametrize("student", ["ada", "bob", "carol", "dora"])
def test_a_mistake_of_method_in_the_codes_costs_the_codes_alone(student):
    key = answer_key("quantization")
    case = GradingSession("quantization", student).variant("by-hand")
    wrong = {answer.name: answer for answer in key[CODES].wrong}
    for mistake in ("signed", "unsigned", "range", "descending", "maximum"):
        own = key.outcome(key[CODES], case, wrong[mistake])["value"]
        assert answered(own, pack(own), student).follows == (CODES,), mistake


def test_a_mistake_is_recognized_from_the_right_and_from_the_own_codes(right):
    for codes in (right, one_mistake(right)):
        low_first = [a + 16 * b for a, b in zip(codes[::2], codes[1::2], strict=True)]
        halves = [16 * a + b for a, b in zip(codes[:4], codes[4:], strict=True)]
        for given, says in ((low_first, "low-first"), (halves, "halves")):
            verdict = answered(codes, given)
            assert verdict.earned == 0
            assert verdict.failures["value"].recognized == (says,)


def test_no_chosen_codes_make_the_bytes_earn_without_packing_codes_of_the_own_case(right):
    """Zeros and equal codes, codes of a classmate, codes out of range, and what is no list."""
    classmate = GradingSession("quantization", "bob").cases(CODES)[0].expected
    chosen = [[0] * 8, [7] * 8, [1, 0] * 4, [0, 1] * 4, classmate]
    chosen += [[16 + right[0], *right[1:]], [-1, *right[1:]], right[:4] + [0] * 4]
    for codes in chosen:
        packed = pack(codes)
        trivial = codes == right[:4] + [0] * 4  # half of it is right: its bytes must be packed
        assert answered(codes, packed).earned == (1 if trivial else 0), codes
    for packed in ([0] * 4, right[:4], right[::2], one_mistake(right)[:4]):
        assert answered(one_mistake(right), packed).earned == 0


def test_values_of_another_form_are_not_followed(right):
    for forged in (
        *([item] * 8 for item in (float("nan"), float("inf"), 10**300, True, 0.5, [1], None)),
        *("12345678", {"0": 1}, b"\x01" * 8, 3, [1] * 7, [1] * 9),
    ):
        verdict = answered(forged, [256] * 4)
        assert (verdict.earned, verdict.follows) == (0, ()), forged
        assert verdict.failures["value"].reason == "item 1: the number differs", forged
        with pytest.raises(ValueError, match="form of the right value"):
            same_form(right, forged)


def test_numbers_keep_the_type_of_the_right_ones_and_are_bounded():
    assert same_form((1.5, 2), [3, 4.0]) == (3.0, 4)
    for number in (2 * LARGEST, -2 * LARGEST):
        with pytest.raises(ValueError):
            same_form(1.0, number)


def test_only_the_second_number_of_bits_counts_for_the_memory():
    session = GradingSession("quantization", "ada")
    case = session.variant("by-hand")
    bits = session.cases("by-hand/bits")[0].expected
    adapters = 16 * case["trained"]
    rest = 2 * (case["parameters"] - case["quantized"]) + adapters

    def memory(per_weight):
        qlora = case["quantized"] * per_weight / 8 + rest
        full = 16 * case["parameters"]
        return [full / 1e9, (2 * case["parameters"] + adapters) / 1e9, qlora / 1e9]

    no_codes = [number - 4 for number in bits]
    pairs = ([bits[0], 6.5], 1), ([bits[0], 0.0], 0), (no_codes, 1), (bits[::-1], 1), ([5, 6], 0)
    for own, earned in pairs:
        session.inputs("by-hand/bits")
        session.record("by-hand/bits", [{"value": own}])
        session.inputs("by-hand/memory")
        session.record("by-hand/memory", [{"value": memory(own[1])}])
        assert session.verdict("by-hand/memory").earned == earned, own


def test_check_remembers_what_a_student_answered_in_this_kernel(right):
    own = one_mistake(right)
    variant("quantization/by-hand", student="ada")
    assert check("quantization/by-hand/codes", own) == 0
    score = check("quantization/by-hand/bytes", pack(own))
    assert score == 1 and "follows correctly from your value in by-hand/codes" in score.report
    check("quantization/by-hand/codes", [0] * 8)
    assert check("quantization/by-hand/bytes", pack(own)) == 0  # the last answer counts
    check("quantization/by-hand/codes", own)
    variant("quantization/by-hand", student="bob")
    assert check("quantization/by-hand/bytes", pack(own)) == 0  # bob has given no codes


def test_results_that_follow_from_what_a_question_does_not_name_are_refused(right):
    own = one_mistake(right)
    session = GradingSession("quantization", "ada")
    for name, value in ((CODES, own), (BYTES, pack(own))):
        session.inputs(name)
        session.record(name, [{"value": value}])
    rows = json.loads(as_json([session.verdict(name) for name in (CODES, BYTES)]))
    questions = {name: session.questions[name] for name in (CODES, BYTES)}
    assert checked_results(json.dumps(rows).encode(), questions)[1].follows == (CODES,)
    for index, follows in ((0, [CODES]), (1, ["by-hand/bits"]), (1, CODES), (1, None)):
        changed = [dict(row) for row in rows]
        changed[index]["follows"] = follows
        with pytest.raises(ValueError, match="`follows` does not fit"):
            checked_results(json.dumps(changed).encode(), questions)
    lost = [dict(row) for row in rows]
    lost[1]["failures"] = rows[0]["failures"]
    with pytest.raises(ValueError, match="`follows` does not fit"):
        checked_results(json.dumps(lost).encode(), questions)


def test_a_record_from_before_loads():
    fields = {"student": "ada", "assignment": "quantization", "state": "graded", "reason": ""}
    stored = {"question": BYTES, "properties": [], "late_s": None, "by_hand": True}
    fields |= {"remarks": [], "questions": [stored]}
    (question,) = _record(fields).questions
    assert question.follows == ()
    again = {**fields, "questions": [{**dataclasses.asdict(question), "follows": [CODES]}]}
    assert _record(again).questions[0].follows == (CODES,)


LATER = """
[question."by-hand/four-times"]
variant = "VARIANT"
given = "case"
follows = ["FOLLOWS"]
answer = "four = 2 * twice"
property.value = { points = 1, says = "", hint = "" }
"""


def test_what_is_followed_must_be_an_earlier_number_by_hand_of_the_same_variant():
    for variant_name, name in (
        ("one-number", "by-hand/thrice"),  # there is none
        ("one-number", "by-hand/four-times"),  # itself
        ("one-number", "double"),  # not by hand
        ("another", "by-hand/twice"),
    ):
        text = LATER.replace("VARIANT", variant_name).replace("FOLLOWS", name)
        message = f"`follows` names '{name}'; expected earlier questions"
        with pytest.raises(QuestionError, match=message):
            parse_questions("small", QUESTIONS + text)
    fitting = LATER.replace("VARIANT", "one-number").replace("FOLLOWS", "by-hand/twice")
    questions = parse_questions("small", QUESTIONS + fitting).questions
    assert questions["by-hand/four-times"].follows == ("by-hand/twice",)
