"""Four classifiers: what the figure shows, and each one by another way to compute it."""

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import PolynomialFeatures

from course_pkg.studies.overview.unseen_data import border, draw_sample, four_classifiers
from tests.refusals import require_refusals


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


def test_a_sample_stays_in_its_square_and_is_labeled_by_the_border_but_for_the_wrong_share():
    for wrong, low, high in ((0.0, 0, 0), (0.1, 0.05, 0.15)):
        sample = draw_sample(1000, 1.2, wrong=wrong)
        above = sample.points[:, 1] > border(sample.points[:, 0])
        assert low <= np.mean(above != sample.labels) <= high
    one = draw_sample(50, 2.0, seed=3)
    other = draw_sample(50, 2.0, seed=3)
    assert np.array_equal(one.points, other.points) and np.array_equal(one.labels, other.labels)
    assert np.abs(one.points).max() <= 2 and one.labels.dtype == bool


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: draw_sample(0, 1.0), "count must be an integer of at least 1"),
        (lambda: four_classifiers(draw_sample(14, 1.0)), "14 points: 15 nearest"),
    )
