"""Chat templates other than a model's own, to measure what a template changes.

A chat template is a Jinja text that belongs to the tokenizer. These end each answer with the
tokenizer's end token, so that a model can learn to stop with them.

Chapter: finetuning/instructions.
"""

import copy
from typing import TYPE_CHECKING

from course_pkg.finetuning.formats import ChatTemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ALPACA = (  # Taori et al. 2023, for a task without an input; an answer ends with the end token
    "{{ 'Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '### Response:\n' + message['content'] + eos_token + '\n\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '### Instruction:\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ raise_exception('this template has no system turn') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
USER_ASSISTANT = (  # labels in plain text
    "{% for message in messages %}"
    "{{ message['role'] | capitalize + ': ' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' }}{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
BARE = (  # texts alone, each on a line
    "{% for message in messages %}"
    "{{ message['content'] }}{{ eos_token if message['role'] == 'assistant' }}{{ '\n' }}"
    "{% endfor %}"
)


def with_template(tokenizer: "PreTrainedTokenizerBase", template: str) -> "PreTrainedTokenizerBase":
    """A copy of a tokenizer that has another chat template; the tokens are the same.

    Raises ChatTemplateError (a ValueError) for a blank template.

    >>> from course_pkg.finetuning.formats import chat_prompt
    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> chat_prompt("Hi", with_template(tiny_tokenizer(), USER_ASSISTANT))
    'User: Hi\\nAssistant:'
    """
    if not template.strip():
        raise ChatTemplateError("the chat template is blank; give a Jinja text, such as ALPACA")
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed
