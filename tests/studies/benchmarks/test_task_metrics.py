"""GLUE's and SuperGLUE's metrics equal scikit-learn's and scipy's, also where they would be 0/0."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from course_pkg.studies.benchmarks.task_metrics import (
    LABEL_METRICS,
    accuracy,
    binary_f1,
    macro_f1,
    matthews_correlation,
    metric_statistics,
    pearson,
    spearman,
)
from tests.refusals import require_refusals

CASES = [
    np.random.default_rng(seed).integers(labels, size=(2, items))
    for seed, (labels, items) in enumerate([(2, 7), (2, 200), (3, 9), (3, 201)])
]
CONSTANT = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
ABSENT = np.array([[0, 0, 0, 0], [0, 0, 0, 0]])


def test_labels_are_scored_as_by_scikit_learn():
    for pair in (*CASES, CONSTANT, ABSENT):
        gold, said = pair
        # The values are quotients of counts: only the order of a few additions differs.
        found = [accuracy(gold, said), macro_f1(gold, said)]
        macro = metrics.f1_score(gold, said, average="macro", zero_division=0)
        expected = [metrics.accuracy_score(gold, said), macro]
        if max(gold.max(), said.max()) < 2:
            found += [binary_f1(gold, said), matthews_correlation(gold, said)]
            expected.append(metrics.f1_score(gold, said, zero_division=0))
            with warnings.catch_warnings(action="ignore"):
                expected.append(metrics.matthews_corrcoef(gold, said))
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_correlations_equal_scipy_s_and_a_constant_column_has_none():
    for seed in range(4):
        generator = np.random.default_rng(seed)
        gold = generator.integers(6, size=97).astype(float)
        said = gold + generator.normal(0, 2, size=97).round(1)
        for shift in (0, 1000):
            ours = pearson(gold, said + shift)
            assert ours == pytest.approx(stats.pearsonr(gold, said + shift).statistic, abs=1e-9)
        assert spearman(gold, said) == pytest.approx(
            stats.spearmanr(gold, said).statistic, abs=1e-12
        )
    assert pearson([1, 2, 3], [4, 4, 4]) == spearman([1, 2, 3], [4, 4, 4]) == 0


def test_a_statistic_of_drawn_items_is_the_metric_of_these_items():
    generator = np.random.default_rng(0)
    gold, said = generator.integers(2, size=(2, 30))
    drawn = generator.integers(30, size=30)
    found = metric_statistics(["accuracy", "F1", "Matthews"], gold, said)
    for name, statistic in found.items():
        assert statistic(drawn) == LABEL_METRICS[name](gold[drawn], said[drawn])


def test_a_question_is_exact_if_all_of_its_answers_are_and_counts_as_often_as_it_is_drawn():
    # Questions of 2, 3 and 1 answers; the second has an error.
    gold = [1, 0, 1, 1, 0, 1]
    said = [1, 0, 1, 0, 0, 1]
    [statistic] = metric_statistics(["exact match"], gold, said, "aabbbc").values()
    assert statistic(np.arange(6)) == pytest.approx(2 / 3)
    drawn = np.array([0, 1, 0, 1, 2, 3, 4])  # the first question twice, the second once
    assert statistic(drawn) == pytest.approx(2 / 3)
    assert statistic(np.array([2, 3, 4, 2, 3, 4, 5])) == pytest.approx(1 / 3)


def test_texts_share_words_but_match_only_as_a_whole():
    gold = ["Ruth Hale", "the radio"]
    said = ["Jonas Hale", "radio"]
    found = metric_statistics(["text F1", "text match"], gold, said)
    assert found["text F1"](np.arange(2)) == pytest.approx((0.5 + 1) / 2)
    assert found["text match"](np.arange(2)) == 0.5


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda: accuracy([], []), "gold must be a list of label numbers"),
        (lambda: accuracy([0, 1], [0]), "2 labels in gold, 1 in said"),
        (lambda: matthews_correlation([0, 2], [0, 1]), "two labels"),
        (lambda: pearson([1, 2, 3], [1, 2]), "3 numbers in gold, 2 in said"),
        (lambda: metric_statistics(["BLEU"], [0], [0]), "metric must be one of"),
        (lambda: metric_statistics(["exact match"], [0], [0]), "give the question of each answer"),
    )
