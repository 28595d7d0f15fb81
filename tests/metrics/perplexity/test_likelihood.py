import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.perplexity import Likelihood, count_units

log_probs = st.lists(st.floats(-50, 0), min_size=1, max_size=30)


def test_the_documents_first_case_equals_a_root_of_the_product():
    case = Likelihood.of([math.log(0.3), math.log(0.5)])
    assert case.perplexity == pytest.approx((0.3 * 0.5) ** (-1 / 2), rel=1e-12)
    assert round(case.perplexity, 3) == 2.582


@given(log_probs, log_probs)
def test_a_total_is_between_its_parts_and_weighted_by_tokens(left, right):
    parts = [Likelihood.of(left, words=2, bytes=9), Likelihood.of(right, words=1, bytes=5)]
    total = Likelihood.total(parts)
    assert total == Likelihood.of(left + right, words=3, bytes=14) or math.isclose(
        total.nll, -math.fsum(left + right), rel_tol=1e-12
    )
    low, high = sorted(part.nll_per_token for part in parts)
    assert low - 1e-9 <= total.nll_per_token <= high + 1e-9


def test_units_are_those_of_the_original_text():
    text = "Für Elise,\n  再见"
    result = Likelihood(nll=14 * math.log(2), tokens=3, **count_units(text))
    assert (result.words, result.bytes) == (3, len("Für Elise,\n  再见".encode()))
    assert result.bits_per_byte == pytest.approx(14 / result.bytes)
    assert result.word_perplexity == pytest.approx(2 ** (14 / 3))


def test_a_quotient_over_no_units_is_nan_and_an_overflow_is_infinite():
    empty = Likelihood(0.0, 0)
    for name in ("perplexity", "nll_per_token", "bits_per_token", "bits_per_byte"):
        assert math.isnan(getattr(empty, name))
    assert math.isnan(empty.word_perplexity)
    assert Likelihood(1000.0, 1).perplexity == math.inf
    assert Likelihood.of([-math.inf, -1.0]).perplexity == math.inf


def test_a_probability_in_place_of_its_logarithm_raises_an_error():
    for value in (0.3, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"log-probability must be at most 0, got {value}"):
            Likelihood.of([-1.0, value])
