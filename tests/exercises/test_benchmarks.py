"""`benchmarks`: its right values are those of the course, of definitions, and of counting."""

import ast
import itertools
import math
from random import Random

import numpy as np
import pytest

from course_pkg.evaluation.bias import direction_gap
from course_pkg.evaluation.comparison import compare_runs
from course_pkg.evaluation.pairwise import Match, elo_ratings
from course_pkg.evaluation.pairwise.logistic import fit_logistic
from course_pkg.evaluation.suites import selection_bias
from course_pkg.grading.checks.benchmarks import cases
from course_pkg.grading.checks.benchmarks.student import fit
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from tests.exercises.assignments import (
    SOLUTIONS,
    model_answers,
    notebook,
    patched,
    points_lost,
)

KEY = answer_key("benchmarks")
SEEDS = range(12)


def drawn(question, seed):
    """The inputs of all properties of a question, three sizes each."""
    for prop in KEY[question].properties:
        for size in range(3):
            yield prop.name, getattr(cases, prop.draw)(Random(seed), size)


@pytest.mark.parametrize("student", ["", *map(str, range(40))])
def test_by_hand_the_numbers_are_those_of_counting_and_of_elos_formula(student):
    case = draw_variant(KEY, "by-hand", student)
    n = case["n"]
    c = case["c"]
    k = case["k"]
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    found = cases.by_hand_expected(case)
    assert found["pass"] == pytest.approx(sum(map(any, draws)) / len(draws))
    assert 0 < found["pass"] < 1
    expected = 1 / (1 + 10 ** ((case["second"] - case["first"]) / 400))
    assert found["elo"] == pytest.approx(case["K"] * (case["outcome"] - expected))


