"""Scenarios: what HELM's core covers, covers of a set, and the worst case over variants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.systems.scenarios import (
    greedy_cover,
    load_helm_core,
    measured_grid,
    worst_case,
)
from tests.refusals import require_refusals

SETS = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.integers(0, 6)), min_size=1, max_size=6
)


def test_the_grid_has_a_row_for_each_scenario():
    core = load_helm_core()
    grid = measured_grid(core)
    assert grid.shape == (16, 7)
    assert [int(row.sum()) for row in grid] == [len(scenario.measured) for scenario in core]
    assert measured_grid([]).shape == (0, 7)


@settings(max_examples=30)
@given(SETS)
def test_a_greedy_cover_covers_everything_and_each_choice_adds_the_most(candidates):
    chosen = greedy_cover(candidates)
    covered = set()
    for name, added in chosen:
        gains = {other: len(things - covered) for other, things in candidates.items()}
        assert added == gains[name] == max(gains.values()) > 0
        covered |= candidates[name]
    assert covered == set().union(*candidates.values())


def test_a_preferred_scenario_wins_ties_only_and_must_be_a_candidate():
    candidates = {"exam": {1, 2}, "shop": {2, 3}, "wide": {1, 2, 3, 4}}
    assert greedy_cover(candidates, ["shop"])[0][0] == "wide"
    assert greedy_cover({"exam": {1, 2}, "shop": {2, 3}}, ["shop"]) == [("shop", 2), ("exam", 1)]
    with pytest.raises(ValueError, match=r"\['d'\] are not among the candidates"):
        greedy_cover({"a": {1}}, ["d"])


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_worst_case_is_below_every_variant_and_one_variant_changes_nothing(scores):
    worst = worst_case(scores)
    assert all(np.mean(worst) <= np.mean(row) for row in scores)
    assert worst_case(scores[:1]) == scores[0]
    assert worst_case([*scores, scores[0]]) == worst


def test_variants_of_other_items_are_an_error():
    message = "the same items for each variant"
    require_refusals(([[1, 0], [1]], message), ([], message), ([[]], message), of=worst_case)
