"""Intervals in words: signs, rounding, and what an interval that touches 0 says."""

from course_pkg.evaluation.statistics import Interval
from course_pkg.studies.likelihood_and_generation.intervals import percent, points, verdict


def test_percent_and_points_round_alike_and_points_have_signs():
    assert percent(Interval(0.5, 0.404, 0.596, 0.95)) == "50% [40, 60]"
    assert points(Interval(-0.104, -0.2, 0.004, 0.95)) == "-10 [-20, +0]"


def test_a_difference_is_clear_only_if_its_interval_excludes_0():
    for low, high, said in (
        (0.01, 0.2, "higher"),
        (-0.2, -0.01, "lower"),
        (-0.1, 0.1, "not clearly different"),
        (0.0, 0.1, "not clearly different"),
    ):
        assert verdict(Interval((low + high) / 2, low, high, 0.95)) == said
