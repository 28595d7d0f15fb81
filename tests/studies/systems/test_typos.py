"""Typing errors: how many, where, and which."""

import string

import pytest

from course_pkg.pages.perturbations import NEIGHBORS, add_typos

TEXT = "Where do people hang wet laundry, and since when? In 1969!"


def test_the_seed_decides_and_a_rate_of_zero_changes_nothing():
    assert add_typos(TEXT, 0.3, seed=1) == add_typos(TEXT, 0.3, seed=1)
    assert len({add_typos(TEXT, 0.3, seed=seed) for seed in range(20)}) == 20
    assert add_typos(TEXT, 0.0, seed=3) == TEXT


def test_all_that_is_no_letter_stays_in_its_order():
    for rate in (0.1, 0.5, 0.95):

        def others(text):
            return [c for c in text if c not in string.ascii_letters]

        for seed in range(50):
            assert others(add_typos(TEXT, rate, seed)) == others(TEXT)


def test_about_as_many_letters_are_hit_as_the_rate_says():
    text = "a" * 40_000
    written = add_typos(text, 0.1, seed=0)
    # Dropped (-1) and doubled (+1) letters cancel, a swap isn't seen, and the neighbor of a is s.
    assert abs(len(written) / len(text) - 1) < 0.01
    assert abs(written.count("s") / len(text) - 0.1 / 4) < 0.004


def test_neighbors_are_beside_each_other_and_know_each_other():
    assert set(NEIGHBORS) == set(string.ascii_lowercase)
    assert all(letter in NEIGHBORS[near] for letter in NEIGHBORS for near in NEIGHBORS[letter])


def test_a_rate_that_is_no_probability_is_an_error(subtests):
    for rate in (-0.1, 1.0, 1.5, float("nan")):
        with subtests.test(rate=rate), pytest.raises(ValueError, match="rate"):
            add_typos(TEXT, rate)
