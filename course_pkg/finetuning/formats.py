"""Format prompts for a chat model with the tokenizer's chat template.

The template adds the special tokens that mark turns. A model must see the same tokens in training
and in use, so they always come from the tokenizer.

Chapter: adapters/lora-training.
"""

from typing import TYPE_CHECKING

from course_pkg.metrics.arguments import require_string

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chat_prompt(prompt: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The text that a chat model reads for a user's prompt, up to the start of its answer.

    Raises TypeError if the prompt is not a string, ValueError if the tokenizer has no template.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> chat_prompt("Hi", tiny_tokenizer())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    require_string(prompt, "prompt")
    if tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template; set tokenizer.chat_template")
    turn = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
