"""Samples of the plane, and classifiers that need enough points."""

import numpy as np

from course_pkg.studies.overview.unseen_data import accuracy, border, draw_sample, four_classifiers
from tests.refusals import require_refusals


def test_a_sample_stays_in_its_square_and_is_labeled_by_the_border_but_for_the_wrong_share():
    for wrong, low, high in ((0.0, 0, 0), (0.1, 0.05, 0.15)):
        sample = draw_sample(1000, 1.2, wrong=wrong)
        above = sample.points[:, 1] > border(sample.points[:, 0])
        assert low <= np.mean(above != sample.labels) <= high
    one = draw_sample(50, 2.0, seed=3)
    other = draw_sample(50, 2.0, seed=3)
    assert np.array_equal(one.points, other.points) and np.array_equal(one.labels, other.labels)
    assert np.abs(one.points).max() <= 2 and one.labels.dtype == bool


def test_four_classifiers_fit_a_sample_and_the_border_is_always_right():
    sample = draw_sample(60, reach=1.2, wrong=0.05)
    for predict in four_classifiers(sample).values():
        assert predict(np.array([[0.0, 1.0]]))[0] and accuracy(predict, sample) > 0.8
    clean = draw_sample(100, reach=1.0)
    assert accuracy(lambda points: points[:, 1] > border(points[:, 0]), clean) == 1


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: draw_sample(0, 1.0), "count must be an integer of at least 1"),
        (lambda: four_classifiers(draw_sample(14, 1.0)), "14 points: 15 nearest"),
    )