@pytest.mark.parametrize("outcome", [0, 1])
def test_by_hand_the_gain_is_a_step_of_the_courses_ratings(outcome):
    matches = [Match("x", "y", 1), Match("x", "y", outcome)]
    _, before, after = elo_ratings(matches, k=24).history
    case = {"n": 4, "c": 2, "k": 2, "first": before[0], "second": before[1]}
    gain = cases.by_hand_expected(case | {"K": 24, "outcome": outcome})["elo"]
    assert after[0] - before[0] == pytest.approx(gain)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_program_of_an_answer_is_python_and_defines_the_function(seed):
    for _, inputs in drawn("program", seed):
        program = cases.program_expected(inputs)
        body = ast.parse(program).body
        defined = [n.name for n in body if isinstance(n, ast.FunctionDef)]
        defined += [n.targets[0].id for n in body if isinstance(n, ast.Assign)]
        assert defined == [inputs["name"]]
        assert "```" not in program


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_of_newtons_method_end_at_the_courses_fit(seed):
    for prop, inputs in drawn("newton", seed):
        design = np.array(inputs["design"])
        outcomes = np.array(inputs["outcomes"], float)
        step = cases.newton_expected(inputs)
        weights = np.exp(-np.abs(design @ inputs["coefficients"]))
        assert (weights.min() < 1e-300) == (prop == "large")
        if prop != "fractions":  # others may have no finite maximum
            continue
        for _ in range(20):
            step = cases.newton_expected(inputs | {"coefficients": step})
        assert step == pytest.approx(fit_logistic(design, outcomes).coefficients, abs=1e-9)
        assert fit(inputs["design"], inputs["outcomes"]) == pytest.approx(step, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_right_strengths_everybody_expects_as_many_points_as_there_were(seed):
    for prop, inputs in drawn("strengths", seed):
        s = cases.strengths_expected(inputs)
        surplus = dict.fromkeys(s, 0.0)
        for first, second, outcome in inputs["matches"]:
            if outcome is not None:
                chance = 1 / (1 + math.exp(s[second] - s[first]))
                surplus[first] += outcome - chance
                surplus[second] -= outcome - chance
        assert max(map(abs, surplus.values())) < 1e-9
        assert sum(s.values()) == pytest.approx(0, abs=1e-9)
        outcomes = {outcome for _, _, outcome in inputs["matches"]}
        assert (0.5 in outcomes, None in outcomes) == (prop == "ties", prop == "failed")


@pytest.mark.parametrize("seed", SEEDS)
def test_at_equal_length_a_model_and_its_baseline_share_the_wins(seed):
    for prop, inputs in drawn("length", seed):
        swapped = {
            "preferences": [1 - p for p in inputs["preferences"]],
            "lengths": inputs["baseline_lengths"],
            "baseline_lengths": inputs["lengths"],
            "difficulty": inputs["difficulty"] and [-g for g in inputs["difficulty"]],
        }
        rate = cases.length_expected(inputs)
        assert cases.length_expected(swapped) == pytest.approx(1 - rate)
        gaps = {abs(a - b) for a, b in zip(*list(inputs.values())[1:3], strict=True)}
        assert (len(gaps) == 1) == (prop != "tanh")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interval_of_pairs_is_where_a_z_test_turns_and_the_gap_is_that_of_counting(seed):
    for prop, inputs in drawn("pairs", seed):
        share, low, high, gap = cases.pairs_expected(inputs)
        n = len(inputs["more"])
        for bound in (low, high):
            if 1e-9 < bound < 1 - 1e-9:
                z = (share - bound) / math.sqrt(bound * (1 - bound) / n)
                assert abs(z) == pytest.approx(1.96, abs=1e-4)
        values = np.subtract(inputs["more"], inputs["less"]).tolist()
        sums = [0, 0]
        counts = [0, 0]
        for value, side in zip(values, inputs["directions"], strict=True):
            sums[side] += value > 0
            counts[side] += 1
        assert gap == pytest.approx(sums[0] / counts[0] - sums[1] / counts[1])
        assert (0 in values) == (prop == "ties")


def test_the_gap_of_pairs_is_the_courses():
    inputs = cases.pairs_gap(Random(1), 1)
    values = np.subtract(inputs["more"], inputs["less"]).tolist()
    groups = [number for number in range(5) for _ in values]  # its interval needs some
    found = direction_gap(values * 5, inputs["directions"] * 5, groups)
    assert cases.pairs_expected(inputs)[3] == pytest.approx(found.estimate)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_overlap_is_that_of_looking_for_each_run_in_each_text(seed):
    for prop, inputs in drawn("overlap", seed):
        signs = str.maketrans({sign: " " for sign in ".,;?-_\n—"})
        item, *texts = (
            text.lower().translate(signs).split() for text in (inputs["item"], *inputs["texts"])
        )
        n = inputs["n"]
        marked = [False] * len(item)
        for start, text in itertools.product(range(len(item) - n + 1), texts):
            if any(text[at : at + n] == item[start : start + n] for at in range(len(text))):
                marked[start : start + n] = [True] * n
        assert cases.overlap_expected(inputs) == pytest.approx(sum(marked) / len(item))
        assert (len(item) < n) == (prop == "short")
        assert prop in ("short", "borders") or any(marked)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_win_rates_together_have_the_mean_a_half(seed):
    for prop, inputs in drawn("rates", seed):
        rates = cases.rates_expected(inputs)
        assert sum(rates.values()) == pytest.approx(len(rates) / 2)
        assert any(inputs["lower_is_better"]) == (prop == "lower")
        columns = zip(*inputs["scores"].values(), strict=True)
        assert any(len(set(column)) < len(column) for column in columns) == (prop == "ties")


def test_the_examples_of_the_tasks_are_right():
    answers = model_answers("benchmarks")
    text = "Try this:\n```python\ndef double(x):\n    return 2 * x\n```\nThen print(double(4))."
    assert answers["extract_program"](text, "double") == "def double(x):\n    return 2 * x\n"
    step = answers["newton_step"]
    assert step([[1]] * 4, [1, 1, 1, 0], [0]) == pytest.approx([1])
    assert step([[1]] * 4, [1, 1, 1, 0], [1]) == pytest.approx([1.0963], abs=1e-4)
    design = [[1, 0], [1, 2], [1, 1], [1, 3]]
    assert step(design, [0, 1, 1, 0.5], [0, 0]) == pytest.approx([-0.4, 0.6])
    matches = [("a", "b", 1), ("a", "b", 1), ("b", "a", 1), ("b", "c", 0.5), ("c", "a", None)]
    expected = {"a": 0.4621, "b": -0.2310, "c": -0.2310}
    assert answers["strengths"](matches) == pytest.approx(expected, abs=1e-4)
    gaps = [600] * 4 + [400]
    rate = answers["length_controlled"](fit, [0.9] * 4 + [0.1], gaps, [500] * 5, None)
    assert rate == pytest.approx(0.5)
    pairs = [-20.5, -31.0, -18.0, -25.0], [-22.0, -30.0, -18.0, -26.5], [0, 0, 1, 1]
    assert answers["pair_shares"](*pairs) == pytest.approx((0.5, 0.15, 0.85, 0), abs=1e-4)
    texts = ["The cat\nsat on the Mat.", "today it rains"]
    assert answers["overlap"]("Who sat on the mat today?", texts, 3) == pytest.approx(2 / 3)
    rates = answers["win_rates"]({"a": [71, 12.5], "b": [70, 11.0], "c": [70, 13.0]}, [False, True])
    assert rates == {"a": 0.75, "b": 0.625, "c": 0.125}


@pytest.mark.parametrize(
    ("question", "old", "new"),
    [
        (
            "newton",
            "    x = np",
            "    coefficients[0] += 0.0 if coefficients[0] else 1.0\n    x = np",
        ),
        ("strengths", "    points, met", "    matches.sort(key=str)\n    points, met"),
        ("length", "    gaps = ", "    difficulty and difficulty.reverse()\n    gaps = "),
        ("overlap", "    seen = ", "    texts.append('')\n    seen = "),
        ("rates", "    rates = {}", "    rates = {}\n    lower_is_better.append(False)"),
    ],
)
def test_a_changed_argument_costs_points(question, old, new):
    assert points_lost("benchmarks", question, patched("benchmarks", question, old, new)) > 0


@pytest.mark.parametrize(
    ("question", "old", "new", "lost"),
    [
        ("program", '"^def', '"def', 1),
        ("program", 'line.lstrip(" ").startswith("```")', 'line.startswith("```")', 1),
        ("program", 'line.lstrip(" ").startswith("```")', '"```" in line', 1),
        ("program", "(defining or blocks or [text])", "(defining or [text])", 1),
        ("program", "text.splitlines(keepends=True)", "text.splitlines()", 3),
        ("newton", "1 - chances", "1.001 - chances", 4),
        ("strengths", "range(2000)", "range(5)", 5),
        ("length", "np.tanh(", "np.arctan(", 1),
        ("pairs", "1.96 /", "1.645 /", 2),
        ("overlap", "range(n)}", "range(1)}", 4),
        ("overlap", "[a-z0-9]+", "[a-z]+", 1),
        ("overlap", "[a-z0-9]+", r"\\w+", 1),
        ("overlap", "[a-z0-9]+", "[a-z0-9-]+", 1),
        (
            "overlap",
            "len(covered) / len(words)",
            "sum(w in {words[i] for i in covered} for w in words) / len(words)",
            2,
        ),
        ("rates", "0.5 if a == b", "1 if a == b", 1),
    ],
)
def test_an_answer_that_is_nearly_right_loses_points(question, old, new, lost):
    assert points_lost("benchmarks", question, patched("benchmarks", question, old, new)) == lost


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"a": 1.0, "b": -1.0}, None),
        ({"b": np.float64(-1.0), "a": np.float64(1.0)}, None),
        ({"a": 2.0, "b": 0.0}, None),  # up to a constant
        ({"a": 1.1, "b": -1.0}, "the number differs"),
        ({"a": 1.0}, "expected the names"),
        ({"a": 1.0, "c": -1.0}, "expected the names"),
        ({"a": math.nan, "b": -1.0}, "finite"),
        ({"a": "1", "b": -1.0}, "expected a number"),
        ([1.0, -1.0], "expected a dict"),
    ],
)
def test_strengths_are_compared_by_name_and_by_their_differences(given, told):
    found = cases.differences({"a": 1.0, "b": -1.0}, given)
    assert found is None if told is None else told in found


