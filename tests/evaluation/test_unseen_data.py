"""Four classifiers: what the figure shows, and each one by another way to compute it."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import PolynomialFeatures

from course_pkg.evaluation.unseen_data import (
    NAMES,
    accuracy,
    border,
    draw_sample,
    four_classifiers,
)


def test_the_classifiers_are_those_of_scikit_learn():
    training = draw_sample(60, 1.2, wrong=0.05)
    points = draw_sample(300, 3.0, seed=1).points
    found = four_classifiers(training)
    for name, neighbors in (("1 nearest", 1), ("15 nearest", 15)):
        other = KNeighborsClassifier(neighbors).fit(training.points, training.labels)
        assert np.array_equal(found[name](points), other.predict(points))
    for name, degree in (("line", 1), ("cubic curve", 3)):
        features = PolynomialFeatures(degree)
        other = LinearRegression(fit_intercept=False)
        other.fit(features.fit_transform(training.points), 2 * training.labels - 1)
        assert np.array_equal(found[name](points), other.predict(features.transform(points)) > 0)


def test_what_is_best_where_the_data_come_from_is_worst_farther_out():
    means = {}
    for reach in (1.2, 3.0):
        rows = []
        for seed in range(8):
            fitted = four_classifiers(draw_sample(60, 1.2, wrong=0.05, seed=seed))
            sample = draw_sample(2000, reach, seed=100)
            rows.append([accuracy(predict, sample) for predict in fitted.values()])
        means[reach] = dict(zip(NAMES, np.mean(rows, axis=0), strict=True))
    near = means[1.2]
    far = means[3.0]
    assert max(near, key=near.get) == "cubic curve" == min(far, key=far.get)
    assert max(near.values()) - min(near.values()) < 0.06
    assert max(far.values()) - min(far.values()) > 0.2


def test_the_nearest_point_is_never_wrong_on_the_training_data_though_labels_are():
    training = draw_sample(60, 1.2, wrong=0.1)
    above = training.points[:, 1] > border(training.points[:, 0])
    assert 0 < np.mean(above != training.labels) < 0.3
    assert accuracy(four_classifiers(training)["1 nearest"], training) == 1


def test_a_sample_is_the_same_for_the_same_seed_and_stays_in_its_square():
    one = draw_sample(50, 2.0, seed=3)
    other = draw_sample(50, 2.0, seed=3)
    assert np.array_equal(one.points, other.points) and np.array_equal(one.labels, other.labels)
    assert np.abs(one.points).max() <= 2 and one.labels.dtype == bool


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_sample(0, 1.0), "count must be an integer of at least 1"),
        (lambda: draw_sample(5, 0.0), "reach must be above 0"),
        (lambda: draw_sample(5, 1.0, wrong=1.0), "wrong must be at least 0 and below 1"),
        (lambda: four_classifiers(draw_sample(14, 1.0)), "14 points: 15 nearest"),
    ],
)
def test_invalid_arguments_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
