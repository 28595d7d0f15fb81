"""`concepts`: what counts is what an example does; none of its statements can be guessed."""

import math

import numpy as np
import pytest

from course_pkg.grading.assignments.concepts import cases
from course_pkg.grading.questions.plain_values import as_plain

LAYER = {"d": 4, "k": 6}
WEIGHTS = {"n": 12, "block": 4, "bits": 4.5}
REFERENCE = {"reference": list("abcdefghijkl"), "below": 0.5}


def test_any_orthogonal_change_is_hard_and_any_other_scale_is_too():
    rows = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 4)))[0].T
    for factor in (1.0, -3.0, 100.0):
        assert judged("lora", LAYER, cases.change_is_hard, hard=(factor * rows).tolist()) is None


def test_every_rank_one_matrix_of_different_numbers_is_easy():
    products = np.outer([1, 7, 49, 343], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    assert judged("lora", LAYER, cases.change_is_easy, easy=products.tolist()) is None


def test_a_matrix_of_zeros_or_of_anything_but_moderate_numbers_is_no_change():
    for value in (0.0, math.nan, math.inf, 1e9, "1", None):
        rows = [[value] * 6 for _ in range(4)]
        assert judged("lora", LAYER, cases.change_is_hard, hard=rows), value
        assert judged("lora", LAYER, cases.change_is_easy, easy=rows), value


def test_the_share_of_rank_one_is_that_of_the_singular_values():
    rng = np.random.default_rng(0)
    for rows, columns, rank in ((1, 5, 1), (4, 4, 4), (3, 9, 2), (9, 3, 3)):
        matrix = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
        squares = np.linalg.svd(matrix, compute_uv=False) ** 2
        share = cases.rank_one_share(matrix.ravel().tolist(), columns)
        assert share == pytest.approx(squares[0] / squares.sum(), rel=1e-12), (rows, columns)


def test_the_outlier_may_be_anywhere_and_negative():
    weights = [0.003 * (-1) ** at for at in range(12)]
    weights[6] = -0.5
    assert judged("qlora", WEIGHTS, cases.outlier_erases, outlier=weights) is None
    assert judged("qlora", WEIGHTS, cases.outlier_erases, outlier=[0.0, *weights[1:]])


def test_weights_on_levels_of_nf4_are_exact_at_any_scale():
    from course_pkg.acceleration.quantization.levels import nf4_levels

    weights = [3 * level for level in nf4_levels()[:12]]
    assert judged("qlora", WEIGHTS, cases.nothing_is_lost, exact=weights) is None
    assert judged("qlora", WEIGHTS, cases.nothing_is_lost, exact=np.linspace(-1, 1, 12).tolist())


def test_two_tiles_may_differ_either_way():
    inputs = {"memory": 1000, "d": 4, "gap": 0.45}
    low = [[[-30.0, -30.0], [0.0, 0.0]], [[1.0, 0.9], [0.0, 0.0]]]
    assert judged("flash", inputs, cases.average_is_wrong, average=low) is None
    large = [[[0.0, 0.0], [0.0, 1.0]], [[9.0, 0.0], [0.0, 0.0]]]
    assert judged("flash", inputs, cases.average_is_wrong, average=large)


def test_any_piece_of_the_right_length_is_precise_and_a_corpus_may_share_its_words_freely():
    words = REFERENCE["reference"]
    length = next(c for c in range(12, 0, -1) if math.exp(1 - 12 / c) <= 0.5)
    for piece in (words[:length], words[-length:]):
        assert judged("penalty", REFERENCE, cases.short_is_precise, short=piece) is None
    pair = [words[:3], ["word"] * 21]
    assert judged("penalty", REFERENCE, cases.corpus_makes_up, corpus=pair) is None
    assert judged("penalty", REFERENCE, cases.corpus_makes_up, corpus=pair[::-1])


def test_the_halves_may_be_cut_on_either_side_of_the_middle():
    words = list("abcdefg")
    for cut in (3, 4):
        moved = words[cut:] + words[:cut]
        assert judged("rouge", {"reference": words}, cases.blocks_are_lost, blocks=moved) is None


def test_what_is_no_list_of_words_is_refused_in_words():
    for value in ("a b", ["a", 1], ["a b"], ["a"] * 500, None, 3, [["a"]]):
        given = {"order": value, "gaps": value, "blocks": value}
        for check in (cases.order_is_lost, cases.gaps_are_free, cases.blocks_are_lost):
            assert "words" in judged("rouge", {"reference": list("abcdef")}, check, **given), value


def judged(question: str, inputs: dict, check, **given) -> str | None:
    expected = getattr(cases, f"{question}_expected")(inputs)
    return check(expected, as_plain(given))
