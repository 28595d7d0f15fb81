import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.rouge import Overlap, RougeOptions, f_measure
from course_pkg.metrics.rouge.counts import score_overlaps


def combined(several, **options):
    return score_overlaps(several, RougeOptions(**options))


def test_f_by_hand_and_what_beta_must_be():
    # β = 1: 2·1·½ / 1½ = ⅔. β = 2: 5·1·½ / (½ + 4) = 5/9. β = ½: 1¼·½ / (½ + ¼) = 5/6.
    assert f_measure(1, 0.5) == pytest.approx(2 / 3)
    assert f_measure(1, 0.5, beta=2) == pytest.approx(5 / 9)
    assert f_measure(1, 0.5, beta=0.5) == pytest.approx(5 / 6)
    with pytest.raises(TypeError, match="beta must be a number"):
        f_measure(1, 1, "1")
    for beta in (-1, math.nan, -math.inf):
        with pytest.raises(ValueError, match="beta must be at least 0"):
            f_measure(1, 1, beta)


@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_the_limits_of_beta_are_precision_and_recall(p, r):
    assert f_measure(p, r, beta=0) == pytest.approx(p)
    assert f_measure(p, r, beta=math.inf) == r
    assert f_measure(p, r, beta=1e200) == r  # beta² is infinite in floating point
    assert f_measure(p, r, beta=1e6) == pytest.approx(r)


# 2 of 4 words, the reference has 2: P = ½, R = 1, F = ⅔.
# 3 of 4 words, the reference has 12: P = ¾, R = ¼, F = ⅜.
SHORT = Overlap(2, 4, 2)
LONG = Overlap(3, 4, 12)
# Precision 1, R = ¾, F = 6/7, and P = ⅓, recall 1, F = ½.
PRECISE = Overlap(3, 3, 4)
COMPLETE = Overlap(1, 3, 1)


def test_several_references_by_hand(subtests):
    for several, options, precision, recall, f in (
        ([LONG, SHORT], {}, 1 / 2, 1, 2 / 3),
        ([LONG, SHORT], {"multi": "pooled"}, 5 / 8, 5 / 14, 10 / 22),
        # F is the mean of ⅔ and ⅜, not the F of the mean P and the mean R.
        ([LONG, SHORT], {"multi": "average"}, 5 / 8, 5 / 8, (2 / 3 + 3 / 8) / 2),
        # Both have F = ⅓: the first is best.
        ([Overlap(1, 4, 2), Overlap(2, 4, 8)], {}, 1 / 4, 1 / 2, 1 / 3),
        ([Overlap(2, 4, 8), Overlap(1, 4, 2)], {}, 1 / 2, 1 / 4, 1 / 3),
        # The Perl tool chooses by recall.
        ([PRECISE, COMPLETE], {}, 1, 3 / 4, 6 / 7),
        ([PRECISE, COMPLETE], {"multi": "best", "mode": "rouge155"}, 1 / 3, 1, 1 / 2),
    ):
        with subtests.test(several=several, options=options):
            score = combined(several, **options)
            values = (score.precision, score.recall, score.fmeasure)
            assert values == pytest.approx((precision, recall, f), abs=1e-5)
            assert score.overlaps == tuple(several)


def test_the_perl_tool_rounds_before_it_computes_f():
    # P = ½, R = 1/7 → 0.14286. F of these is 2·½·0.14286 / 0.64286 = 0.222226 → 0.22223;
    # of the exact fractions 2/9 = 0.22222…
    score = combined([Overlap(1, 2, 7)], mode="rouge155")
    assert (score.precision, score.recall, score.fmeasure) == (0.5, 0.14286, 0.22223)
    assert combined([Overlap(1, 2, 7)]).fmeasure == pytest.approx(2 / 9)
