"""Resemblance by hand, and every similar pair against a comparison of all pairs."""

import random
from itertools import combinations

import pytest

from course_pkg.finetuning.near_duplicates import (
    SimilarPair,
    character_ngrams,
    near_duplicates,
    resemblance,
)


def test_resemblances_by_hand():
    # abcd: abc, bcd; bcde: bcd, cde. One of three is shared.
    assert resemblance("abcd", "bcde", size=3) == pytest.approx(1 / 3)
    # Case and white space do not count; punctuation does.
    assert resemblance("Merge  the\nadapter", " merge the ADAPTER ") == 1
    assert resemblance("Merge the adapter", "Merge the adapter.") < 1
    # A short or empty text is one n-gram.
    assert character_ngrams("Yes") == {"yes"} and character_ngrams(" ") == {""}


def test_the_pairs_are_those_of_a_comparison_of_all_with_all():
    rng = random.Random(0)
    texts = ["".join(rng.choices("ab ", k=rng.randint(0, 14))) for _ in range(60)]
    for threshold in (0, 0.3, 0.8):
        expected = {
            (i, j): resemblance(texts[i], texts[j], 3)
            for i, j in combinations(range(60), 2)
            if resemblance(texts[i], texts[j], 3) > threshold
        }
        found = near_duplicates(texts, threshold, size=3)
        assert {(pair.first, pair.second): pair.resemblance for pair in found} == expected
        values = [pair.resemblance for pair in found]
        assert values == sorted(values, reverse=True)


def test_a_pair_at_the_threshold_is_not_above_it():
    assert near_duplicates(["abcd", "bcde"], threshold=1 / 3, size=3) == []
    assert near_duplicates(["abcd", "bcde"], threshold=0.33, size=3) == [SimilarPair(0, 1, 1 / 3)]


def test_other_arguments_are_checked():
    with pytest.raises(TypeError, match="text must be a string"):
        near_duplicates([3])
    with pytest.raises(ValueError, match="size"):
        near_duplicates(["a"], size=0)
    with pytest.raises(ValueError, match="threshold must be at least 0 and below 1"):
        near_duplicates(["a"], threshold=1)
