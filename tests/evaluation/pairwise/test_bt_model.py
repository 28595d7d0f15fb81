"""Bradley–Terry and Elo: identities, a case by hand, other algorithms, simulated judges."""

import math
from itertools import combinations

import numpy as np
import pytest

from course_pkg.evaluation.pairwise import (
    Match,
    SimulatedJudge,
    bootstrap_strengths,
    bradley_terry,
    elo_by_order,
    elo_ratings,
    matches_of,
    simulate_comparisons,
    true_win_rate,
)
from course_pkg.evaluation.pairwise.bt_model import ELO_SCALE

STRENGTHS = {"a": 1.0, "b": 0.3, "c": 0.0, "d": -0.8}


def simulated(questions=60, seed=0, **biases):
    judge = SimulatedJudge(**biases)
    return matches_of(simulate_comparisons(STRENGTHS, judge, questions=questions, seed=seed))


def minorize_maximize(names, matches, steps=2000):
    """Hunter 2004, equation 3: π_i ← wins_i / Σ_j n_ij / (π_i + π_j)."""
    place = {name: n for n, name in enumerate(names)}
    wins = np.zeros(len(names))
    met = np.zeros((len(names), len(names)))
    for match in matches:
        i = place[match.first]
        j = place[match.second]
        wins[i] += match.outcome
        wins[j] += 1 - match.outcome
        met[i, j] += 1
        met[j, i] += 1
    worth = np.ones(len(names))
    for _ in range(steps):
        worth = wins / (met / (worth[:, None] + worth)).sum(axis=1)
        worth /= np.exp(np.log(worth).mean())
    return np.log(worth)


def test_two_players_have_the_log_odds_of_their_wins():
    games = [Match("x", "y", w, f"q{n}") for n, w in enumerate([1, 1, 1, 0, 1, 0.5])]
    found = bradley_terry(games, errors="fisher")
    assert found.difference("x", "y").estimate == pytest.approx(math.log(4.5 / 1.5))
    # Fisher: the variance of log-odds is 1 / (n p (1 - p)).
    margin = found.difference("x", "y").high - found.difference("x", "y").estimate
    assert margin / found.quantile == pytest.approx(1 / math.sqrt(6 * 0.75 * 0.25))


def test_newton_agrees_with_minorize_maximize_on_ties_too():
    matches = simulated(position=0.5)
    assert {match.outcome for match in matches} == {0.0, 0.5, 1.0}
    found = bradley_terry(matches)
    np.testing.assert_allclose(found.strengths, minorize_maximize(found.names, matches), atol=1e-6)


def test_it_is_sklearns_logistic_regression_without_a_penalty():
    linear = pytest.importorskip("sklearn.linear_model")
    matches = simulated()
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


def test_predicted_wins_add_up_to_the_wins_that_each_one_has():
    matches = simulated()
    found = bradley_terry(matches)
    for name in found.names:
        won = sum(
            m.outcome if m.first == name else 1 - m.outcome
            for m in matches
            if name in (m.first, m.second)
        )
        expected = sum(
            found.probability(name, m.second if m.first == name else m.first).estimate
            for m in matches
            if name in (m.first, m.second)
        )
        assert won == pytest.approx(expected)


def test_the_order_of_matches_and_of_sides_does_not_matter():
    matches = simulated(20)
    turned = [Match(m.second, m.first, 1 - m.outcome, m.question) for m in reversed(matches)]
    one = bradley_terry(matches)
    other = bradley_terry(turned)
    for name in STRENGTHS:
        assert one.strength(name).low == pytest.approx(other.strength(name).low)
        assert one.strength(name).high == pytest.approx(other.strength(name).high)


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


def test_the_bootstrap_of_questions_agrees_with_the_sandwich():
    matches = simulated(80, spread=1.0)
    found = bradley_terry(matches)
    draws = bootstrap_strengths(matches, samples=300, seed=1)
    ratio = draws.std(axis=0) / np.sqrt(np.diag(found.covariance))
    assert np.all((ratio > 0.85) & (ratio < 1.15))  # 300 draws: 4% each, and both estimate


def test_a_simulated_judge_is_recovered_without_bias():
    wanted = np.array(list(STRENGTHS.values()))
    wanted = wanted - wanted.mean()
    found = np.mean([bradley_terry(simulated(60, seed=s)).strengths for s in range(40)], axis=0)
    np.testing.assert_allclose(found, wanted, atol=0.05)  # 3 standard errors


