"""Token ids and labels of one example, with the prompt masked out of the loss.

The labels equal the token ids where the model should learn, which is the answer and its end token.
Elsewhere they are IGNORE_INDEX. Nothing is truncated.

Chapter: adapters/lora-training.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_pkg.finetuning.formats import chat_prompt
from course_pkg.lm.datasets import Example
from course_pkg.metrics.arguments import require_string

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE_INDEX = -100  # the label that cross-entropy skips, in torch and in transformers


@dataclass(frozen=True)
class TokenizedExample:
    """Token ids, and as many labels; a label is IGNORE_INDEX where the loss skips the token.

    Raises ValueError if there are more or fewer labels than token ids.
    """

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.input_ids) != len(self.labels):
            raise ValueError(
                f"expected a label for each of {len(self.input_ids)} token ids, "
                f"got {len(self.labels)}"
            )


def tokenize_example(example: Example, tokenizer: "PreTrainedTokenizerBase") -> TokenizedExample:
    """Prompt and answer as token ids, with labels only on the answer and its end token.

    Raises TypeError unless example is an Example whose prompt and response are strings, ValueError
    if the tokenizer has no end token or no chat template.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> tokenized = tokenize_example(Example("1", "any", "Hi", "Yo"), tiny_tokenizer())
    >>> tokenized.labels[-4:]
    (-100, 89, 111, 258)
    """
    if not isinstance(example, Example):
        raise TypeError(
            f"example must be an Example, got {example!r:.80}; "
            "write Example(id, topic, prompt, response)"
        )
    require_string(example.response, "response")
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end token; set tokenizer.eos_token")
    prompt = tokenizer(chat_prompt(example.prompt, tokenizer), add_special_tokens=False).input_ids
    answer = tokenizer(example.response, add_special_tokens=False).input_ids
    answer = [*answer, tokenizer.eos_token_id]
    return TokenizedExample((*prompt, *answer), (*[IGNORE_INDEX] * len(prompt), *answer))
