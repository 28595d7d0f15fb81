"""`benchmarks`: its programs are Python, how strengths are compared, and the mark scheme."""

import ast
import itertools
import math
from random import Random

import numpy as np
import pytest

from course_pkg.evaluation.comparison import compare_runs
from course_pkg.grading.assignments.benchmarks import cases
from course_pkg.studies.benchmarks.leaderboard import selection_bias
from tests.exercises.assignments import SOLUTIONS, notebook

STRENGTHS = (  # for a: 1, b: −1, and what is told; None if it is right
    ({"a": 1.0, "b": -1.0}, None),
    ({"b": np.float64(-1.0), "a": np.float64(1.0)}, None),
    ({"a": 2.0, "b": 0.0}, None),  # up to a constant
    ({"a": 1.1, "b": -1.0}, "the number differs"),
    ({"a": 1.0}, "expected the names"),
    ({"a": 1.0, "c": -1.0}, "expected the names"),
    ({"a": math.nan, "b": -1.0}, "finite"),
    ({"a": "1", "b": -1.0}, "expected a number"),
    ([1.0, -1.0], "expected a dict"),
)


def test_the_program_of_an_answer_is_python_and_defines_the_function():
    for kind, seed, size in itertools.product(
        ("block", "defines", "cut", "none"), range(12), range(3)
    ):
        inputs = cases.draw_answer(Random(seed), size, kind)
        program = cases.program_expected(inputs)
        body = ast.parse(program).body
        defined = [n.name for n in body if isinstance(n, ast.FunctionDef)]
        defined += [n.targets[0].id for n in body if isinstance(n, ast.Assign)]
        assert defined == [inputs["name"]], program
        assert "```" not in program


def test_strengths_are_compared_by_name_and_by_their_differences():
    for given, told in STRENGTHS:
        reason = cases.differences({"a": 1.0, "b": -1.0}, given)
        assert reason is None if told is None else told in str(reason), (given, reason)


def test_the_mark_scheme_has_the_numbers_of_the_formulas():
    scheme = notebook(SOLUTIONS, "benchmarks").cells[-2].source.partition("BEGIN MARK")[2]
    a = [1] * 38 + [0] * 2 + [1] * 675 + [0] * 285  # the 40 questions come first
    only_a = 60
    only_b = 55
    assert (sum(a), sum(a) - only_a + only_b) == (713, 708)
    both = [(1, 1)] * (713 - only_a) + [(1, 0)] * only_a + [(0, 1)] * only_b
    both += [(0, 0)] * (1000 - len(both))
    comparison = compare_runs([b for _, b in both], [a for a, _ in both])
    assert comparison.standard_error == pytest.approx(0.0107, abs=5e-5)
    low = comparison.difference.low
    high = comparison.difference.high
    assert (round(100 * low, 1), round(100 * high, 1)) == (-1.6, 2.6)
    sigma = math.sqrt(0.713 * 0.287 / 1000)
    numbers = [100 * comparison.standard_error, 100 * sigma, 100 * selection_bias(10, sigma, 0.8)]
    numbers.append(100 * math.hypot(sigma, math.sqrt(0.708 * 0.292 / 1000)))
    assert [f"{number:.2f}" for number in numbers] == ["1.07", "1.43", "0.98", "2.03"]
    assert math.sqrt(1 - 0.8) == pytest.approx(0.447, abs=5e-4)
    for text in ("1.07", "−1.6 to 2.6", "1.43", "0.447", "0.98", "2.03", "17,700"):
        assert text in scheme
    clean = (713 - 38) / 960, (708 - 26) / 960
    assert all(f"{100 * share:.1f}%" in scheme for share in clean)
    assert clean[0] < clean[1]
    assert round(0.115 * (1.96 / 0.005) ** 2, -2) == 17_700