def test_groups_that_never_met_are_named():
    games = [Match("a", "b", n % 2) for n in range(6)] + [Match("c", "d", n % 2) for n in range(6)]
    with pytest.raises(ValueError, match="a, b never met c, d"):
        bradley_terry(games, prior=1)


def test_a_player_who_always_wins_has_no_finite_strength_unless_a_prior_is_given():
    games = [Match("a", "b", 1), Match("a", "c", 1)] * 3 + [
        Match("b", "c", n % 2) for n in range(4)
    ]
    with pytest.raises(ValueError, match=r"a won all matches against b, c.*prior=1"):
        bradley_terry(games)
    found = bradley_terry(games, prior=1)
    # a has 7 of 8 virtual and real points, 3.5 against each of two equal opponents.
    assert found.difference("a", "b").estimate == pytest.approx(math.log(3.5 / 0.5))


def test_players_in_a_circle_of_wins_are_equal():
    games = [Match("a", "b", 1), Match("b", "c", 1), Match("c", "a", 1)] * 2
    np.testing.assert_allclose(bradley_terry(games).strengths, 0, atol=1e-9)


def test_matches_without_a_verdict_are_counted_and_left_out():
    matches = simulated(10)
    lost = [Match("a", "b", None, "q0"), Match("c", "d", None, "q1")]
    found = bradley_terry(matches + lost)
    assert found.failed == elo_ratings(matches + lost).failed == 2
    np.testing.assert_allclose(found.strengths, bradley_terry(matches).strengths)


@pytest.mark.parametrize(
    ("games", "message"),
    [
        ([], "no match has an outcome"),
        ([Match("a", "b", 1.5)], "outcome 1.5"),
        ([Match("a", "a", 1)], "against itself"),
        ([Match("a", "b", 1, "q"), Match("a", "b", 0, "q")], "1 independent items"),
    ],
)
def test_matches_that_make_no_sense_are_refused(games, message):
    with pytest.raises(ValueError, match=message):
        bradley_terry(games)


def test_an_unknown_player_is_named():
    with pytest.raises(ValueError, match="'z' played no match"):
        bradley_terry(simulated(10)).strength("z")


def test_elo_keeps_the_sum_of_ratings_and_moves_at_most_k():
    found = elo_ratings(simulated(20), k=20)
    np.testing.assert_allclose(found.history.sum(axis=1), 4000)
    assert np.abs(np.diff(found.history, axis=0)).max() <= 20


def test_elo_depends_on_the_order_and_bradley_terry_does_not():
    wins = [Match("a", "b", 1)] * 5
    losses = [Match("a", "b", 0)] * 5
    assert elo_ratings(wins + losses).ratings["a"] < 1000 < elo_ratings(losses + wins).ratings["a"]
    assert bradley_terry(wins + losses).strengths == pytest.approx([0, 0], abs=1e-12)


def test_a_smaller_k_depends_less_on_the_order():
    spreads = [elo_by_order(simulated(), orders=30, k=k).std(axis=0).mean() for k in (1, 8, 64)]
    assert spreads == sorted(spreads) and spreads[0] * 4 < spreads[2]


def test_elo_refuses_a_k_of_zero():
    with pytest.raises(ValueError, match="k must be above 0"):
        elo_ratings(simulated(5), k=0)


@pytest.mark.exhaustive
def test_clustered_intervals_cover_and_fishers_do_not_with_turns_that_agree():
    covered = {"sandwich": 0, "fisher": 0}
    total = 0
    games = [
        Match(a, b, true_win_rate(STRENGTHS[a] - STRENGTHS[b], spread=1.5))
        for a, b in combinations(STRENGTHS, 2)
    ]
    truth = bradley_terry(games, errors="fisher")  # without chance
    for seed in range(200):
        matches = simulated(40, seed=seed, spread=1.5)
        found = {errors: bradley_terry(matches, errors=errors) for errors in covered}
        for pair in combinations(STRENGTHS, 2):
            total += 1
            for errors, model in found.items():
                covered[errors] += truth.difference(*pair).estimate in model.difference(*pair)
    assert 0.92 < covered["sandwich"] / total < 0.98
    assert covered["fisher"] / total < 0.93
