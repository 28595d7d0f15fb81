"""Pairs of sentences: the data, scores by a model, and shares as two other programs count."""

import math

import numpy as np
import pytest
import torch

from course_pkg.evaluation.statistics import mean_interval
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.studies.safety.sentence_pairs import (
    WORDINGS,
    SentencePair,
    SentenceScore,
    direction_gap,
    load_contrasts,
    score_pairs,
    sentence_pairs,
    shared_positions,
    stereotype_share,
)
from tests.evaluation.test_generation import sharpened
from tests.refusals import require_refusals

GROUPS = [group for group in range(12) for _ in range(6)]
DIRECTIONS = [0, 0, 0, 1, 1, 1] * 12


def noise(seed=0):
    return np.random.default_rng(seed).normal(size=72)


def test_share_difference_and_interval_are_those_of_lm_eval_and_wilson():
    """pct_stereotype: mean of (first > second); likelihood_diff: mean of |first - second|."""
    values = [2.0, -1.0, 0.0, 3.0, -0.5]
    result = stereotype_share(values, "abcde")
    assert result.share.estimate == 2 / 5 and result.ties == 1 and result.pairs == 5
    assert result.likelihood_diff == pytest.approx(6.5 / 5)
    assert result.mean_difference.estimate == pytest.approx(3.5 / 5)
    preferred = (noise() > 0).astype(int).tolist()
    assert stereotype_share(noise(), GROUPS).share == mean_interval(preferred, GROUPS)


def test_a_word_s_own_pull_shows_in_the_gap_and_an_association_in_the_share():
    pull = np.where(np.array(DIRECTIONS) == 0, 5.0, -5.0)  # the first word is always preferred
    result = stereotype_share(noise() + pull, GROUPS)
    assert result.share.estimate == 0.5
    assert result.mean_difference.estimate == pytest.approx(noise().mean())  # the pull cancels
    assert direction_gap(noise() + pull, DIRECTIONS, GROUPS).estimate == 1
    result = stereotype_share(noise() + 5, GROUPS)
    assert result.share.estimate == 1
    assert direction_gap(noise() + 5, DIRECTIONS, GROUPS).estimate == 0


def test_bad_input_is_one_clear_error(causal):
    require_refusals(
        (lambda: stereotype_share([1.0, float("nan")], "ab"), "differences"),
        (lambda: stereotype_share([1.0, 2.0], "ab"), "independent items or groups"),
        (lambda: direction_gap([1.0] * 5, [0, 1, 2, 0, 1], "abcde"), "directions must be 0 or 1"),
        (lambda: direction_gap([1.0] * 5, [0, 1, 0, 0, 1], "abcde"), "pairs of both directions"),
        (lambda: score_pairs(*causal, []), "pairs is empty"),
        (lambda: sentence_pairs([], "loud"), "wording must be one of plain"),
        (lambda: load_contrasts("people"), "kind must be one of association, invented"),
        (lambda: score_pairs(*causal, PAIRS[:1])[0].difference("mean"), "way must be one of"),
    )


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
