"""Arrivals and lengths: the distributions they claim, fixed by a seed."""

import numpy as np
import pytest

from course_pkg.studies.scheduling.workload import (
    SimulatedRequest,
    bimodal,
    gamma,
    lognormal,
    on_off,
    poisson,
    requests,
    zipf,
)
from tests.refusals import require_refusals
from tests.tables import each_row

N = 40000


def generator() -> np.random.Generator:
    return np.random.default_rng(1)


@each_row("variation", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_rate_and_the_variation(variation):
    gaps = np.diff(gamma(4.0, N, variation, generator()), prepend=0)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_on_off_arrives_only_while_on_and_at_the_mean_rate():
    times = on_off(5.0, N, on=3.0, off=9.0, generator=generator())
    assert np.all(times % 12 < 3) and np.all(np.diff(times) >= 0)
    assert N / times[-1] == pytest.approx(5.0, rel=0.02)
    counts = np.bincount((times // 1).astype(int))
    assert counts.var() > 3 * counts.mean()  # Poisson: equal
    np.testing.assert_array_equal(
        on_off(2.0, 50, on=1.0, off=0.0, generator=generator()), poisson(2.0, 50, generator())
    )


def test_lognormal_has_its_mean_and_its_bounds():
    lengths = lognormal(200, 1.0, N, generator(), most=10**9)
    assert lengths.mean() == pytest.approx(200, rel=0.03)
    assert np.log(lengths).std() == pytest.approx(1.0, rel=0.02)
    cut = lognormal(200, 2.0, N, generator(), most=300)
    assert cut.min() >= 1 and cut.max() == 300


def test_lengths_have_the_distributions_that_they_claim():
    lengths = zipf(1.5, N, generator(), most=50)
    shares = np.bincount(lengths, minlength=51)[1:] / N
    exact = np.arange(1, 51) ** -1.5
    np.testing.assert_allclose(shares, exact / exact.sum(), atol=0.01)
    lengths = bimodal(7, 900, 0.2, N, generator())
    assert set(lengths) == {7, 900}
    assert np.mean(lengths == 900) == pytest.approx(0.2, abs=0.01)


def test_requests_are_plain_numbers_and_bad_arguments_are_refused():
    (request,) = requests(np.array([0.5]), np.array([3]), np.array([4]))
    assert request == SimulatedRequest(0.5, 3, 4)
    assert type(request.arrival) is float and type(request.prompt) is int
    require_refusals(
        (lambda: SimulatedRequest(-1.0, 1, 1), "arrival must be at least 0 and finite, got -1.0"),
        (lambda: SimulatedRequest(0.0, 0, 1), "prompt must be an integer of at least 1, got 0"),
        (
            lambda: SimulatedRequest(0.0, 1, 2.5),
            r"output must be an integer of at least 1, got 2\.5",
        ),
        (lambda: requests([0], [1, 2], [1]), "1 arrivals, 2 prompts and 1 outputs"),
        (lambda: poisson(0, 5, generator()), "rate must be above 0 and finite, got 0"),
        (lambda: gamma(1, 5, -1, generator()), "variation must be above 0"),
        (lambda: on_off(1, 5, 1, -2, generator()), "off must be at least 0 and finite, got -2"),
        (lambda: bimodal(1, 2, 1.5, 5, generator()), r"share is 1\.5: give the share"),
        (lambda: lognormal(5, 0, 5, generator(), most=9), "sigma must be above 0"),
        (lambda: zipf(float("inf"), 5, generator(), most=9), "exponent must be above 0 and finite"),
    )
