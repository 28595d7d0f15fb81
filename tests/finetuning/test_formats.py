"""Prompts and conversations come from the tokenizer's chat template."""

import pytest

from course_pkg.finetuning.formats import ChatTemplateError, chat_prompt, chat_text
from course_pkg.finetuning.problems import RecordError
from course_pkg.lm.tiny import tiny_tokenizer

from .templates import chat, replaced


def test_a_prompt_that_is_not_a_string_is_refused():
    with pytest.raises(TypeError, match="prompt must be a string, got None"):
        chat_prompt(None, tiny_tokenizer())


def test_a_tokenizer_without_a_chat_template_is_refused():
    plain = tiny_tokenizer()
    plain.chat_template = None
    with pytest.raises(ChatTemplateError, match="no chat template"):
        chat_prompt("Why?", plain)
    with pytest.raises(ValueError, match="no chat template"):
        chat_text(chat("Hi", "Yo").messages, plain)


def test_a_conversation_is_written_turn_by_turn():
    messages = chat("Hi", "Yo", "Bye", "So long", system="Rhyme.").messages
    assert chat_text(messages[:4], tiny_tokenizer(), generation_prompt=True) == (
        "<|im_start|>system\nRhyme.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_what_a_template_refuses_is_a_record_error():
    strict = replaced(
        "{% for message in messages %}",
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ raise_exception('no system turns') }}{% endif %}",
    )
    with pytest.raises(RecordError, match="refused by the template: no system turns"):
        chat_text(chat("Hi", "Yo", system="Rhyme.").messages, strict)


@pytest.mark.model
def test_smollm2_writes_a_system_turn_of_its_own_where_there_is_none(smollm2):
    messages = chat("Hi", "Yo").messages
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    assert chat_text(messages, smollm2.tokenizer).startswith(default)
    own = chat_text(chat("Hi", "Yo", system="Rhyme.").messages, smollm2.tokenizer)
    assert own.startswith("<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nHi")
