from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.ngrams import (
    clipped_matches,
    count,
    count_matches,
    maximum_counts,
    ngrams,
)

TOKENS = st.lists(st.sampled_from("abc"), max_size=12)
ORDERS = st.integers(1, 5)


@given(TOKENS, ORDERS)
def test_each_start_position_gives_one_ngram_which_is_a_slice(tokens, n):
    grams = ngrams(tokens, n)
    assert len(grams) == max(len(tokens) - n + 1, 0)
    assert grams == [tuple(tokens[start : start + n]) for start in range(len(grams))]


@given(TOKENS, TOKENS, ORDERS)
def test_clipped_matches_is_the_size_of_the_multiset_intersection(one, other, n):
    counts = count(one, n), count(other, n)
    assert clipped_matches(*counts) == (counts[0] & counts[1]).total()
    assert clipped_matches(*counts) == clipped_matches(*reversed(counts))
    assert clipped_matches(counts[0], counts[0]) == len(ngrams(one, n))


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=3), ORDERS)
def test_count_matches_equals_clipped_matches_of_each_order(tokens, texts, orders):
    references = [maximum_counts([count(text, n) for text in texts]) for n in range(1, orders + 1)]
    before = [reference.copy() for reference in references]
    matches = count_matches(tokens, references)
    for n, reference in enumerate(references, start=1):
        assert matches[n - 1] == clipped_matches(count(tokens, n), reference)
    assert references == before


def test_the_maximum_is_not_the_sum_and_needs_a_reference():
    counters = [count(["a", "a"], 1), count(["a", "b"], 1)]
    assert maximum_counts(counters) == {("a",): 2, ("b",): 1}
    assert counters == [count(["a", "a"], 1), count(["a", "b"], 1)]  # not changed
    with pytest.raises(ValueError, match="at least one reference"):
        maximum_counts([])


def test_a_text_or_an_order_below_one_raises_an_error():
    for call in (ngrams, count, lambda x, n: count_matches(x, [Counter()] * n)):
        with pytest.raises(TypeError, match="split a text with tokenize"):
            call("the cat", 2)
        with pytest.raises(TypeError, match="got None"):
            call(None, 2)
    for n in (0, 1.0, True, None):
        with pytest.raises(ValueError, match="n must be an integer of at least 1, got"):
            ngrams(["a"], n)
