"""`quantized-inference`: its numbers by hand, and what is no smoothing."""

import torch

from course_pkg.grading.assignments.quantized_inference import cases
from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.draws import draw_variant
from course_pkg.grading.questions.plain_values import as_plain

STUDENTS = ("", *(f"student-{i}" for i in range(40)))
SMALL = [torch.ones(2, 2), [torch.ones(1, 2)]]
NOT_SMOOTH = (
    ([torch.zeros(2), *SMALL], "f: expected factors above 0"),
    ([torch.ones(3), *SMALL], "f: expected the shape"),
    ([torch.full((2,), torch.nan), *SMALL], "f: some entries"),
    ("text", "expected a list of 3"),
)


def test_two_of_the_six_numbers_by_hand_are_outside_and_none_is_near_a_midpoint():
    for student in STUDENTS:
        case = draw_variant(answer_key("quantized-inference"), "by-hand", student)
        scale = (case["high"] - case["low"]) / 15
        outside = [x for x in case["inputs"] if not case["low"] <= x <= case["high"]]
        assert len(outside) == 2, student
        for x in [*case["inputs"], case["low"]]:
            assert abs(x / scale % 1 - 0.5) > 0.1, student


def test_what_is_no_smoothing_has_a_reason():
    expected = as_plain([torch.full((2,), 2.0), *SMALL])
    judged = [
        (given, reason, cases.moved(expected, as_plain(given))) for given, reason in NOT_SMOOTH
    ]
    assert [row for row in judged if row[1] not in str(row[2])] == []
