"""Length control: identities, sklearn, known coefficients, coverage.

Compared once with alpaca_eval (commit cd543a1) on the judgments in its repository, of 27 models
with all 805 verdicts: our raw win rates are the leaderboard's to the two decimals given there, and
our fit without a penalty is that of its minimal formula to 1e-7. With difficulties estimated from
these 27 models, ours is within 0.8 points of the published rate for the five models whose answers
are about as long as the baseline's, and up to 10 points above it for models with much shorter
answers: the published fit adds two baselines that were told to be brief or verbose, and an L1
penalty. Where a standard error is published (six models), it is less than half of ours.
"""

import numpy as np
import pytest

from course_pkg.studies.chat_benchmarks.length_control import (
    length_controlled_win_rate,
    length_term,
)
from course_pkg.studies.chat_benchmarks.logistic import fit_logistic, sigmoid


def judged(theta=0.4, phi=1.5, psi=0.0, items=400, longer=1.5, seed=0):
    """Preferences of 0 and 1, lengths, baseline lengths, difficulties, and the true rate."""
    rng = np.random.default_rng(seed)
    base = np.rint(400 * np.exp(rng.normal(0, 0.5, items)))
    own = np.rint(400 * longer * np.exp(rng.normal(0, 0.5, items)))
    hard = rng.normal(0, 1, items)
    logits = theta + phi * length_term(own, base) + psi * hard
    drawn = (rng.random(items) < sigmoid(logits)).astype(float)
    return drawn, own, base, hard, float(sigmoid(theta + psi * hard).mean())


def test_the_controlled_rate_is_the_models_term_and_those_of_a_pair_add_up_to_one():
    drawn, own, base, _, _ = judged()
    found = length_controlled_win_rate(drawn, own, base)
    assert found.controlled.estimate == pytest.approx(sigmoid(np.array(found.model)))
    assert found.prediction_error == pytest.approx(0, abs=1e-12)  # what alpaca_eval would report
    drawn, own, base, hard, _ = judged(psi=0.7)
    one = length_controlled_win_rate(drawn, own, base, difficulty=hard)
    other = length_controlled_win_rate(1 - drawn, base, own, difficulty=hard)
    assert one.controlled.estimate + other.controlled.estimate == pytest.approx(1)
    half = length_controlled_win_rate(np.full(400, 0.5), own, base, difficulty=hard)
    assert half.controlled.estimate == pytest.approx(0.5)


def test_it_equals_sklearn_on_rows_that_are_doubled_and_weighted_as_alpaca_eval_does():
    linear = pytest.importorskip("sklearn.linear_model")
    drawn, own, base, hard, _ = judged(psi=0.7)
    soft = 0.8 * drawn + 0.1  # AlpacaEval 2's preferences are probabilities
    found = length_controlled_win_rate(soft, own, base, difficulty=hard)
    theirs = base - own  # alpaca_eval subtracts the other way around
    design = np.stack([np.tanh(theirs / theirs.std(ddof=1)), hard, np.ones(400)], axis=1)
    fit = linear.LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10, max_iter=5000).fit(
        np.vstack([design, design]),
        np.repeat([1, 0], 400),
        sample_weight=np.concatenate([soft, 1 - soft]),
    )
    ours = [-found.length, found.difficulty, found.model]
    np.testing.assert_allclose(ours, fit.coef_[0], atol=1e-5)


def test_a_ridge_is_sklearns_l2_penalty():
    linear = pytest.importorskip("sklearn.linear_model")
    drawn, own, base, _, _ = judged()
    found = length_controlled_win_rate(drawn, own, base, ridge=2.0)
    design = np.stack([np.ones(400), length_term(own, base)], axis=1)
    fit = linear.LogisticRegression(C=1 / 2.0, fit_intercept=False, tol=1e-10).fit(design, drawn)
    np.testing.assert_allclose([found.model, found.length], fit.coef_[0], atol=1e-5)


def test_the_interval_is_the_sandwich_of_the_models_term_and_longer_for_groups_that_agree():
    drawn, own, base, _, _ = judged()
    found = length_controlled_win_rate(drawn, own, base)
    fit = fit_logistic(np.stack([np.ones(400), length_term(own, base)], axis=1), drawn)
    rate = found.controlled.estimate
    error = rate * (1 - rate) * np.sqrt(fit.sandwich()[0, 0])
    half = found.controlled.high - rate
    assert half == pytest.approx(error * 1.9659, rel=1e-4)  # t with 399 degrees of freedom
    drawn, own, base, _, _ = judged(items=100)
    doubled = [np.repeat(each, 2) for each in (drawn, own, base)]
    groups = np.repeat(np.arange(100), 2).tolist()
    naive = length_controlled_win_rate(*doubled).controlled
    clustered = length_controlled_win_rate(*doubled, groups=groups).controlled
    assert clustered.high - clustered.low > 1.3 * (naive.high - naive.low)


def test_data_that_can_not_tell_are_refused():
    for change, message in (
        ({"lengths": [5] * 6, "baseline_lengths": [3] * 6}, "differ from the baseline's by 2"),
        ({"preferences": [1.0] * 6}, "no finite coefficients"),
        ({"preferences": [1.2, 0, 1, 0, 1, 0]}, r"in \[0, 1\]"),
        ({"lengths": [1, 2, 3]}, "6 preferences, 3 lengths"),
        ({"difficulty": [1.0, 2.0]}, "6 preferences, but 2 difficulties"),
        ({"difficulty": [1.0] * 6}, "depend on each other"),
    ):
        good = {"preferences": [1, 0, 1, 0, 0, 1], "lengths": [5, 3, 6, 7, 2, 4]}
        good |= {"baseline_lengths": [4, 4, 4, 5, 4, 5]}
        with pytest.raises(ValueError, match=message):
            length_controlled_win_rate(**{**good, **change})
