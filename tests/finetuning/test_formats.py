"""Prompts and conversations come from the chat template, and are shortened to a context."""

import pytest

from course_pkg.finetuning.conversations import Message, RecordError
from course_pkg.finetuning.formats import (
    ALPACA,
    BARE,
    ChatTemplateError,
    chat_prompt,
    chat_text,
    keep_recent,
    prompt_tokens,
    with_template,
)
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.lm.tiny import tiny_tokenizer
from tests.refusals import require_refusals
from tests.tables import each_row

from .templates import NO_SYSTEM, chat, learned, tokenizer_with

TURNS = chat("Hi", "Yo", "Bye", "So long")
END = "<|im_end|>"
HEAD = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
)
EXPECTED = {
    ALPACA: (
        f"{HEAD}### Instruction:\nHi\n\n### Response:\nYo{END}\n\n"
        f"### Instruction:\nBye\n\n### Response:\nSo long{END}\n\n"
    ),
    BARE: f"Hi\nYo{END}\nBye\nSo long{END}\n",
}
SYSTEM = Message("system", "Be brief.")
CHAT = [*chat("one", "1", "two", "2").messages, Message("user", "three")]


@pytest.fixture(scope="module")
def bare():
    """A tokenizer whose template writes texts alone: bytes can be counted by hand."""
    return with_template(tiny_tokenizer(), BARE)


def test_a_prompt_that_is_not_a_string_and_a_missing_or_blank_template_are_refused():
    with pytest.raises(TypeError, match="prompt must be a string, got None"):
        chat_prompt(None, tiny_tokenizer())
    with pytest.raises(ChatTemplateError, match="no chat template"):
        chat_prompt("Why?", tokenizer_with(None))
    with pytest.raises(ChatTemplateError, match="blank; give a Jinja text"):
        with_template(tiny_tokenizer(), " \n")


def test_a_system_turn_is_written_first():
    messages = chat("Hi", "Yo", system="Rhyme.").messages
    assert chat_text(messages[:2], tiny_tokenizer(), generation_prompt=True) == (
        "<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@each_row("template", [ALPACA, NO_SYSTEM])
def test_what_a_template_refuses_is_a_record_error(template):
    with pytest.raises(RecordError, match=r"refused by the template: .*no system turn"):
        messages = chat("Hi", "Yo", system="Rhyme.").messages
        chat_text(messages, with_template(tiny_tokenizer(), template))


@pytest.mark.model
def test_smollm2_writes_a_system_turn_of_its_own_where_there_is_none(smollm2):
    messages = chat("Hi", "Yo").messages
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    assert chat_text(messages, smollm2.tokenizer).startswith(default)
    own = chat_text(chat("Hi", "Yo", system="Rhyme.").messages, smollm2.tokenizer)
    assert own.startswith("<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nHi")


@each_row("template", EXPECTED)
def test_the_text_the_prompt_and_the_labels_of_each_template(template):
    tokenizer = with_template(tiny_tokenizer(), template)
    assert chat_text(TURNS.messages, tokenizer) == EXPECTED[template]
    prompt = chat_text(TURNS.messages[:3], tokenizer, generation_prompt=True)
    assert EXPECTED[template].startswith(prompt)
    example = tokenize_conversation(TURNS, tokenizer)
    assert "".join(learned(example, tokenizer)) == f"Yo{END}So long{END}"


def test_the_first_tokenizer_keeps_its_template():
    tokenizer = tiny_tokenizer()
    before = tokenizer.chat_template
    other = with_template(tokenizer, BARE)
    assert tokenizer.chat_template == before and other.chat_template == BARE
    assert other("Hi").input_ids == tokenizer("Hi").input_ids


def test_the_tokens_of_a_prompt_by_hand(bare):
    # one\n, 1 and the end token and \n, two\n, 2 and the end token and \n, three\n
    assert prompt_tokens(CHAT, bare) == 4 + 3 + 4 + 3 + 6


@each_row(("limit", "kept"), [(20, 5), (19, 3), (13, 3), (12, 1), (6, 1)])
def test_the_oldest_exchanges_go_first_and_as_a_whole(bare, limit, kept):
    assert keep_recent(CHAT, bare, limit) == tuple(CHAT[-kept:])


@each_row(("limit", "kept"), [(30, 5), (29, 3), (16, 1)])
def test_the_system_turn_always_stays(bare, limit, kept):
    assert keep_recent([SYSTEM, *CHAT], bare, limit) == (SYSTEM, *CHAT[-kept:])


def test_what_cannot_be_shortened_is_an_error(bare):
    require_refusals(
        (CHAT, bare, 5, "need 6 tokens, the limit is 5; raise the limit"),
        (CHAT[:2], bare, 99, "end with a user turn, got assistant"),
        ([], bare, 99, "end with a user turn, got no message"),
        (CHAT, bare, 0, "limit"),
        of=keep_recent,
    )
