import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.rouge import rouge_l, rouge_n, rouge_s, rouge_su
from course_pkg.metrics.rouge import skip_bigrams as module
from course_pkg.metrics.rouge.skip_bigrams import (
    skip_bigram_matches,
    skip_bigram_total,
    skip_bigrams,
)

tokens = st.lists(st.sampled_from("abcd"), max_size=25)
gaps = st.one_of(st.none(), st.integers(0, 30))
POLICE = "police killed the gunman"


def by_listing(x, y, max_gap):
    def pairs(text):
        return Counter(
            (text[i], text[j])
            for i, j in combinations(range(len(text)), 2)
            if max_gap is None or j - i - 1 <= max_gap
        )

    return (pairs(x) & pairs(y)).total()


def test_the_skip_bigrams_of_a_sentence_by_hand():
    sentence = ["the", "cat", "sat", "on", "the", "mat"]
    all_pairs = skip_bigrams(sentence)
    assert len(all_pairs) == 15  # 6 · 5 / 2
    assert all_pairs.count(("the", "mat")) == 2
    assert all_pairs[:5] == [("the", word) for word in sentence[1:]]
    assert skip_bigrams(sentence, 0) == list(pairwise(sentence))
    assert skip_bigrams(sentence, 1)[:3] == [("the", "cat"), ("the", "sat"), ("cat", "sat")]
    assert ("the", "on") not in skip_bigrams(sentence, 1)  # two words between them


@given(st.integers(0, 40), gaps)
def test_the_total_is_the_length_of_the_list(length, max_gap):
    assert skip_bigram_total(length, max_gap) == len(skip_bigrams(range(length), max_gap))


@given(tokens, tokens, gaps)
def test_matches_equal_those_of_the_lists(x, y, max_gap):
    assert skip_bigram_matches(x, y, max_gap) == by_listing(x, y, max_gap)


def test_both_counting_algorithms_agree(subtests):
    for max_gap in (0, 7, 8, 9, 60, 298, 299, None):
        for letters in (3, 400):
            with subtests.test(max_gap=max_gap, letters=letters):
                rng = random.Random(letters)
                x, y = ([rng.randrange(letters) for _ in range(300)] for _ in "xy")
                assert skip_bigram_matches(x, y, max_gap) == by_listing(x, y, max_gap)


def test_another_gap_and_a_text_in_place_of_tokens_raise_an_error():
    for max_gap in (1.0, True):
        with pytest.raises(TypeError, match="max_gap must be an integer"):
            rouge_s("a b", "a b", max_gap=max_gap)
    with pytest.raises(ValueError, match="None sets no limit"):
        skip_bigrams(["a"], -1)
    with pytest.raises(TypeError, match="tokenize the text first"):
        skip_bigrams("the cat")


def test_the_papers_four_sentences_and_reversed_words():
    # Section 5: they share 3, 1 and 2 of the reference's 6 pairs.
    texts = "police kill the gunman", "the gunman kill police", "the gunman police killed"
    assert [rouge_s(text, POLICE).recall for text in texts] == [3 / 6, 1 / 6, 2 / 6]
    # By the LCS the last two are equally good, by bigrams the first two.
    assert [rouge_l(text, POLICE).recall for text in texts] == [3 / 4, 2 / 4, 2 / 4]
    assert [rouge_n(text, POLICE, 2).recall for text in texts[:2]] == [1 / 3, 1 / 3]
    backwards = "gunman the killed police"
    assert rouge_s(backwards, POLICE).fmeasure == 0
    # Each text has 6 pairs and 4 words; the 4 words match.
    assert rouge_su(backwards, POLICE).recall == 4 / 10
    short = rouge_s("police killed", POLICE)
    assert (short.precision, short.recall) == (1, 1 / 6)
    short = rouge_su("police killed", POLICE)
    assert (short.precision, short.recall) == (1, 3 / 10)


def test_the_perl_tool_leaves_out_the_last_word():
    # Words except the last: "gunman the killed" / "police killed the"; 2 of 6 + 3 units match.
    score = rouge_su("gunman the killed police", POLICE, mode="rouge155")
    assert (score.overlaps[0].matches, score.overlaps[0].reference) == (2, 9)
    assert score.recall == 0.22222
    assert rouge_su("word", "word", mode="rouge155").fmeasure == 0  # nothing is left to count
    assert rouge_su("word", "word").fmeasure == 1


def test_too_many_skip_bigrams_raise_an_error_that_says_how_to_fix_it(monkeypatch):
    monkeypatch.setattr(module, "_MOST_CELLS", 1000)
    x = list(range(100))
    assert skip_bigram_matches(x, x, 4) == skip_bigram_total(100, 4)
    with pytest.raises(ValueError, match="set max_gap"):
        skip_bigram_matches(x, x)
