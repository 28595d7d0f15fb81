"""Each perturbation changes texts as its name says, and repeatably."""

import string

import pytest

from course_pkg.pages.datasets import load_sentences
from course_pkg.pages.perturbations import NEIGHBORS, PERTURBATIONS, add_typos, perturb

SENTENCES = load_sentences()
ORIGINAL = [sentence.text for sentence in SENTENCES]


def words(text):
    return sorted(text.replace(".", "").split())


def test_every_perturbation_except_identical_changes_every_sentence():
    for name in PERTURBATIONS:
        changed = [a != b for a, b in zip(perturb(SENTENCES, name), ORIGINAL, strict=True)]
        assert changed == [name != "identical"] * len(SENTENCES)


def test_reordering_keeps_the_words_and_depends_only_on_the_seed():
    once = perturb(SENTENCES, "reordered", seed=1)
    assert once == perturb(SENTENCES, "reordered", seed=1)
    assert once != perturb(SENTENCES, "reordered", seed=2)
    assert [words(text) for text in once] == [words(text) for text in ORIGINAL]


def test_truncating_keeps_the_beginning_repeating_doubles_and_others_are_unknown():
    for short, whole in zip(perturb(SENTENCES, "truncated"), ORIGINAL, strict=True):
        assert whole.startswith(short) and 2 * len(short.split()) <= len(whole.split())
    assert perturb(SENTENCES, "repeated") == [f"{text} {text}" for text in ORIGINAL]
    with pytest.raises(ValueError, match=r"must be one of identical, paraphrased.*'shouted'"):
        perturb(SENTENCES, "shouted")


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


def test_a_rate_that_is_no_probability_is_an_error():
    for rate in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="rate"):
            add_typos(TEXT, rate)
