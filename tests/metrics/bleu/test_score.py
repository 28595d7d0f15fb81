"""BLEU: cases worked by hand and properties; tests/parity compares it with sacrebleu."""

import math
import time
from dataclasses import FrozenInstanceError
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.bleu import PreparedReferences, bleu_from_counts, corpus_bleu, sentence_bleu

WORDS = st.lists(st.sampled_from(["a", "b", "c", "the", "cat", "."]), max_size=10).map(" ".join)
PAIRS = st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=3)), min_size=1, max_size=5)
SMOOTHINGS = st.sampled_from(["none", "floor", "add-k", "exp"])
D1 = (
    ["The cat is on the mat."],
    [["There is a cat on the mat.", "The cat sits on the mat."]],
)


def split(pairs):
    return [one for one, _ in pairs], [group for _, group in pairs]


def test_case_1_by_hand_matches_one_trigram_and_has_no_penalty():
    score = corpus_bleu(["the cat the cat on the mat"], [["the cat is on the mat"]])
    assert (score.matches, score.totals) == ((5, 3, 1, 0), (7, 6, 5, 4))
    assert (score.hypothesis_length, score.reference_length, score.brevity_penalty) == (7, 6, 1)
    # No 4-gram matches, which counts as half a match out of 4.
    product = Fraction(5, 7) * Fraction(3, 6) * Fraction(1, 5) * Fraction(1, 8)
    assert score.score == pytest.approx(float(product) ** 0.25)
    plain = corpus_bleu(
        ["the cat the cat on the mat"], [["the cat is on the mat"]], smoothing="none"
    )
    assert plain.score == 0.0
    assert plain.precisions == pytest.approx((5 / 7, 3 / 6, 1 / 5, 0))


def test_case_3_by_hand_matches_only_unigrams():
    score = corpus_bleu(["a cat sits on mat"], [["the cat is sitting on the mat"]])
    assert (score.matches, score.totals) == ((3, 0, 0, 0), (5, 4, 3, 2))
    assert score.brevity_penalty == pytest.approx(math.exp(1 - 7 / 5))
    product = Fraction(3, 5) * Fraction(1, 8) * Fraction(1, 12) * Fraction(1, 16)
    assert score.score == pytest.approx(math.exp(-0.4) * float(product) ** 0.25)


def test_two_references_under_13a_have_the_period_as_a_token():
    score = corpus_bleu(*D1)
    assert (score.matches, score.totals) == ((7, 4, 2, 1), (7, 6, 5, 4))
    assert (score.hypothesis_length, score.reference_length) == (7, 7)  # 7 is closer than 8
    product = Fraction(4, 6) * Fraction(2, 5) * Fraction(1, 4)
    assert score.score == pytest.approx(float(product) ** 0.25)
    assert round(100 * score.score, 1) == 50.8


def test_two_references_score_zero_with_the_period_attached_or_removed():
    attached = corpus_bleu(*D1, tokenize="whitespace", smoothing="none")
    assert attached.matches == (6, 3, 1, 0)
    assert attached.score == 0.0
    bare = [text.rstrip(".") for text in D1[0]], [[text.rstrip(".") for text in D1[1][0]]]
    removed = corpus_bleu(*bare, smoothing="none")
    assert removed.matches == (6, 3, 1, 0)
    assert removed.score == 0.0


@pytest.mark.parametrize(
    "lengths, hypothesis, closest",
    [((3, 7), 5, 3), ((7, 3), 5, 3), ((2, 6), 5, 6), ((4,), 9, 4), ((0, 9), 5, 9), ((0, 9), 4, 0)],
)
def test_the_reference_length_is_the_closest_or_the_shorter_of_two(lengths, hypothesis, closest):
    references = [["x " * length for length in lengths]]
    assert corpus_bleu(["x " * hypothesis], references).reference_length == closest


def test_lengths_are_summed_before_the_penalty():
    # One text is too long, one too short; together they have the right length.
    score = corpus_bleu(["a b c d e f", "a b"], [["a b c d"], ["a b c d"]])
    assert (score.hypothesis_length, score.reference_length, score.brevity_penalty) == (8, 8, 1)


def test_a_corpus_score_is_not_the_mean_of_its_sentences():
    hypotheses = ["a b c d e f g h", "x y a b"]
    references = [["a b c d e f g h"], ["x z a c"]]
    sentences = [sentence_bleu(*pair).score for pair in zip(hypotheses, references, strict=True)]
    assert corpus_bleu(hypotheses, references).score != pytest.approx(sum(sentences) / 2, abs=0.05)


@pytest.mark.parametrize("smoothing", ["none", "floor", "add-k", "exp"])
@pytest.mark.parametrize("effective", [True, False])
def test_no_overlap_scores_exactly_zero_with_every_smoothing(smoothing, effective):
    score = corpus_bleu(
        ["a b c d e"], [["v w x y z"]], smoothing=smoothing, effective_order=effective
    )
    assert score.score == 0.0
    assert score.precisions == (0, 0, 0, 0)


