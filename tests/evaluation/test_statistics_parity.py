"""The numbers of the tools that evaluators use: inspect_ai, statsmodels, torchmetrics, HELM's.

They need a folder of their own, which COURSE_EVALUATION_PARITY names:

    python -m pip install --target FOLDER inspect_ai
    python -m pip install --target FOLDER --no-deps statsmodels patsy uncertainty-calibration
    python -m pip install --target FOLDER --no-deps torchmetrics lightning-utilities

It is appended to the path, so that the course's own packages come first. Verified with inspect_ai
0.3.285, statsmodels 0.15.0, torchmetrics 1.9.0 and uncertainty-calibration 0.1.4 (which HELM uses).
Without it, the same formulas are derived again in the tests of each module.

What was found: equal to 1e-9, except that torchmetrics puts a confidence of exactly 1.0 into a bin
of its own, an eleventh of ten, and one on an edge into the upper bin.
"""

import os
import sys

import numpy as np
import pytest

from course_pkg.evaluation.calibration import expected_calibration_error
from course_pkg.evaluation.comparison import holm, mcnemar_exact
from course_pkg.evaluation.power import items_needed
from course_pkg.evaluation.statistics import standard_error, wilson_interval

WHY = "COURSE_EVALUATION_PARITY names no folder with it: this file's first lines say how to make it"


@pytest.fixture(autouse=True)
def parity_folder(monkeypatch):
    """The libraries' folder at the end of the path."""
    folder = os.environ.get("COURSE_EVALUATION_PARITY")
    if folder:
        monkeypatch.setattr(sys, "path", [*sys.path, folder])


def needed(name):
    """The module; skips the test if there is none."""
    return pytest.importorskip(name, reason=f"{name}: {WHY}", exc_type=ImportError)


def answers(seed=0, items=300):
    rng = np.random.default_rng(seed)
    confidences = rng.uniform(0.2, 1.0, items)
    return confidences, rng.random(items) < confidences**2


def test_standard_errors_are_those_of_inspect_ai():
    scorer = needed("inspect_ai.scorer")
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 9, 50)
    values = (rng.random(50) < 0.2 + 0.07 * groups).astype(float)
    samples = [
        scorer.SampleScore(score=scorer.Score(value=float(v)), sample_metadata={"passage": int(g)})
        for v, g in zip(values, groups, strict=True)
    ]
    assert standard_error(values) == pytest.approx(scorer.stderr()(samples), rel=1e-12)
    clustered = scorer.stderr(cluster="passage")(samples)
    assert standard_error(values, groups) == pytest.approx(clustered, rel=1e-12)


def test_shares_and_p_values_are_those_of_statsmodels():
    proportion = needed("statsmodels.stats.proportion")
    for correct, total in ((0, 9), (13, 40), (97, 100)):
        found = wilson_interval(correct, total)
        expected = proportion.proportion_confint(correct, total, method="wilson")
        assert (found.low, found.high) == pytest.approx(expected, abs=1e-9)
    tables = needed("statsmodels.stats.contingency_tables")
    for wins, losses in ((9, 2), (0, 3), (40, 61)):
        expected = tables.mcnemar([[50, losses], [wins, 30]], exact=True).pvalue
        assert mcnemar_exact(wins, losses) == pytest.approx(expected, rel=1e-9)
    multiple = needed("statsmodels.stats.multitest")
    values = np.random.default_rng(0).random(30) ** 4
    assert holm(values) == pytest.approx(multiple.multipletests(values, method="holm")[1])


def test_the_number_of_items_is_that_of_statsmodels():
    power = needed("statsmodels.stats.power")
    # NormalIndPower takes the difference in standard deviations, for one sample if ratio is 0. It
    # also counts results in the wrong direction, which are rare.
    for difference, variance in ((0.05, 0.1475), (0.1, 0.4)):
        expected = power.NormalIndPower().solve_power(
            difference / np.sqrt(variance), alpha=0.05, power=0.8, ratio=0
        )
        assert items_needed(difference, variance) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_the_calibration_error_is_that_of_torchmetrics_away_from_the_edges(bins):
    needed("torchmetrics")
    import torch
    from torchmetrics.functional.classification.calibration_error import _ce_compute

    confidences, correct = answers()
    found = _ce_compute(torch.tensor(confidences), torch.tensor(correct), bins).item()
    # Its edges are in fp32, its sums in fp64.
    assert expected_calibration_error(confidences, correct, bins) == pytest.approx(found, abs=1e-9)
    two = torch.tensor([0.95, 1.0], dtype=torch.float64), torch.tensor([1.0, 0.0])
    own_bin = _ce_compute(*two, 10).item()
    assert own_bin == pytest.approx(0.525)  # (0.05 + 1) / 2; one bin gives |0.5 - 0.975|
    assert expected_calibration_error([0.95, 1.0], [1, 0], 10) == pytest.approx(0.475)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_the_calibration_error_is_that_of_helms_library(bins):
    calibration = needed("calibration")
    confidences, correct = answers()  # 300 answers: equally many in each bin
    labels = correct.astype(int)
    for binning, other in (("width", calibration.get_ece), ("mass", calibration.get_ece_em)):
        expected = other(confidences, labels, num_bins=bins)
        found = expected_calibration_error(confidences, correct, bins, binning)
        assert found == pytest.approx(expected, abs=1e-9)
