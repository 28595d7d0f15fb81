"""The cost model: what it counts, how it is fitted, and the recorded profile."""

import numpy as np
import pytest

from course_pkg.studies.scheduling.iteration_cost import (
    CostModel,
    Work,
    profile,
    recorded,
    recorded_points,
)
from tests.tables import each_row

MODEL = CostModel(base=0.05, prompt=3e-3, pairs=1e-6, sequences=4e-3, context=7e-6)
WORKS = [Work.of([p], [c] * n) for p in (1, 9, 40) for c, n in ((5, 1), (5, 7), (90, 1), (90, 7))]


def test_an_iteration_is_the_sum_of_its_parts():
    model = CostModel(base=1, prompt=10, pairs=100, sequences=1000, context=10000)
    assert model.seconds(Work.of([2], [3])) == 1 + 20 + 300 + 1000 + 30000


@each_row(("prompt", "output"), [(1, 1), (7, 1), (1, 6), (33, 20)])
def test_a_request_alone_takes_its_iterations(prompt, output):
    steps = [Work.of(contexts=[prompt + k]) for k in range(1, output)]
    iterations = [MODEL.first_iteration(prompt), *map(MODEL.seconds, steps)]
    assert MODEL.alone(prompt, output) == pytest.approx(sum(iterations))


@each_row("seed", range(5))
def test_no_rate_is_negative_and_the_errors_are_relative(seed):
    """With large noise, plain least squares would give negative rates."""
    noise = np.random.default_rng(seed).uniform(0.3, 3, len(WORKS))
    points = [(work, MODEL.seconds(work) * f) for work, f in zip(WORKS, noise, strict=True)]
    fit = profile(points)  # a CostModel refuses rates below 0
    errors = [abs(fit.model.seconds(work) / seconds - 1) for work, seconds in points]
    assert (fit.error, fit.worst) == pytest.approx((np.mean(errors), max(errors)))
    exact = profile([(work, MODEL.seconds(work)) for work in WORKS])
    assert exact.error < 1e-6 and exact.model.prompt == pytest.approx(MODEL.prompt)


def test_bad_points_and_rates_are_refused():
    with pytest.raises(ValueError, match=r"got 4 points: measure at least 5"):
        profile([(Work(), 1.0)] * 4)
    with pytest.raises(ValueError, match=r"positive and finite, got 0\.0"):
        profile([(work, 1.0) for work in WORKS] + [(Work(), 0.0)])
    with pytest.raises(ValueError, match="cannot tell the 5 rates apart: vary prompts, sequences"):
        profile([(Work.of(contexts=[c] * n), 1.0) for c in (1, 2, 3) for n in (1, 2)])
    for rates in ({"base": -1.0}, {"base": float("inf")}, {}):
        with pytest.raises(ValueError, match="finite and at least 0, and one of them is positive"):
            CostModel(**rates)


# ---------------------------------------------------------------- the record


def test_the_linear_model_fits_smollm2():
    fit = recorded()
    assert fit.error < 0.1 and fit.worst < 0.3
    assert len(recorded_points()) == 28
    assert fit.model.base > 5 * fit.model.sequences  # a batch shares the reading of the weights
