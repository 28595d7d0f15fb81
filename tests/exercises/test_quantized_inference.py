"""`quantized-inference`: its numbers by hand, and what is no smoothing."""

import pytest
import torch

from course_pkg.grading.checks.quantized_inference import cases
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.grading.contract.plain_values import as_plain
from course_pkg.quantization.gptq import quantize_columns
from course_pkg.quantization.grouped import Grid, round_to_nearest

KEY = answer_key("quantized-inference")
STUDENTS = ("", *(f"student-{i}" for i in range(40)))
SMALL = [torch.ones(2, 2), [torch.ones(1, 2)]]
NOT_SMOOTH = (
    ([torch.zeros(2), *SMALL], "f: expected factors above 0"),
    ([torch.ones(3), *SMALL], "f: expected the shape"),
    ([torch.full((2,), torch.nan), *SMALL], "f: some entries"),
    ("text", "expected a list of 3"),
)


def test_the_update_by_hand_is_that_of_gptq():
    for student in STUDENTS[:4]:
        case = draw_variant(KEY, "by-hand", student)
        W = torch.tensor([case["weights"]], dtype=torch.float64)
        U = torch.tensor(case["U"], dtype=torch.float64)
        fitted = torch.full((1, 1), case["step"], dtype=torch.float64), torch.zeros(1, 1)
        groups = torch.zeros(3, dtype=torch.long)
        solution = quantize_columns(W, U, cases.SymmetricGrid(8, None), 3, groups, fitted)
        later = solution.Q[0, 1:] + solution.E[0, 1:] @ U[1:, 1:]  # W - Q = E U, from column 2 on
        found = KEY.expected(KEY["by-hand/update"], case)
        assert found == pytest.approx(later.tolist()), student


def test_the_storage_by_hand_is_what_a_stored_weight_takes():
    case = {"rows": 6, "columns": 128, "bits": 3, "group": 32}
    stored = round_to_nearest(torch.randn(6, 128), Grid(3, 32))
    assert cases.by_hand_storage_expected(case) == (stored.nbytes, stored.effective_bits)


def test_two_of_the_six_numbers_by_hand_are_outside_and_none_is_near_a_midpoint():
    for student in STUDENTS:
        case = draw_variant(KEY, "by-hand", student)
        scale = (case["high"] - case["low"]) / 15
        outside = [x for x in case["inputs"] if not case["low"] <= x <= case["high"]]
        assert len(outside) == 2, student
        for x in [*case["inputs"], case["low"]]:
            assert abs(x / scale % 1 - 0.5) > 0.1, student


def test_what_is_no_smoothing_has_a_reason():
    expected = as_plain([torch.full((2,), 2.0), *SMALL])
    found = [
        (given, reason, cases.moved(expected, as_plain(given))) for given, reason in NOT_SMOOTH
    ]
    assert [row for row in found if row[1] not in str(row[2])] == []
