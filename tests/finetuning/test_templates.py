"""The templates as text, and where they put the labels."""

import pytest

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.formats import ChatTemplateError, chat_text
from course_pkg.finetuning.masking import IGNORE_INDEX, tokenize_conversation
from course_pkg.finetuning.problems import RecordError
from course_pkg.finetuning.templates import ALPACA, BARE, USER_ASSISTANT, with_template
from course_pkg.lm.tiny import tiny_tokenizer

TURNS = (
    *(Message("user", "Hi"), Message("assistant", "Yo")),
    *(Message("user", "Bye"), Message("assistant", "So long")),
)
HEAD = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
)
END = "<|im_end|>"
EXPECTED = {
    "alpaca": (
        ALPACA,
        f"{HEAD}### Instruction:\nHi\n\n### Response:\nYo{END}\n\n"
        f"### Instruction:\nBye\n\n### Response:\nSo long{END}\n\n",
        f"Yo{END}So long{END}",
    ),
    "user-assistant": (
        USER_ASSISTANT,
        f"User: Hi\nAssistant: Yo{END}\nUser: Bye\nAssistant: So long{END}\n",
        f" Yo{END} So long{END}",
    ),
    "bare": (BARE, f"Hi\nYo{END}\nBye\nSo long{END}\n", f"Yo{END}So long{END}"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_text_and_the_labels_of_each_template(name):
    template, text, learned = EXPECTED[name]
    tokenizer = with_template(tiny_tokenizer(), template)
    assert chat_text(TURNS, tokenizer) == text
    labels = tokenize_conversation(Conversation(TURNS), tokenizer).labels
    assert tokenizer.decode([label for label in labels if label != IGNORE_INDEX]) == learned


def test_the_prompt_is_the_start_of_the_whole_text():
    for template, text, _ in EXPECTED.values():
        tokenizer = with_template(tiny_tokenizer(), template)
        assert text.startswith(chat_text(TURNS[:3], tokenizer, generation_prompt=True))


def test_alpaca_refuses_a_system_turn_and_the_labels_in_plain_text_write_it():
    chat = Conversation((Message("system", "Be brief."), *TURNS))
    with pytest.raises(RecordError, match="no system turn"):
        tokenize_conversation(chat, with_template(tiny_tokenizer(), ALPACA))
    text = chat_text(chat.messages, with_template(tiny_tokenizer(), USER_ASSISTANT))
    assert text.startswith("System: Be brief.\nUser: Hi\n")


def test_the_first_tokenizer_keeps_its_template():
    tokenizer = tiny_tokenizer()
    before = tokenizer.chat_template
    other = with_template(tokenizer, BARE)
    assert tokenizer.chat_template == before and other.chat_template == BARE
    assert other("Hi").input_ids == tokenizer("Hi").input_ids


def test_a_blank_template_is_an_error():
    with pytest.raises(ChatTemplateError, match="blank; give a Jinja text"):
        with_template(tiny_tokenizer(), " \n")
