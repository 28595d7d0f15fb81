"""Perplexity of texts under a causal language model.

    perplexity = exp(total NLL of the scored tokens / number of scored tokens)

From texts to tokens, with or without a BOS before them; a text longer than the model's context goes
through in windows that overlap, each token scored once; token_scores runs the model, likelihood
holds the result. The tokenizer's own special tokens are left off: only `bos` adds one.

Sources: Jelinek et al. 1977, "Perplexity -- a measure of the difficulty of speech recognition
tasks"; context windows as in Baevski and Auli 2019, "Adaptive Input Representations for Neural
Language Modeling". Chapter: metrics/perplexity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from course_pkg.metrics.arguments import text_list
from course_pkg.metrics.perplexity.likelihood import Likelihood, count_units
from course_pkg.metrics.perplexity.token_scores import PaddingSide, token_log_probs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PerplexityResult(Likelihood):
    """The likelihood of all texts together, and of each.

    per_text: one Likelihood per text, in order; the fields of this one are their sums. unscored:
    the tokens that nothing stood before, one per text that was given no BOS.
    bos: the token id that stood before each text, or None.
    """

    per_text: tuple[Likelihood, ...] = ()
    bos: int | None = None

    def __str__(self) -> str:
        """One line: the value, what it is over, and what was left out."""
        left_out = f", {_count(self.unscored, 'first token')} unscored (no BOS)"
        return (
            f"perplexity {self.perplexity:.4g} over {_count(self.tokens, 'token')} of "
            f"{_count(len(self.per_text), 'text')}{left_out if self.unscored else ''}; "
            f"{self.bits_per_byte:.4g} bits per byte"
        )


@dataclass(frozen=True)
class Window:
    """Tokens start to end of a text, of which those from `first` on are scored (text positions)."""

    start: int
    end: int
    first: int


def perplexity(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    texts: str | Sequence[str],
    *,
    batch_size: int = 16,
    stride: int | None = None,
    max_length: int | None = None,
    bos: bool | int = False,
    padding_side: PaddingSide = "right",
) -> PerplexityResult:
    """How surprised a causal language model is by texts: exp of its mean NLL per token.

    texts: one string, or several. batch_size: at most so many (windows of) texts in a forward
    pass; the value does not depend on it, nor on padding_side. max_length: tokens that the model
    may see at once, BOS included; by default what its config says. stride: how many new tokens
    each further window scores; None lets no text be longer than max_length. bos: True puts the
    tokenizer's BOS before each text, a number puts that token id there; False leaves each text's
    first token unscored, which the result says.
    An empty text, and a single token without a BOS, add nothing; if nothing at all can be scored,
    ValueError. Raises TypeError for texts that are no strings, ValueError for a text longer than
    max_length without a stride, a stride outside 1 to max_length - 1, no BOS where one is wanted.
    Source: Jelinek et al. 1977.

    >>> from course_pkg.lm.load import load
    >>> print(perplexity(*load("tiny"), ["Any text.", "Two."], bos=True))
    perplexity 2... over 13 tokens of 2 texts; ... bits per byte
    """
    texts = _checked(texts)
    bos_id = _bos_id(tokenizer, bos)
    prefix = [] if bos_id is None else [bos_id]
    tokenized = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    encoded = [[*prefix, *ids] for ids in tokenized]
    most = _context(model, max_length, stride)
    pieces = [
        (number, window)
        for number, ids in enumerate(encoded)
        for window in _cut(number, len(ids), most, stride)
    ]
    scores = token_log_probs(
        model,
        [encoded[number][piece.start : piece.end] for number, piece in pieces],
        first=[piece.first - piece.start for _, piece in pieces],
        batch_size=batch_size,
        padding_side=padding_side,
    )
    log_probs = [[] for _ in texts]
    for (number, _), score in zip(pieces, scores, strict=True):
        log_probs[number] += score.tolist()
    per_text = tuple(
        Likelihood.of(values, unscored=len(ids) - len(prefix) - len(values), **count_units(text))
        for text, ids, values in zip(texts, encoded, log_probs, strict=True)
    )
    total = Likelihood.total(per_text)
    if total.tokens == 0:
        raise ValueError(
            f"{_count(len(texts), 'text')} and no token to score: a text is empty, or one token "
            "long without a BOS; bos=True scores the first token too"
        )
    return PerplexityResult(**vars(total), per_text=per_text, bos=bos_id)


def windows(length: int, max_length: int, stride: int) -> list[Window]:
    """Windows over a text of so many tokens: one every `stride`, each token scored once.

    The first window scores all it holds but position 0, each further one its last `stride`
    tokens (the last what is left); the max_length - stride tokens before them are context
    only. Raises ValueError unless 1 <= stride < max_length.

    >>> for window in windows(10, max_length=6, stride=3):
    ...     print(window)
    Window(start=0, end=6, first=1)
    Window(start=3, end=9, first=6)
    Window(start=6, end=10, first=9)
    """
    if not isinstance(stride, int) or not 1 <= stride < max_length:
        raise ValueError(
            f"stride is {stride} and max_length {max_length}: a stride from 1 to "
            "max_length - 1 is wanted, so that every window keeps some context"
        )
    found = [Window(0, min(length, max_length), 1)] if length else []
    while found and found[-1].end < length:
        last = found[-1]
        start = last.start + stride
        found.append(Window(start, min(length, start + max_length), last.end))
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _cut(number: int, length: int, most: int | None, stride: int | None) -> list[Window]:
    if stride is not None:
        return windows(length, most, stride)
    if most is not None and length > most:
        raise ValueError(
            f"text {number} has {length} tokens and max_length is {most}: give a stride "
            f"(such as {most // 2}) to read it in overlapping windows, or cut it"
        )
    return [Window(0, length, 1)]


def _checked(texts: str | Sequence[str]) -> list[str]:
    texts = text_list(texts)
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {number} holds half a character ({text[error.start]!r} at {error.start}), "
                "which has no UTF-8: read the file with its right encoding"
            ) from None
    return texts


def _bos_id(tokenizer: "PreTrainedTokenizerBase", bos: bool | int) -> int | None:
    if bos is False:
        return None
    if bos is not True:
        if not isinstance(bos, int) or not 0 <= bos < len(tokenizer):
            raise ValueError(
                f"bos must be True, False or a token id below {len(tokenizer)}, got {bos!r}"
            )
        return bos
    if tokenizer.bos_token_id is None:
        raise ValueError(
            "the tokenizer has no BOS token: leave bos out, or give the id of the token that the "
            "model saw between documents in training"
        )
    return tokenizer.bos_token_id


def _context(model: nn.Module, max_length: int | None, stride: int | None) -> int | None:
    """The tokens that fit into a window: max_length, or what the model's config says, or None."""
    config = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if max_length is None:
        if stride is not None and limit is None:
            raise ValueError("the model's config names no context length: give max_length too")
        return limit
    if max_length < 2 or (limit is not None and max_length > limit):
        upper = f"the model's context of {limit}" if limit is not None else "what memory allows"
        raise ValueError(f"max_length is {max_length}; from 2 to {upper} is wanted")
    return max_length
