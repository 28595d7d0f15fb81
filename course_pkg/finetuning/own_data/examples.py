"""Examples as tokens: conversations with labels on the answers, plain texts with all labels.

What is longer than the limit is cut where an answer ends, so that no example loses the end token of
its last answer. A plain text goes on in a further piece, so none of it is cut.
Chapter: finetuning/sft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.formats import chat_text
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_conversation
from course_pkg.finetuning.own_data.data_file import DataFile, Example, PlainText
from course_pkg.finetuning.own_data.errors import FinetuneError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGINNING = 12  # words of a plain text that a model continues


@dataclass(frozen=True)
class TokenExample:
    """One example of a file. pieces: a conversation has one, a long plain text several.

    id: its line. key: equal for examples that belong on one side of a split, because they ask the
    same. prompt: what the model is given for a sample; question: its text without the template;
    reference: what the data has after it.
    """

    id: str
    key: str
    prompt: str
    question: str
    reference: str
    pieces: tuple[TokenizedExample, ...]


@dataclass(frozen=True)
class TokenizedFile:
    """A file's examples, and what the limit of tokens cost.

    cut: examples that lost their last answers. left_out: those whose first answer doesn't fit, by
    line. tokens: of all examples, before; lost: how many of them were cut or left out.
    """

    examples: tuple[TokenExample, ...]
    cut: tuple[str, ...]
    left_out: tuple[str, ...]
    tokens: int
    lost: int


def tokenize_file(
    data: DataFile, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> TokenizedFile:
    """The examples of a file as token ids and labels, each piece of at most max_length tokens.

    Raises FinetuneError for an example that the tokenizer or its chat template can't take, with its
    line, and if no example fits.

    >>> from pathlib import Path
    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> data = DataFile(Path("a.txt"), "plain text", (PlainText("abcdefg"),), (1,), "")
    >>> [example] = tokenize_file(data, tiny_tokenizer(), 5).examples
    >>> [len(piece.input_ids) for piece in example.pieces]  # with the end token
    [5, 3]
    """
    examples: list[TokenExample] = []
    cut: list[str] = []
    left_out: list[str] = []
    total = 0
    lost = 0
    for line, example in zip(data.lines, data.examples, strict=True):
        where = f"line {line}"
        try:
            pieces = _pieces(example, tokenizer, max_length)
            sample = _sample(example, tokenizer)
        except ValueError as error:
            raise FinetuneError(f"{data.path}, {where}: {error}") from None
        size = sum(len(piece.input_ids) for piece in pieces)
        fitting = tuple(_until_answer(piece, max_length) for piece in pieces)
        kept = tuple(piece for piece in fitting if piece is not None)
        total += size
        lost += size - sum(len(piece.input_ids) for piece in kept)
        if not kept:
            left_out.append(where)
            continue
        if kept != pieces:
            cut.append(where)
        examples.append(TokenExample(where, _key(example), *sample, kept))
    if not examples:
        raise FinetuneError(
            f"{data.path}: no example fits into {max_length} tokens; raise --max-length"
        )
    return TokenizedFile(tuple(examples), tuple(cut), tuple(left_out), total, lost)


def _pieces(
    example: Example, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> tuple[TokenizedExample, ...]:
    if isinstance(example, Conversation):
        return (tokenize_conversation(example, tokenizer),)
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end token; set tokenizer.eos_token")
    ids = [*tokenizer(example.text, verbose=False).input_ids, tokenizer.eos_token_id]
    starts = range(0, len(ids), max_length)
    parts = [tuple(ids[start : start + max_length]) for start in starts]
    if len(parts) > 1 and len(parts[-1]) == 1:  # a single token has no target
        parts = [*parts[:-2], parts[-2][:-1], parts[-2][-1:] + parts[-1]]
    return tuple(TokenizedExample(part, part) for part in parts)


def _until_answer(piece: TokenizedExample, max_length: int) -> TokenizedExample | None:
    """A piece up to the last answer that ends within the limit; None if none does."""
    labels = piece.labels
    if len(labels) <= max_length:
        return piece
    for end in range(max_length, 0, -1):
        if labels[end - 1] != IGNORE_INDEX and labels[end] == IGNORE_INDEX:
            return TokenizedExample(piece.input_ids[:end], labels[:end])
    return None


def _sample(example: Example, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str, str]:
    """A prompt for the model, its text for people, and what the example has after it."""
    if isinstance(example, Conversation):
        *before, last = example.until_learned
        prompt = chat_text(before, tokenizer, generation_prompt=True)
        if len(before) == 1:
            return prompt, before[0].content, last.content
        turns = [f"{message.role}: {message.content}" for message in before]
        return prompt, "\n".join(turns), last.content
    words = example.text.split(" ")
    size = min(BEGINNING, max(1, len(words) // 2))
    beginning = " ".join(words[:size])
    return beginning, beginning, " ".join(words[size:])


def _key(example: Example) -> str:
    """What the example asks, without case and white space; a plain text is its own question."""
    if isinstance(example, PlainText):
        asked = example.text
    else:
        asked = "\n".join(_until_first_answer(example.messages))
    return " ".join(asked.casefold().split())


def _until_first_answer(messages: Sequence[Message]) -> list[str]:
    roles = [message.role for message in messages]
    return [message.content for message in messages[: roles.index("assistant")]]
