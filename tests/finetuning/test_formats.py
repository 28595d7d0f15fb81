"""Prompts come from the tokenizer's chat template."""

import pytest

from course_pkg.finetuning.formats import chat_prompt
from course_pkg.lm.tiny import tiny_tokenizer


def test_a_prompt_that_is_not_a_string_is_refused():
    with pytest.raises(TypeError, match="prompt must be a string, got None"):
        chat_prompt(None, tiny_tokenizer())


def test_a_tokenizer_without_a_chat_template_is_refused():
    plain = tiny_tokenizer()
    plain.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        chat_prompt("Why?", plain)
