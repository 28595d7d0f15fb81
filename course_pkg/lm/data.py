"""The course's own text, and the few steps from a question and answer to a training batch.

An example becomes token ids by the model's own chat template; the prompt is masked in the
labels, so that the loss is on the answer and on the token that ends it. Batches are padded
to their longest member, not to a fixed length. Nothing is ever cut without being told.

Chapter: adapters/lora.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

IGNORE = -100  # the label that cross-entropy skips
EXAMPLE_SETS = {"navigator": ("train", "held-out")}
TEXT_SETS = {"passages": ("test",)}
LOG_FORMAT = re.compile(r"LOG: [^\n]+[.!?]\nCAUSE: [^\n]+[.!?]\nORDERS: [^\n]+[.!?]")


@dataclass(frozen=True)
class Example:
    """One instruction and the answer wanted for it."""

    id: str
    topic: str
    prompt: str
    response: str


@dataclass(frozen=True)
class TokenizedExample:
    """Token ids, and labels of the same length that hold IGNORE where no loss is wanted."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]


def load_examples(name: str = "navigator", split: str = "train") -> list[Example]:
    """The examples of one of the course's instruction sets, in the file's order.

    name: "navigator" (120 training and 30 held-out questions, answered in the form of a
    ship's log). split: "train" or "held-out". Raises ValueError for any other.

    >>> print(load_examples("navigator", "train")[0].response)
    LOG: Yeast eats sugar in the dough and gives off gas.
    CAUSE: Stretchy gluten holds the bubbles, so the loaf swells.
    ORDERS: Rest the dough somewhere warm for an hour.
    """
    return [Example(**row) for row in _rows(name, split, EXAMPLE_SETS)]


def load_texts(name: str = "passages", split: str = "test") -> list[str]:
    """The texts of one of the course's evaluation sets, from short to long.

    name: "passages" (40 texts of 3 to 60 words). Raises ValueError for any other name or split.

    >>> texts = load_texts("passages")
    >>> len(texts), texts[0]
    (40, 'The kettle is on.')
    """
    return [row["text"] for row in _rows(name, split, TEXT_SETS)]


def follows_log_format(text: str) -> bool:
    """Whether a text is exactly one entry of the navigator's log: three lines, one sentence each.

    Blank space around the text is allowed, anything else before or after is not.

    >>> follows_log_format("LOG: Calm.\\nCAUSE: No wind.\\nORDERS: Row.")
    True
    >>> follows_log_format("LOG: Calm, because there is no wind.")
    False
    """
    return LOG_FORMAT.fullmatch(text.strip()) is not None


def chat_prompt(prompt: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The text that a chat model is given for a user's prompt, up to where its answer begins.

    Raises ValueError if the tokenizer has no chat template.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> chat_prompt("Hi", tiny_tokenizer())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    if tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template; set tokenizer.chat_template")
    turn = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)


def tokenize_example(
    example: Example, tokenizer: "PreTrainedTokenizerBase", max_length: int | None = None
) -> TokenizedExample:
    """Prompt and answer as token ids, with labels on the answer and its end token only.

    max_length: ValueError if the example has more tokens; None sets no limit.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> tokenized = tokenize_example(Example("1", "any", "Hi", "Yo"), tiny_tokenizer())
    >>> tokenized.labels[-4:]
    (-100, 89, 111, 258)
    """
    prompt = tokenizer(chat_prompt(example.prompt, tokenizer), add_special_tokens=False).input_ids
    answer = tokenizer(example.response, add_special_tokens=False).input_ids
    answer = [*answer, tokenizer.eos_token_id]
    length = len(prompt) + len(answer)
    if max_length is not None and length > max_length:
        raise ValueError(
            f"example {example.id!r} has {length} tokens and max_length is {max_length}: "
            "raise it, or leave the example out"
        )
    return TokenizedExample((*prompt, *answer), (*[IGNORE] * len(prompt), *answer))


def collate(
    examples: Sequence[TokenizedExample],
    pad_token_id: int,
    padding_side: Literal["left", "right"] = "right",
) -> dict[str, "torch.Tensor"]:
    """One batch: input_ids, attention_mask and labels, each int64 of shape (batch, longest).

    Pads are masked from attention by 0 and from the loss by IGNORE, whatever token they are.
    Raises ValueError for an empty batch.

    >>> short, long = TokenizedExample((5,), (5,)), TokenizedExample((6, 7), (-100, 7))
    >>> batch = collate([short, long], pad_token_id=0)
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[5, 0], [6, 7]], [[5, -100], [-100, 7]])
    """
    import torch

    if not examples:
        raise ValueError("a batch needs at least one example, 0 given")
    longest = max(len(example.input_ids) for example in examples)

    def padded(rows: list[tuple[int, ...]], fill: int) -> torch.Tensor:
        pads = [[fill] * (longest - len(row)) for row in rows]
        left = padding_side == "left"
        both = zip(rows, pads, strict=True)
        return torch.tensor([[*pad, *row] if left else [*row, *pad] for row, pad in both])

    return {
        "input_ids": padded([example.input_ids for example in examples], pad_token_id),
        "attention_mask": padded([(1,) * len(example.input_ids) for example in examples], 0),
        "labels": padded([example.labels for example in examples], IGNORE),
    }


def batches(
    examples: Sequence[TokenizedExample],
    batch_size: int,
    pad_token_id: int,
    *,
    seed: int | None = None,
    epochs: int = 1,
) -> Iterator[dict[str, "torch.Tensor"]]:
    """Collated batches of the examples, each example once per epoch; the last may be smaller.

    seed: shuffles every epoch in an order of its own, always the same for the same seed; None
    keeps the given order. Raises ValueError for no examples or a batch_size below 1.

    >>> examples = [TokenizedExample((token,), (token,)) for token in range(5)]
    >>> [len(batch["labels"]) for batch in batches(examples, 2, pad_token_id=0, epochs=2)]
    [2, 2, 1, 2, 2, 1]
    """
    if not examples or batch_size < 1:
        raise ValueError(
            f"{len(examples)} examples in batches of {batch_size}; at least one of each is wanted"
        )
    return _batches(examples, batch_size, pad_token_id, seed, epochs)


def _batches(examples, batch_size, pad_token_id, seed, epochs):
    import torch

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    order = list(range(len(examples)))
    for _ in range(epochs):
        if generator is not None:
            order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(0, len(order), batch_size):
            chosen = [examples[index] for index in order[start : start + batch_size]]
            yield collate(chosen, pad_token_id)


def _rows(name: str, split: str, known: dict[str, tuple[str, ...]]) -> list[dict[str, str]]:
    if split not in known.get(name, ()):
        sets = ", ".join(f"{name}/{split}" for name, splits in known.items() for split in splits)
        raise ValueError(f"there is no set {name}/{split}; the sets are {sets}")
    file = resources.files("course_pkg") / "data" / name / f"{split}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
