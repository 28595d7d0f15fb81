"""Bradley–Terry and Elo: identities, a case by hand, other algorithms, simulated judges."""

import math

import numpy as np
import pytest

from course_pkg.studies.chat_benchmarks.comparisons import JudgedMatch as Match
from course_pkg.studies.chat_benchmarks.comparisons import matches_of
from course_pkg.studies.chat_benchmarks.ratings import (
    ELO_SCALE,
    bradley_terry,
    elo_by_order,
    elo_ratings,
)
from course_pkg.studies.chat_benchmarks.simulated_judge import SimulatedJudge, simulate_comparisons
from tests.refusals import require_refusals

STRENGTHS = {"a": 1.0, "b": 0.3, "c": 0.0, "d": -0.8}


def simulated(questions=60, seed=0, **biases):
    judge = SimulatedJudge(**biases)
    return matches_of(simulate_comparisons(STRENGTHS, judge, questions=questions, seed=seed))


def test_two_players_have_the_log_odds_of_their_wins():
    games = [Match("x", "y", w, f"q{n}") for n, w in enumerate([1, 1, 1, 0, 1, 0.5])]
    found = bradley_terry(games, errors="fisher")
    assert found.difference("x", "y").estimate == pytest.approx(math.log(4.5 / 1.5))
    # Fisher: the variance of log-odds is 1 / (n p (1 - p)).
    margin = found.difference("x", "y").high - found.difference("x", "y").estimate
    assert margin / found.quantile == pytest.approx(1 / math.sqrt(6 * 0.75 * 0.25))


def test_it_is_sklearns_logistic_regression_without_a_penalty_on_ties_too():
    linear = pytest.importorskip("sklearn.linear_model")
    matches = simulated(position=0.5)
    assert {match.outcome for match in matches} == {0.0, 0.5, 1.0}
    found = bradley_terry(matches)
    design = np.array([[(m.first == n) - (m.second == n) for n in found.names] for m in matches])
    outcomes = np.array([match.outcome for match in matches])
    fit = linear.LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10, max_iter=5000).fit(
        np.vstack([design, design]),
        np.repeat([1, 0], len(matches)),
        sample_weight=np.concatenate([outcomes, 1 - outcomes]),
    )
    weights = fit.coef_[0] - fit.coef_[0].mean()
    np.testing.assert_allclose(found.strengths, weights, atol=1e-5)


def test_elo_ratings_are_strengths_on_another_scale():
    found = bradley_terry(simulated())
    gap = found.rating("a").estimate - found.rating("b").estimate
    assert 1 / (1 + 10 ** (-gap / 400)) == pytest.approx(found.probability("a", "b").estimate)
    assert round(ELO_SCALE, 4) == 173.7178


def test_the_sandwich_of_ungrouped_matches_is_whites():
    matches = [Match(m.first, m.second, m.outcome) for m in simulated(30)]
    found = bradley_terry(matches)
    names = found.names
    chance = np.array([found.probability(m.first, m.second).estimate for m in matches])
    design = np.array([[(m.first == n) - (m.second == n) for n in names] for m in matches], float)
    bread = np.linalg.pinv((design.T * (chance * (1 - chance))) @ design)
    scores = (np.array([m.outcome for m in matches]) - chance)[:, None] * design
    count = len(matches)
    want = count / (count - 1) * bread @ scores.T @ scores @ bread
    np.testing.assert_allclose(found.covariance, want, atol=1e-10)


def test_groups_that_never_met_and_players_who_always_win_have_no_strength():
    games = [Match("a", "b", n % 2) for n in range(6)] + [Match("c", "d", n % 2) for n in range(6)]
    with pytest.raises(ValueError, match="a, b never met c, d"):
        bradley_terry(games, prior=1)
    games = [Match("a", "b", 1), Match("a", "c", 1)] * 3 + [
        Match("b", "c", n % 2) for n in range(4)
    ]
    with pytest.raises(ValueError, match=r"a won all matches against b, c.*prior=1"):
        bradley_terry(games)
    found = bradley_terry(games, prior=1)
    # a has 7 of 8 virtual and real points, 3.5 against each of two equal opponents.
    assert found.difference("a", "b").estimate == pytest.approx(math.log(3.5 / 0.5))


def test_matches_without_a_verdict_are_counted_and_left_out():
    matches = simulated(10)
    lost = [Match("a", "b", None, "q0"), Match("c", "d", None, "q1")]
    found = bradley_terry(matches + lost)
    assert found.failed == elo_ratings(matches + lost).failed == 2
    np.testing.assert_allclose(found.strengths, bradley_terry(matches).strengths)


def test_what_makes_no_sense_is_refused():
    require_refusals(
        (lambda: bradley_terry([]), "no match has an outcome"),
        (lambda: bradley_terry([Match("a", "b", 1.5)]), "outcome 1.5"),
        (lambda: bradley_terry([Match("a", "a", 1)]), "against itself"),
        (lambda: bradley_terry([Match("a", "b", n, "q") for n in (0, 1)]), "1 independent items"),
        (lambda: bradley_terry(simulated(10)).strength("z"), "'z' played no match"),
        (lambda: elo_ratings(simulated(5), k=0), "k must be above 0"),
    )


def test_elo_keeps_the_sum_of_ratings_and_a_smaller_k_depends_less_on_the_order():
    found = elo_ratings(simulated(20), k=20)
    np.testing.assert_allclose(found.history.sum(axis=1), 4000)
    assert np.abs(np.diff(found.history, axis=0)).max() <= 20
    spreads = [elo_by_order(simulated(), orders=30, k=k).std(axis=0).mean() for k in (1, 8, 64)]
    assert spreads == sorted(spreads) and spreads[0] * 4 < spreads[2]
