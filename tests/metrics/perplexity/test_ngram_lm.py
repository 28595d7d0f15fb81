import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.perplexity import END, START, UNKNOWN, NGramModel
from tests.refusals import require_refusals

CORPUS = [["the", "cat", "sat"], ["the", "dog", "sat"], ["the", "cat", "ran", "home"]]
SMOOTHINGS = ("none", "add-k", "kneser-ney")
sentences = st.lists(st.lists(st.sampled_from("abcd"), max_size=6), min_size=1, max_size=6).filter(
    any
)


@given(sentences, st.integers(1, 4), st.sampled_from(["add-k", "kneser-ney"]), st.data())
def test_after_any_history_the_probabilities_sum_to_one(corpus, order, smoothing, data):
    model = NGramModel(corpus, order, smoothing=smoothing)
    history = data.draw(st.lists(st.sampled_from("abcdz"), max_size=5))
    probabilities = [model.probability(token, history) for token in model.vocabulary]
    assert sum(probabilities) == pytest.approx(1, rel=1e-12)
    assert min(probabilities) > 0


def test_a_bigram_model_by_hand():
    model = NGramModel(CORPUS, 2, smoothing="none")
    assert model.probability("cat", ["the"]) == 2 / 3
    assert model.probability("sat", ["any", "thing", "cat"]) == 1 / 2
    assert model.probability(END, ["sat"]) == 1
    # p(the | <s>) p(dog | the) p(sat | dog) p(</s> | sat)
    result = model.score([["the", "dog", "sat"]])
    assert math.exp(-result.nll) == pytest.approx(1 * (1 / 3) * 1 * 1, rel=1e-12)
    assert result.tokens == 4
    assert result.bits_per_token == pytest.approx(math.log2(3) / 4, rel=1e-12)
    assert model.score([["the", "dog", "sat"]] * 2).nll == pytest.approx(2 * result.nll, rel=1e-12)


def test_add_k_by_hand():
    model = NGramModel(CORPUS, 2, smoothing="add-k", k=0.5)
    size = len({"the", "cat", "sat", "dog", "ran", "home", END, UNKNOWN})
    assert len(model.vocabulary) == size
    assert model.probability("cat", ["the"]) == (2 + 0.5) / (3 + 0.5 * size)
    assert model.probability("fish", ["the"]) == 0.5 / (3 + 0.5 * size)
    assert model.probability("cat", ["fish"]) == pytest.approx(1 / size, rel=1e-12)


def test_kneser_ney_by_hand():
    model = NGramModel(CORPUS, 2, smoothing="kneser-ney", discount=0.75)
    # There are 9 different bigrams. One word precedes "cat", two precede "sat". The vocabulary has
    # 6 words, the end and <unk>.
    kinds = {tuple(pair) for s in CORPUS for pair in zip([START, *s], [*s, END], strict=True)}
    ends = {pair[1] for pair in kinds}
    spread = 0.75 * len(ends) / len(kinds) / len(model.vocabulary)
    cat = (1 - 0.75) / len(kinds) + spread
    sat = (2 - 0.75) / len(kinds) + spread
    assert model.probability("cat", ["fish"]) == pytest.approx(cat, rel=1e-12)
    assert model.probability("sat", ["fish"]) == pytest.approx(sat, rel=1e-12)
    # After "the" (3 times, followed by 2 different words): the discounted count and a share of the
    # lower order.
    assert model.probability("cat", ["the"]) == pytest.approx(
        (2 - 0.75) / 3 + 0.75 * 2 / 3 * cat, rel=1e-12
    )


def test_kneser_ney_counts_occurrences_where_a_sentence_begins():
    corpus = [["a", "x"]] * 9 + [["b", "x"]]
    model = NGramModel(corpus, 3)
    # At the lower order, too, the counts are 9 and 1: "a" begins 9 of 10 sentences.
    assert model.probability("a") > 5 * model.probability("b")
    assert model._counts[2][(START,)] == {"a": 9, "b": 1}


def test_unseen_tokens_are_impossible_without_smoothing_and_one_gram_ignores_the_history():
    model = NGramModel(CORPUS, 2, smoothing="none")
    assert model.score([["the", "home"]]).perplexity == math.inf
    assert model.log_probs(["fish"])[0] == -math.inf
    for smoothing in ("add-k", "kneser-ney"):
        assert math.isfinite(NGramModel(CORPUS, 2, smoothing=smoothing).score([["fish"]]).nll)
    for smoothing in SMOOTHINGS:
        model = NGramModel(CORPUS, 1, smoothing=smoothing)
        assert model.probability("cat", ["the"]) == model.probability("cat") > 0
        assert model.log_probs([]) == [math.log(model.probability(END))]


def test_a_larger_vocabulary_contains_its_words_and_lowers_the_others(subtests):
    for smoothing in ("add-k", "kneser-ney"):
        with subtests.test(smoothing=smoothing):
            small = NGramModel(CORPUS, 2, smoothing=smoothing)
            large = NGramModel(CORPUS, 2, smoothing=smoothing, vocabulary=["fish", "bird", "cat"])
            assert large.vocabulary == small.vocabulary | {"fish", "bird"}
            assert large.probability("cat", ["the"]) < small.probability("cat", ["the"])
            assert large.probability("fish", ["the"]) == large.probability(UNKNOWN, ["the"])
            total = sum(large.probability(token, ["the"]) for token in large.vocabulary)
            assert total == pytest.approx(1, rel=1e-12)


def test_invalid_arguments_raise_an_error():
    reserved = "TypeError.*must be a string other than <s>"
    bigrams = NGramModel(CORPUS, 2)
    require_refusals(
        (lambda: NGramModel(CORPUS, 0), "order must be"),
        (lambda: NGramModel(CORPUS, 2, smoothing="laplace"), "smoothing must be"),
        (lambda: NGramModel(CORPUS, 2, k=0), "k must be above 0"),
        (lambda: NGramModel(CORPUS, 2, discount=1), "discount must be above 0 and below 1"),
        (lambda: NGramModel([], 2), "no token to learn from"),
        (lambda: NGramModel([[]], 2), "no token to learn from"),
        (lambda: NGramModel(["the cat sat"], 2), "TypeError: a sentence must be a list.*split"),
        (lambda: NGramModel([["a", 7]], 2), reserved),
        (lambda: bigrams.log_probs([START]), reserved),
        (lambda: bigrams.probability("cat", "the cat"), "TypeError: history must be a list, got"),
        errors=(TypeError, ValueError),
    )
