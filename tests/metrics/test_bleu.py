from fractions import Fraction

import pytest

from course_pkg.metrics.bleu import PreparedReferences, bleu_from_counts, corpus_bleu, sentence_bleu
from tests.refusals import require_refusals


def test_two_references_under_13a_have_the_period_as_a_token():
    references = ["There is a cat on the mat.", "The cat sits on the mat."]
    score = corpus_bleu(["The cat is on the mat."], [references])
    assert (score.matches, score.totals) == ((7, 4, 2, 1), (7, 6, 5, 4))
    assert (score.hypothesis_length, score.reference_length) == (7, 7)  # 7 is closer than 8
    product = Fraction(4, 6) * Fraction(2, 5) * Fraction(1, 4)
    assert score.score == pytest.approx(float(product) ** 0.25)
    assert round(100 * score.score, 1) == 50.8


def test_prepared_references_score_many_systems_and_count_each_sentence():
    references = [["the cat sat on the mat"], ["it rains", "rain falls today"]]
    prepared = PreparedReferences(references)
    for system in (["the cat sat on a mat", "it rains"], ["a cat", "rain"]):
        assert prepared.score(system) == corpus_bleu(system, references)
        assert len(prepared.counts(system)) == 2
    assert prepared.counts(["the cat", "rain falls"])[1] == [2, 2, 2, 1, 0, 0, 2, 1, 0, 0]


def test_a_corpus_in_the_wrong_form_raises_an_error_that_says_how_to_fix_it():
    require_refusals(
        (["a b", "c"], ["a b", "c"], "references.0. must be a list.*give one list of references"),
        ("a", [["a"]], "TypeError: hypotheses must be a list, got 'a'"),
        (["a", "b", "c"], [["a", "b", "c"]], "3 hypotheses, but references for 1; .*sacrebleu"),
        (["a"], [["a", None]], r"TypeError: references\[0\].*got None"),
        ([["a", "b"]], [["a b"]], r"TypeError: hypotheses\[0\].*string"),
        (["a", "b"], [["a"], []], r"references\[1\] is empty"),
        ([], [["a"]], "hypotheses is empty"),
        of=corpus_bleu,
        errors=(TypeError, ValueError),
    )


def test_an_invalid_option_raises_an_error():
    require_refusals(
        ({"smoothing": "laplace"}, "one of none, floor, add-k, exp, got 'laplace'"),
        ({"smooth_value": 0.1}, "not used with smoothing 'exp', got 0.1"),
        ({"smoothing": "floor", "smooth_value": -1}, "at least 0"),
        ({"smoothing": "floor", "smooth_value": 1.5}, "at most 1"),
        ({"smoothing": "add-k", "smooth_value": float("nan")}, "at least 0"),
        ({"tokenize": "moses"}, "tokenizer must be one of 13a, .*, got 'moses'"),
        ({"max_order": 0}, "max_order must be an integer of at least 1"),
        of=lambda options: corpus_bleu(["a"], [["a"]], **options),
    )


def test_impossible_counts_raise_an_error():
    require_refusals(
        (([1, 2], [3], 4, 4), "one count per order, got"),
        (([5], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
        (([float("nan")], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
        (([1], [2], -2, 2), "lengths must be at least 0"),
        of=lambda counts: bleu_from_counts(*counts),
    )


def test_sentence_bleu_needs_a_string_and_a_list_of_strings():
    with pytest.raises(TypeError, match="references must be a list, got 'a b'"):
        sentence_bleu("a b", "a b")
    with pytest.raises(TypeError, match="hypothesis must be a string"):
        sentence_bleu(["a", "b"], ["a b"])