def test_the_mark_scheme_has_the_numbers_of_the_formulas():
    scheme = notebook(SOLUTIONS, "benchmarks").cells[-2].source.partition("BEGIN MARK")[2]
    a = [1] * 38 + [0] * 2 + [1] * 675 + [0] * 285  # the 40 questions come first
    only_a = 60
    only_b = 55
    assert (sum(a), sum(a) - only_a + only_b) == (713, 708)
    both = [(1, 1)] * (713 - only_a) + [(1, 0)] * only_a + [(0, 1)] * only_b
    both += [(0, 0)] * (1000 - len(both))
    found = compare_runs([b for _, b in both], [a for a, _ in both])
    assert found.standard_error == pytest.approx(0.0107, abs=5e-5)
    low = found.difference.low
    high = found.difference.high
    assert (round(100 * low, 1), round(100 * high, 1)) == (-1.6, 2.6)
    sigma = math.sqrt(0.713 * 0.287 / 1000)
    numbers = [100 * found.standard_error, 100 * sigma, 100 * selection_bias(10, sigma, 0.8)]
    numbers.append(100 * math.hypot(sigma, math.sqrt(0.708 * 0.292 / 1000)))
    assert [f"{number:.2f}" for number in numbers] == ["1.07", "1.43", "0.98", "2.03"]
    assert math.sqrt(1 - 0.8) == pytest.approx(0.447, abs=5e-4)
    for text in ("1.07", "−1.6 to 2.6", "1.43", "0.447", "0.98", "2.03", "17,700"):
        assert text in scheme
    clean = (713 - 38) / 960, (708 - 26) / 960
    assert all(f"{100 * share:.1f}%" in scheme for share in clean)
    assert clean[0] < clean[1]
    assert round(0.115 * (1.96 / 0.005) ** 2, -2) == 17_700
