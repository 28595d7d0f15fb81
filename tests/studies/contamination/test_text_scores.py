"""Scores of texts by a model: what is scored, and that shared beginnings change nothing."""

import pytest

from course_pkg.studies.contamination.exchangeability import draw_orders
from course_pkg.studies.contamination.text_scores import (
    code_log_probs,
    order_log_probs,
    text_log_probs,
)
from tests.studies.plain_pass import log_prob


def test_all_tokens_but_the_first_are_scored(tiny):
    texts = ["a first text", "another"]
    found = text_log_probs(*tiny, texts)
    for text, values in zip(texts, found, strict=True):
        assert sum(values) == pytest.approx(log_prob(*tiny, "", text), abs=1e-3)
    with pytest.raises(ValueError, match="at least two"):
        text_log_probs(*tiny, ["fine", "a"])


def test_each_shard_has_its_given_order_first(tiny):
    shards = [["one", "two", "six"], ["red", "blue", "green"]]
    rows = order_log_probs(*tiny, shards, others=2, seed=5)
    for number, (shard, row) in enumerate(zip(shards, rows, strict=True)):
        orders = draw_orders(3, 2, seed=5000 + number)
        texts = ["\n\n".join(shard[place] for place in order) for order in orders]
        assert row == pytest.approx([log_prob(*tiny, "", text) for text in texts], abs=1e-3)


def test_codes_are_scored_after_the_prefix(tiny):
    codes = ["10", "11", "29"]
    found = code_log_probs(*tiny, "The code is ", codes)
    expected = [log_prob(*tiny, "The code is ", code) for code in codes]
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_prefix_that_merges_with_the_code_is_an_error(tiny):
    class Merging:
        """A tokenizer of whole words."""

        def __call__(self, texts, **_):
            ids = [[hash(word) % 100 for word in text.split(" ")] for text in texts]
            return type("Encoded", (), {"input_ids": ids})

    with pytest.raises(ValueError, match="share a token"):
        code_log_probs(tiny.model, Merging(), "a code", ["12"])
