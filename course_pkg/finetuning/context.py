"""Shorten a conversation that no longer fits into a model's context.

The system turn stays, because it holds the rules, and so does the question that waits for an
answer. The oldest exchanges go first, each as a whole, so that no answer loses its question.

Chapter: finetuning/chat.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_pkg.arguments import require_integer
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import chat_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_tokens(messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase") -> int:
    """The tokens that a model reads before it answers the last message.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> prompt_tokens([Message("user", "Hi")], tiny_tokenizer())
    21
    """
    text = chat_text(messages, tokenizer, generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def keep_recent(
    messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase", limit: int
) -> tuple[Message, ...]:
    """The system turn, if there is one, and as many of the latest exchanges as fit.

    messages: they end with a user turn. limit: tokens of the rendered prompt, the start of the
    answer included; leave room for the answer itself.
    Raises ValueError if the messages don't end with a user turn, if limit is below 1, or if even
    the system turn and the last question are too long; otherwise as `chat_text` does.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yo"), ("user", "Bye")]
    >>> chat = [Message(*turn) for turn in turns]
    >>> [message.content for message in keep_recent(chat, tiny_tokenizer(), limit=50)]
    ['Be brief.', 'Bye']
    """
    require_integer(limit, "limit")
    if not messages or messages[-1].role != "user":
        found = messages[-1].role if messages else "no message"
        raise ValueError(f"the messages must end with a user turn, got {found}")
    first = 1 if messages[0].role == "system" else 0
    rules, rest = tuple(messages[:first]), tuple(messages[first:])
    for start in [at for at, message in enumerate(rest) if message.role == "user"]:
        kept = rules + rest[start:]
        if (count := prompt_tokens(kept, tokenizer)) <= limit:
            return kept
    raise ValueError(
        f"the system turn and the last question need {count} tokens, the limit is {limit}; "
        "raise the limit, or shorten one of them"
    )
