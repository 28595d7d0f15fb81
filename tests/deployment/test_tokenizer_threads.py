"""Texts to token ids: how few tokens a text can have."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.deployment.tokenizer_threads import TokenBound
from course_pkg.lm.load import load
from tests.serving.sentence_piece import SPACE, sentence_piece_tokenizer

PARTS = [*"ab é中🌊\n\0=12", SPACE, "<|im_end|>", "</s>", "<unk>", "<0x41>", " a", "ab", "=" * 40]


@pytest.mark.parametrize(
    "tokenizer",
    [
        load("tiny").tokenizer,
        pytest.param("smollm2", marks=pytest.mark.model),
        sentence_piece_tokenizer(),
    ],
    ids=["bytes", "smollm2", "SentencePiece"],
)
def test_the_bound_of_tokens_is_never_above_their_number(tokenizer):
    tokenizer = load("smollm2-135m").tokenizer if tokenizer == "smollm2" else tokenizer
    bound = TokenBound(tokenizer)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=40).map("".join))
    def check(text):
        assert bound(text) <= len(tokenizer(text).input_ids)

    check()
    assert bound("a" * 10_000) >= 400


def test_the_bound_is_0_for_tokenizers_whose_tokens_may_cover_any_text():
    text = "中" * 999  # without tokens for its bytes, one <unk>
    assert (
        TokenBound(sentence_piece_tokenizer())(text) == 999
        and TokenBound(sentence_piece_tokenizer(byte_tokens=9))(text) == 0
    )
