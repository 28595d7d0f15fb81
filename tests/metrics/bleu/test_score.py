"""BLEU: cases worked by hand and properties; tests/parity compares it with sacrebleu."""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.bleu import PreparedReferences, bleu_from_counts, corpus_bleu, sentence_bleu

WORDS = st.lists(st.sampled_from(["a", "b", "c", "the", "cat", "."]), max_size=10).map(" ".join)
PAIRS = st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=1, max_size=5)
SMOOTHINGS = st.sampled_from(["none", "floor", "add-k", "exp"])


def split(pairs):
    return [one for one, _ in pairs], [group for _, group in pairs]


def test_a_case_by_hand_matches_one_trigram_and_has_no_penalty():
    score = corpus_bleu(["the cat the cat on the mat"], [["the cat is on the mat"]])
    assert (score.matches, score.totals) == ((5, 3, 1, 0), (7, 6, 5, 4))
    assert (score.hypothesis_length, score.reference_length, score.brevity_penalty) == (7, 6, 1)
    # No 4-gram matches, which counts as half a match out of 4.
    product = Fraction(5, 7) * Fraction(3, 6) * Fraction(1, 5) * Fraction(1, 8)
    assert score.score == pytest.approx(float(product) ** 0.25)


def test_two_references_under_13a_have_the_period_as_a_token():
    references = ["There is a cat on the mat.", "The cat sits on the mat."]
    score = corpus_bleu(["The cat is on the mat."], [references])
    assert (score.matches, score.totals) == ((7, 4, 2, 1), (7, 6, 5, 4))
    assert (score.hypothesis_length, score.reference_length) == (7, 7)  # 7 is closer than 8
    product = Fraction(4, 6) * Fraction(2, 5) * Fraction(1, 4)
    assert score.score == pytest.approx(float(product) ** 0.25)
    assert round(100 * score.score, 1) == 50.8


@given(PAIRS, SMOOTHINGS, st.randoms(use_true_random=False))
def test_the_order_of_sentences_and_of_references_does_not_matter(pairs, smoothing, rng):
    shuffled = [(one, rng.sample(group, len(group))) for one, group in pairs]
    rng.shuffle(shuffled)
    assert corpus_bleu(*split(shuffled), smoothing=smoothing) == corpus_bleu(
        *split(pairs), smoothing=smoothing
    )


@given(PAIRS)
def test_a_text_that_equals_one_of_its_references_scores_one(pairs):
    pairs = [(group[0] + " a b c d", [text + " a b c d" for text in group]) for _, group in pairs]
    score = corpus_bleu(*split(pairs))
    assert (score.score, score.precisions) == (1.0, (1.0,) * 4)


def test_prepared_references_score_many_systems_and_count_each_sentence():
    references = [["the cat sat on the mat"], ["it rains", "rain falls today"]]
    prepared = PreparedReferences(references)
    for system in (["the cat sat on a mat", "it rains"], ["a cat", "rain"]):
        assert prepared.score(system) == corpus_bleu(system, references)
        assert len(prepared.counts(system)) == 2
    assert prepared.counts(["the cat", "rain falls"])[1] == [2, 2, 2, 1, 0, 0, 2, 1, 0, 0]


@pytest.mark.slow
def test_long_texts_take_linear_time():
    def seconds(length):
        text = " ".join(f"w{number % 997}" for number in range(length))
        other = " ".join(f"w{number % 991}" for number in range(length))
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            corpus_bleu([text], [[other]])
            best = min(best, time.process_time() - start)
        return best

    assert seconds(100_000) < 25 * seconds(10_000)  # ten times the text; quadratic time: 100


BAD = {
    "references as one flat list": (
        (["a b", "c"], ["a b", "c"]),
        TypeError,
        r"references\[0\] must be a list, got 'a b'; give one list of references per hypothesis",
    ),
    "hypotheses as a string": (("a", [["a"]]), TypeError, "hypotheses must be a list, got 'a'"),
    "sacrebleu's layout": (
        (["a", "b", "c"], [["a", "b", "c"]]),
        ValueError,
        "3 hypotheses, but references for 1; .*sacrebleu",
    ),
    "None as reference": ((["a"], [["a", None]]), TypeError, r"references\[0\].*got None"),
    "tokens as hypothesis": (([["a", "b"]], [["a b"]]), TypeError, r"hypotheses\[0\].*string"),
    "no reference for one": ((["a", "b"], [["a"], []]), ValueError, r"references\[1\] is empty"),
    "no hypotheses": (([], [["a"]]), ValueError, "hypotheses is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_corpus_in_the_wrong_form_raises_an_error_that_says_how_to_fix_it(case):
    arguments, error, message = BAD[case]
    with pytest.raises(error, match=message):
        corpus_bleu(*arguments)


OPTIONS = {
    "smoothing": ({"smoothing": "laplace"}, "one of none, floor, add-k, exp, got 'laplace'"),
    "a value for exp": ({"smooth_value": 0.1}, "not used with smoothing 'exp', got 0.1"),
    "a negative value": ({"smoothing": "floor", "smooth_value": -1}, "at least 0"),
    "a floor above a match": ({"smoothing": "floor", "smooth_value": 1.5}, "at most 1"),
    "not a number": ({"smoothing": "add-k", "smooth_value": float("nan")}, "at least 0"),
    "tokenizer": ({"tokenize": "moses"}, "tokenizer must be one of 13a, .*, got 'moses'"),
    "order": ({"max_order": 0}, "max_order must be an integer of at least 1"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_invalid_option_raises_an_error(case):
    options, message = OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        corpus_bleu(["a"], [["a"]], **options)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (([1, 2], [3], 4, 4), "one count per order, got"),
        (([5], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
        (([float("nan")], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
        (([1], [2], -2, 2), "lengths must be at least 0"),
    ],
)
def test_impossible_counts_raise_an_error(counts, message):
    with pytest.raises(ValueError, match=message):
        bleu_from_counts(*counts)


def test_sentence_bleu_needs_a_string_and_a_list_of_strings():
    with pytest.raises(TypeError, match="references must be a list, got 'a b'"):
        sentence_bleu("a b", "a b")
    with pytest.raises(TypeError, match="hypothesis must be a string"):
        sentence_bleu(["a", "b"], ["a b"])
