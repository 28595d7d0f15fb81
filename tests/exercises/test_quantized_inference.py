"""`quantized-inference`: its right values are those of the course's modules."""

import pytest
import torch

from course_pkg.grading.checks.quantized_inference import cases
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.grading.contract.plain_values import as_plain
from course_pkg.quantization.gptq import quantize_columns
from course_pkg.quantization.grouped import Grid, round_to_nearest
from tests.exercises.assignments import patched, points_lost

KEY = answer_key("quantized-inference")


def cases_of(*students):
    return [draw_variant(KEY, "by-hand", student) for student in ("", *students)]


@pytest.mark.parametrize("case", cases_of("ada", "bob", "eve"))
def test_the_update_by_hand_is_that_of_gptq(case):
    W = torch.tensor([case["weights"]], dtype=torch.float64)
    U = torch.tensor(case["U"], dtype=torch.float64)
    fitted = torch.full((1, 1), case["step"], dtype=torch.float64), torch.zeros(1, 1)
    groups = torch.zeros(3, dtype=torch.long)
    solution = quantize_columns(W, U, cases.SymmetricGrid(8, None), 3, groups, fitted)
    later = solution.Q[0, 1:] + solution.E[0, 1:] @ U[1:, 1:]  # W - Q = E U, from column 2 on
    assert KEY.expected(KEY["by-hand/step"], case) == pytest.approx(
        (solution.Q[0, 0].item(), solution.E[0, 0].item())
    )
    assert KEY.expected(KEY["by-hand/update"], case) == pytest.approx(later.tolist())


def test_the_storage_by_hand_is_what_a_stored_weight_takes():
    case = {"rows": 6, "columns": 128, "bits": 3, "group": 32}
    stored = round_to_nearest(torch.randn(6, 128), Grid(3, 32))
    assert cases.by_hand_storage_expected(case) == (stored.nbytes, stored.effective_bits)


@pytest.mark.parametrize("case", cases_of(*(f"student-{i}" for i in range(40))))
def test_two_of_the_six_numbers_by_hand_are_outside_and_none_is_near_a_midpoint(case):
    scale = (case["high"] - case["low"]) / 15
    outside = [x for x in case["inputs"] if not case["low"] <= x <= case["high"]]
    assert len(outside) == 2
    for x in [*case["inputs"], case["low"]]:
        assert abs(x / scale % 1 - 0.5) > 0.1


def test_factors_that_are_wrong_cost_their_own_points_only():
    wrong = patched("quantized-inference", "smooth", "x_max**alpha", "x_max**alpha * 3")
    assert points_lost("quantized-inference", "smooth", wrong) == 4  # all but `moved`


def test_factors_of_one_move_nothing_and_earn_nothing_for_it():
    def nothing(x, weights, alpha):
        return torch.ones(x.shape[1]), x, weights

    assert points_lost("quantized-inference", "smooth", nothing) == 5


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([torch.zeros(2), torch.ones(2, 2), [torch.ones(1, 2)]], "f: expected factors above 0"),
        ([torch.ones(3), torch.ones(2, 2), [torch.ones(1, 2)]], "f: expected the shape"),
        ([torch.full((2,), torch.nan), torch.ones(2, 2), [torch.ones(1, 2)]], "f: some entries"),
        ("text", "expected a list of 3"),
    ],
)
def test_what_is_no_smoothing_has_a_reason(given, reason):
    expected = as_plain([torch.full((2,), 2.0), torch.ones(2, 2), [torch.ones(1, 2)]])
    found = cases.moved(expected, as_plain(given))
    assert found is not None and reason in found
