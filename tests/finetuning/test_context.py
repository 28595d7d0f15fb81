"""Which turns remain when a conversation is longer than the context."""

import pytest

from course_pkg.finetuning.context import keep_recent, prompt_tokens
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import chat_text
from course_pkg.finetuning.templates import BARE, with_template
from course_pkg.lm.tiny import tiny_tokenizer

SYSTEM = Message("system", "Be brief.")
CHAT = [
    *(Message("user", "one"), Message("assistant", "1")),
    *(Message("user", "two"), Message("assistant", "2")),
    Message("user", "three"),
]


@pytest.fixture(scope="module")
def bare():
    """A tokenizer whose template writes texts alone: bytes can be counted by hand."""
    return with_template(tiny_tokenizer(), BARE)


def test_the_tokens_of_a_prompt_by_hand(bare):
    # one\n, 1 and the end token and \n, two\n, 2 and the end token and \n, three\n
    assert prompt_tokens(CHAT, bare) == 4 + 3 + 4 + 3 + 6


@pytest.mark.parametrize(("limit", "kept"), [(20, 5), (19, 3), (13, 3), (12, 1), (6, 1)])
def test_the_oldest_exchanges_go_first_and_as_a_whole(bare, limit, kept):
    assert keep_recent(CHAT, bare, limit) == tuple(CHAT[-kept:])


@pytest.mark.parametrize(("limit", "kept"), [(30, 5), (29, 3), (16, 1)])
def test_the_system_turn_always_stays(bare, limit, kept):
    assert keep_recent([SYSTEM, *CHAT], bare, limit) == (SYSTEM, *CHAT[-kept:])


def test_what_remains_is_rendered_within_the_limit():
    tokenizer = tiny_tokenizer()
    for limit in range(60, 160, 7):
        kept = keep_recent([SYSTEM, *CHAT], tokenizer, limit)
        text = chat_text(kept, tokenizer, generation_prompt=True)
        assert len(tokenizer(text).input_ids) <= limit


def test_a_question_that_does_not_fit_is_an_error_with_both_numbers(bare):
    with pytest.raises(ValueError, match="need 6 tokens, the limit is 5; raise the limit"):
        keep_recent(CHAT, bare, 5)


def test_messages_must_end_with_a_question(bare):
    with pytest.raises(ValueError, match="end with a user turn, got assistant"):
        keep_recent(CHAT[:2], bare, 99)
    with pytest.raises(ValueError, match="end with a user turn, got no message"):
        keep_recent([], bare, 99)
    with pytest.raises(ValueError, match="limit"):
        keep_recent(CHAT, bare, 0)
