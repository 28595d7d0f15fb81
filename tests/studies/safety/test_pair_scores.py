"""Pairs of sentences: the data, the shared tokens, and scores by causal and masked models."""

import math

import pytest
import torch

from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.studies.safety.sentence_pairs import (
    WORDINGS,
    SentencePair,
    SentenceScore,
    load_contrasts,
    score_pairs,
    sentence_pairs,
    shared_positions,
)
from tests.evaluation.test_generation import sharpened
from tests.refusals import require_refusals

PAIRS = sentence_pairs(load_contrasts("association")[:2])


@pytest.fixture(scope="module")
def causal():
    return sharpened(), tiny_tokenizer()


def test_sentences_of_a_pair_differ_only_in_the_words_of_the_contrast():
    for wording in WORDINGS:
        for contrast in load_contrasts("association"):
            for pair in sentence_pairs([contrast], wording):
                fits, other = contrast.words if pair.direction == 0 else contrast.words[::-1]
                texts = [pair.more, pair.less]
                for k, word in enumerate((fits, other)):
                    variants = (word, word[0].upper() + word[1:])
                    found = [text for text in variants if text in texts[k]]
                    assert found
                    texts[k] = texts[k].replace(found[-1], "_", 1)
                assert texts[0] == texts[1] and texts[0].count("_") == 1
                assert pair.more[0].isupper() and pair.more.endswith(".")


def test_shared_positions_and_the_three_totals_by_hand():
    assert shared_positions([1, 2, 2, 3], [1, 2, 9, 2, 3]) == [(0, 0), (1, 1), (2, 3), (3, 4)]
    assert shared_positions([1], [2]) == []
    frequent = [5, 6] * 200  # difflib's autojunk would drop them
    assert len(shared_positions([1, *frequent], [2, *frequent])) == 400
    score = SentenceScore(("a", "b", "c"), (-1.0, -2.0, -6.0), (True, False, True))
    assert [score.total(way) for way in ("sentence", "token", "shared")] == [-9, -3, -7]


def test_a_whole_sentence_has_the_log_probability_that_transformers_gives_it(causal):
    model, tokenizer = causal
    for score, pair in zip(score_pairs(model, tokenizer, PAIRS[:3]), PAIRS, strict=False):
        start = tokenizer.get_vocab()["<|endoftext|>"]
        ids = torch.tensor([[start, *tokenizer(pair.less).input_ids]])
        with torch.no_grad():
            loss = model(ids, labels=ids).loss.item()
        # fp32: tokens are scored in another order of sums
        assert score.less.total("token") == pytest.approx(-loss, abs=2e-4)


def test_shared_tokens_before_the_word_cancel_and_those_after_it_are_conditional(causal):
    pair = SentencePair("I like cats at home.", "I like goats at home.", 0, "x")
    [score] = score_pairs(*causal, [pair])
    text = "".join(t for t, both in zip(score.more.tokens, score.more.shared, strict=True) if both)
    assert text == "I like ats at home."  # bytes: also the end of the word is shared
    before = len("I like ")
    assert score.more.log_probs[:before] == pytest.approx(score.less.log_probs[:before], abs=2e-4)
    rest = [math.fsum(s.log_probs[-len(" at home.") :]) for s in (score.more, score.less)]
    assert score.more.total("shared") - score.less.total("shared") == pytest.approx(
        score.difference("shared"), abs=1e-3
    )
    ats = [math.fsum(s.log_probs[-len("ats at home.") : -9]) for s in (score.more, score.less)]
    assert score.difference("shared") == pytest.approx(
        rest[0] + ats[0] - rest[1] - ats[1], abs=1e-3
    )


def test_bad_pairs_are_one_clear_error(causal):
    require_refusals(
        (lambda: score_pairs(*causal, []), "pairs is empty"),
        (lambda: sentence_pairs([], "loud"), "wording must be one of plain"),
        (lambda: load_contrasts("people"), "kind must be one of association, invented"),
        (lambda: score_pairs(*causal, PAIRS[:1])[0].difference("mean"), "way must be one of"),
    )
