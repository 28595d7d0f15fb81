"""Examples as tokens, for training and validation: never the same question in both.

What is longer than the limit is cut where an answer ends, so that no example loses the end token of
its last answer. A plain text goes on in a further piece, so none of it is cut.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from course_pkg.finetuning.conversations import Conversation
from course_pkg.finetuning.formats import chat_text
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_conversation
from course_pkg.finetuning.near_duplicates import character_ngrams
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import DataFile, FileExample, PlainText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGINNING = 12  # words of a plain text that a model continues
RUN = 16  # characters that two texts share by chance rarely
NEARLY = 0.5  # of an answer's runs
MOST = 200  # validation examples that are drawn; more would cost more time than they tell


@dataclass(frozen=True)
class TokenExample:
    """One example of a file.

    Attributes:
        id: its line.
        key: equal for examples that belong on one side of a split, because they ask the same.
        prompt: what the model is given for a sample.
        question: its text without the template.
        reference: what the data has after it.
        pieces: a conversation has one, a long plain text several.
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

    Attributes:
        cut: examples that lost their last answers.
        left_out: those whose first answer doesn't fit, by line.
        tokens: of all examples, before.
        lost: how many of them were cut or left out.
    """

    examples: tuple[TokenExample, ...]
    cut: tuple[str, ...]
    left_out: tuple[str, ...]
    tokens: int
    lost: int


def tokenize_file(
    data: DataFile, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> TokenizedFile:
    """The examples of a file as token ids and labels, each piece of at most max_length tokens."""
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
    example: FileExample, tokenizer: "PreTrainedTokenizerBase", max_length: int
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


def _sample(example: FileExample, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str, str]:
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


def _key(example: FileExample) -> str:
    """What the example asks, without case and white space; a plain text is its own question."""
    if isinstance(example, PlainText):
        asked = example.text
    else:
        before = takewhile(lambda message: message.role != "assistant", example.messages)
        asked = "\n".join(message.content for message in before)
    return " ".join(asked.casefold().split())


@dataclass(frozen=True)
class Split:
    """The examples of both sides, each in the file's order."""

    train: tuple[TokenExample, ...]
    validation: tuple[TokenExample, ...]


def split_examples(examples: Sequence[TokenExample], share: float, seed: int) -> Split:
    """Draw a share of the examples for validation, at least two and about 200 at most.

    Examples with the same key stay together, so a question that occurs twice is on one side only.
    """
    groups = list(dict.fromkeys(example.key for example in examples))
    if len(groups) < 4:
        why = " (those that begin with the same question count as one)"
        raise FinetuneError(
            f"too few different examples for a validation split: {len(groups)}"
            f"{why if len(groups) < len(examples) else ''}; give 4 or more, or a file of other "
            "examples with --validation"
        )
    wanted = min(max(2, round(share * len(examples))), MOST)
    random.Random(seed).shuffle(groups)
    counts = Counter(example.key for example in examples)
    before = accumulate((counts[key] for key in groups), initial=0)
    chosen = {key for key, size in zip(groups, before, strict=False) if size < wanted}
    train = tuple(example for example in examples if example.key not in chosen)
    if not train:
        raise FinetuneError(f"a validation share of {share:g} leaves nothing to train on: lower it")
    return Split(train, tuple(example for example in examples if example.key in chosen))


def given_split(
    train: Sequence[TokenExample], validation: Sequence[TokenExample], name: str
) -> Split:
    """The two sides from two files, which may not ask the same. name: of the validation file."""
    lines = {example.key: example.id for example in train}
    both = [example for example in validation if example.key in lines]
    if both:
        more = f", and {len(both) - 1} more like this" if len(both) > 1 else ""
        raise FinetuneError(
            f"{name}, {both[0].id}: the training data ask the same in {lines[both[0].key]}{more}; "
            "take such examples out of one of the files, or the validation loss shows memory"
        )
    return Split(tuple(train), tuple(validation))


def repeated_answers(split: Split) -> int:
    """How many validation answers are mostly in the training data, although the questions differ.

    Answers of fewer characters than a run, such as labels, don't count.
    """
    known = {run for example in split.train for run in character_ngrams(example.reference, RUN)}
    return sum(
        len(example.reference) >= RUN
        and len((runs := character_ngrams(example.reference, RUN)) & known) >= NEARLY * len(runs)
        for example in split.validation
    )
