import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.metrics.rouge import lcs
from course_pkg.metrics.rouge.lcs import (
    lcs_length,
    lcs_positions,
    lcs_table,
    lcs_union,
    wlcs_length,
    wlcs_table,
)
from course_pkg.metrics.rouge.perl import wlcs_positions, wlcs_union

# One or two letters give long matches and many ties; ten letters give few.
tokens = st.sampled_from(["a", "ab", "abcdefghij"]).flatmap(
    lambda letters: st.lists(st.sampled_from(letters), max_size=70)
)


def read_from_table(x, y):
    """Go back through the table: match, else up if the row above is as long, else left."""
    table = lcs_table(x, y)
    pairs = []
    i = len(x)
    j = len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            i = i - 1
            j = j - 1
            pairs.append((i, j))
        elif table[i - 1][j] >= table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


@given(tokens, tokens)
def test_the_length_is_the_tables_last_entry(x, y):
    assert lcs_length(x, y) == lcs_table(x, y)[-1][-1] == lcs_length(y, x)


@given(tokens, tokens)
def test_the_positions_equal_those_read_from_the_table(x, y):
    assert lcs_positions(x, y) == read_from_table(x, y)


def test_lengths_near_byte_and_word_boundaries(subtests):
    for length in (1, 7, 8, 63, 64, 65, 1025):
        with subtests.test(length=length):
            rng = random.Random(length)
            x, y = ([rng.choice("abc") for _ in range(length)] for _ in "xy")
            assert lcs_length(x, y) == lcs_table(x, y)[-1][-1]
            assert lcs_positions(x, y) == read_from_table(x, y)


@given(tokens, tokens)
def test_rows_that_are_not_kept_are_computed_again(x, y):
    expected = lcs_positions(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lcs, "_KEPT_BITS", 0)
        assert lcs_positions(x, y) == expected


@given(tokens, st.lists(tokens, max_size=4))
def test_the_union_contains_the_positions_of_all_hypotheses(x, others):
    assert lcs_union(x, others) == {i for y in others for i, _ in lcs_positions(x, y)}
    assert wlcs_union(x, others, 2) == {i for y in others for i, _ in wlcs_positions(x, y, 2)}


def test_masks_that_are_not_cached_are_computed_again(monkeypatch):
    rng = random.Random(0)
    x, y = ([rng.choice("abcdefgh") for _ in range(1100)] for _ in "xy")
    expected = lcs_positions(x, y)
    monkeypatch.setattr(lcs, "_CACHED_BITS", 2500)  # enough for two masks
    assert lcs_positions(x, y) == expected
    assert lcs_length(x, y) == len(expected)


@settings(max_examples=60)
@given(tokens, tokens, st.sampled_from([1.0, 1.2, 2, 3.5]))
def test_the_weighted_length_is_the_weighted_tables_last_entry(x, y, weight):
    table, _ = wlcs_table(x, y, weight)
    assert wlcs_length(x, y, weight) == pytest.approx(table[-1][-1], rel=1e-9, abs=1e-9)


@given(tokens, tokens)
def test_weight_one_gives_the_unweighted_length(x, y):
    assert wlcs_length(x, y, 1) == lcs_length(x, y)
    assert wlcs_positions(x, y, 1) == lcs_positions(x, y)