def test_each_smoothing_by_hand():
    counts = (3, 1, 0, 0), (5, 4, 3, 2), 5, 5
    expected = {
        "exp": (3 / 5, 1 / 4, 1 / 2 / 3, 1 / 4 / 2),
        "floor": (3 / 5, 1 / 4, 0.1 / 3, 0.1 / 2),
        "add-k": (3 / 5, 2 / 5, 1 / 4, 1 / 3),
    }
    for smoothing, precisions in expected.items():
        score = bleu_from_counts(*counts, smoothing=smoothing)
        assert score.precisions == pytest.approx(precisions)
        assert score.score == pytest.approx(math.prod(precisions) ** 0.25)
        assert (score.matches, score.totals) == counts[:2]
    assert bleu_from_counts(*counts, smoothing="none").score == 0
    half = bleu_from_counts(*counts, smoothing="add-k", smooth_value=0.5)
    assert half.precisions == pytest.approx((3 / 5, 1.5 / 4.5, 0.5 / 3.5, 0.5 / 2.5))


def test_effective_order_leaves_out_orders_that_a_short_text_cannot_have():
    assert sentence_bleu("a cat", ["a cat"]).score == 1.0
    assert sentence_bleu("a cat", ["a cat"], effective_order=False).score == 0.0
    assert corpus_bleu(["a cat"], [["a cat"]]).score == 0.0


@pytest.mark.parametrize("effective", [True, False])
def test_an_empty_hypothesis_scores_zero(effective):
    score = corpus_bleu([""], [["a b"]], effective_order=effective)
    assert (score.score, score.brevity_penalty, score.totals) == (0.0, 0.0, (0, 0, 0, 0))
    assert corpus_bleu([""], [[""]], effective_order=effective).score == 0.0
    assert corpus_bleu(["a b c d"], [[""]], effective_order=effective).score == 0.0


@given(PAIRS, SMOOTHINGS, st.booleans())
def test_all_values_are_between_zero_and_one(pairs, smoothing, effective):
    score = corpus_bleu(*split(pairs), smoothing=smoothing, effective_order=effective)
    values = (score.score, score.brevity_penalty, *score.precisions)
    assert all(0 <= value <= 1 for value in values)
    assert all(0 <= m <= t for m, t in zip(score.matches, score.totals, strict=True))


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


@given(PAIRS, WORDS)
def test_another_reference_never_removes_a_match(pairs, extra):
    hypotheses, references = split(pairs)
    before = corpus_bleu(hypotheses, references).matches
    after = corpus_bleu(hypotheses, [[*group, extra] for group in references]).matches
    assert all(new >= old for new, old in zip(after, before, strict=True))


@given(PAIRS, SMOOTHINGS)
def test_repeating_a_corpus_changes_the_score_only_through_smoothing(pairs, smoothing):
    hypotheses, references = split(pairs)
    once = corpus_bleu(hypotheses, references, smoothing=smoothing)
    twice = corpus_bleu(hypotheses * 2, references * 2, smoothing=smoothing)
    assert twice.matches == tuple(2 * match for match in once.matches)
    if smoothing == "none" or (all(once.matches) and smoothing != "add-k"):
        assert twice.score == pytest.approx(once.score)


def test_lowercase_and_tokenizer_change_the_matches():
    texts = ["The CAT sat ."], [["the cat sat."]]
    assert corpus_bleu(*texts).matches == (2, 1, 0, 0)
    assert corpus_bleu(*texts, lowercase=True).score == 1.0
    assert corpus_bleu(*texts, lowercase=True, tokenize="whitespace").matches == (2, 1, 0, 0)
    assert corpus_bleu(["猫坐在垫子上"], [["猫躺在垫子上"]]).matches[0] == 0
    assert corpus_bleu(["猫坐在垫子上"], [["猫躺在垫子上"]], tokenize="zh").matches == (5, 3, 2, 1)


def test_prepared_references_score_many_systems_and_count_each_sentence():
    references = [["the cat sat on the mat"], ["it rains", "rain falls today"]]
    prepared = PreparedReferences(references)
    for system in (["the cat sat on a mat", "it rains"], ["a cat", "rain"]):
        assert prepared.score(system) == corpus_bleu(system, references)
        assert len(prepared.counts(system)) == 2
    assert prepared.counts(["the cat", "rain falls"])[1] == [2, 2, 2, 1, 0, 0, 2, 1, 0, 0]


def test_a_result_cannot_be_changed():
    score = sentence_bleu("a", ["a"])
    with pytest.raises(FrozenInstanceError):
        score.score = 1.0


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
    "references as a string": ((["a"], "a"), TypeError, "references must be a list"),
    "hypotheses as a string": (("a", [["a"]]), TypeError, "hypotheses must be a list, got 'a'"),
    "hypotheses as a generator": (((t for t in "a"), [["a"]]), TypeError, "must be a list"),
    "sacrebleu's layout": (
        (["a", "b", "c"], [["a", "b", "c"]]),
        ValueError,
        "3 hypotheses, but references for 1; .*sacrebleu",
    ),
    "more references": ((["a"], [["a"], ["b"]]), ValueError, "1 hypotheses, but references for 2"),
    "a number as hypothesis": (([3], [["a"]]), TypeError, r"hypotheses\[0\].*got 3"),
    "None as reference": ((["a"], [["a", None]]), TypeError, r"references\[0\].*got None"),
    "tokens as hypothesis": (([["a", "b"]], [["a b"]]), TypeError, r"hypotheses\[0\].*string"),
    "no reference for one": ((["a", "b"], [["a"], []]), ValueError, r"references\[1\] is empty"),
    "an empty corpus": (([], []), ValueError, "references is empty"),
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
        (([], [], 4, 4), "one count per order, got"),
        (([5], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
        (([-1], [3], 4, 4), "from 0 to all of its n-grams matched, got"),
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
