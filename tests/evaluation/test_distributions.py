"""Distributions: arguments that no distribution has are refused."""

from course_pkg.evaluation.distributions import (
    binomial_probabilities,
    normal_quantile,
    t_quantile,
    t_tails,
)
from tests.refusals import require_refusals


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: normal_quantile(95), "level must be above 0 and below 1, got 95"),
        (lambda: t_quantile(0, 0.95), "freedom must be an integer of at least 1"),
        (lambda: t_tails(-1.0, 3), "value must be at least 0"),
        (lambda: binomial_probabilities(3, 1.5), r"probability must be in \[0, 1\]"),
    )
