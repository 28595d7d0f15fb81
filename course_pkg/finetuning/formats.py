"""Format conversations for a chat model with the tokenizer's chat template.

The template adds the special tokens that mark turns. A model must see the same tokens in training
and in use, so they always come from the tokenizer.

Chapter: finetuning/chat.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from course_pkg.arguments import require_string
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.problems import RecordError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplateError(ValueError):
    """A chat template is absent, or it can't show where the answers are or where they end."""


def chat_prompt(prompt: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The text that a chat model reads for a user's prompt, up to the start of its answer.

    Raises TypeError if the prompt is not a string, ValueError if the tokenizer has no template.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> chat_prompt("Hi", tiny_tokenizer())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    turn = {"role": "user", "content": require_string(prompt, "prompt")}
    return _render([turn], tokenizer, generation_prompt=True)


def chat_text(
    messages: Sequence[Message],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    generation_prompt: bool = False,
) -> str:
    """The text of several turns, as the tokenizer's chat template writes it.

    generation_prompt: end with the start of the next answer, as the model needs it to write one.
    Some templates, such as SmolLM2's, put a system turn of their own before a conversation that
    has none.
    Raises ChatTemplateError (a ValueError) if the tokenizer has no template, RecordError (another
    ValueError) if the template refuses the turns, for example a system turn.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> turns = [Message("user", "Hi"), Message("assistant", "Yo")]
    >>> chat_text(turns, tiny_tokenizer())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nYo<|im_end|>\\n'
    """
    return _render(as_dicts(messages), tokenizer, generation_prompt=generation_prompt)


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The turns in the form that `tokenizer.apply_chat_template` takes.

    >>> as_dicts([Message("user", "Hi")])
    [{'role': 'user', 'content': 'Hi'}]
    """
    return [{"role": message.role, "content": message.content} for message in messages]


def _render(
    turns: list[dict[str, str]], tokenizer: "PreTrainedTokenizerBase", *, generation_prompt: bool
) -> str:
    if tokenizer.chat_template is None:
        raise ChatTemplateError("the tokenizer has no chat template; set tokenizer.chat_template")
    try:
        return tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=generation_prompt
        )
    except TemplateError as error:
        raise RecordError("refused by the template", str(error)) from None
