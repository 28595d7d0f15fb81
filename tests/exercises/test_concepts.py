"""`concepts`: what counts is what an example does; none of its statements can be guessed."""

import math

import numpy as np
import pytest

from course_pkg.grading.checks.concepts import cases
from course_pkg.grading.checks.concepts.numbers import rank_one_share
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.plain_values import as_plain
from tests.exercises.assignments import points_lost

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


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 1e9, "1", None])
def test_a_matrix_of_zeros_or_of_anything_but_moderate_numbers_is_no_change(value):
    rows = [[value] * 6 for _ in range(4)]
    assert judged("lora", LAYER, cases.change_is_hard, hard=rows)
    assert judged("lora", LAYER, cases.change_is_easy, easy=rows)


@pytest.mark.parametrize("shape", [(1, 5), (4, 4), (3, 9), (9, 3)])
def test_the_share_of_rank_one_is_that_of_the_singular_values(shape):
    rng = np.random.default_rng(0)
    for rank in range(1, min(shape) + 1):
        matrix = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
        squares = np.linalg.svd(matrix, compute_uv=False) ** 2
        share = rank_one_share(matrix.ravel().tolist(), shape[1])
        assert share == pytest.approx(squares[0] / squares.sum(), rel=1e-12)


def test_the_outlier_may_be_anywhere_and_negative():
    weights = [0.003 * (-1) ** at for at in range(12)]
    weights[6] = -0.5
    assert judged("qlora", WEIGHTS, cases.outlier_erases, outlier=weights) is None
    assert judged("qlora", WEIGHTS, cases.outlier_erases, outlier=[0.0, *weights[1:]])


def test_weights_on_levels_of_nf4_are_exact_at_any_scale():
    from course_pkg.quantization.levels import nf4_levels

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


@pytest.mark.parametrize("value", ["a b", ["a", 1], ["a b"], ["a"] * 500, None, 3, [["a"]]])
def test_what_is_no_list_of_words_is_refused_in_words(value):
    given = {"order": value, "gaps": value, "blocks": value}
    for check in (cases.order_is_lost, cases.gaps_are_free, cases.blocks_are_lost):
        assert "words" in judged("rouge", {"reference": list("abcdef")}, check, **given)


def test_a_missing_example_loses_its_own_point_alone():
    answers = answer_key("concepts")
    for question in answers.assignment.questions.values():
        whole = answers.answer(question, None)

        def partial(*inputs, whole=whole, last=question.properties[-1].name):
            return {name: each for name, each in whole(*inputs).items() if name != last}

        assert points_lost("concepts", question.name, whole) == 0
        assert points_lost("concepts", question.name, partial) == 1
        assert points_lost("concepts", question.name, lambda *_: {}) == 3


def judged(question: str, inputs: dict, check, **given) -> str | None:
    """What a check says about examples, as plain values, for these inputs."""
    expected = getattr(cases, f"{question}_expected")(inputs)
    return check(expected, as_plain(given))
