"""The order test: exact p-values, and their size under the null."""

import itertools

import numpy as np
import pytest

from course_pkg.studies.contamination import exchangeability
from course_pkg.studies.contamination.exchangeability import draw_orders, order_t_test, order_test


def by_enumeration(table: np.ndarray) -> float:
    """The share of all ways whose sum is at least that of the first column."""
    observed = table[:, 0].sum()
    sums = [sum(way) for way in itertools.product(*table.tolist())]
    return sum(total >= observed - 1e-9 for total in sums) / len(sums)


def test_the_p_value_is_that_of_all_ways():
    for shape in ((1, 2), (1, 20), (2, 5), (3, 4), (5, 3)):
        generator = np.random.default_rng(sum(shape))
        for _ in range(10):
            table = generator.normal(size=shape).round(1)  # rounded, so that there are ties
            found = order_test(table.tolist())
            assert found.exact and found.ways == shape[1] ** shape[0]
            assert found.p_value == pytest.approx(by_enumeration(table), abs=1e-12)
    found = order_test([[0.0, -1.0, -2.0]] * 4)
    assert found.p_value == found.smallest == 3**-4
    assert found.gain == 1.5


def test_drawn_ways_agree_with_all_ways(monkeypatch):
    table = np.random.default_rng(3).normal(size=(6, 5))
    table[:, 0] += 0.5
    exact = order_test(table.tolist())
    monkeypatch.setattr(exchangeability, "MOST_SUMS", 1)
    drawn = order_test(table.tolist(), seed=1)
    assert not drawn.exact and drawn.smallest == 1e-5
    margin = 4 * np.sqrt(exact.p_value * (1 - exact.p_value) / drawn.ways)
    assert abs(drawn.p_value - exact.p_value) < margin
    assert order_test([[-7.0, -7.0, -7.0]] * 3).p_value == 1  # ties count


def test_the_t_test_by_hand_and_of_equal_gains():
    # Gains 1, 0.5 and 1.5: t = 1 / (0.5 / √3), and P(t > 2√3) = 0.0371 with 2 degrees of freedom.
    assert round(order_t_test([[-1.0, -2.0], [-1.0, -1.5], [-1.0, -2.5]]), 4) == 0.0371
    assert order_t_test([[1.0, 0.0], [1.0, 0.0]]) == 0
    assert order_t_test([[0.0, 0.0], [0.0, 0.0]]) == 1


def test_orders_are_different_permutations_and_the_first_is_the_given_one():
    for count, others in ((6, 4), (3, 5), (3, 100), (2, 1), (10, 30)):
        orders = draw_orders(count, others, seed=4)
        assert orders[0] == tuple(range(count))
        assert len(set(orders)) == len(orders) == 1 + min(others, len(orders) - 1)
        assert all(sorted(order) == list(range(count)) for order in orders)
        assert orders == draw_orders(count, others, seed=4)


def test_bad_tables_are_errors():
    for scores, error in (
        ([], "no"),
        ([[1.0]], "orders"),
        ([[1.0, 2.0], [1.0]], "orders"),
        ([[1.0, float("nan")]], "NaN"),
        ("ab", "must be a list"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            order_test(scores)
    with pytest.raises(ValueError, match="shards must be an integer of at least 2"):
        order_t_test([[1.0, 2.0]])
