"""Perplexity of texts under a causal language model::

    perplexity = exp(total NLL of the scored tokens / number of scored tokens)

A longer text than the model's context is split into overlapping windows (Baevski and Auli 2019), so
that each token is scored once. The tokenizer's special tokens are not added: only `bos` adds one.
Source: Jelinek et al. 1977.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from course_pkg.common.arguments import require_integer, text_list
from course_pkg.metrics.perplexity.likelihood import Likelihood, count_units
from course_pkg.metrics.perplexity.token_scores import PaddingSide, token_log_probs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PerplexityResult(Likelihood):
    """The likelihood of all texts together, and of each text, in order."""

    per_text: tuple[Likelihood, ...] = ()

    def __str__(self) -> str:
        left_out = f", {_count(self.unscored, 'first token')} unscored (no BOS)"
        return (
            f"perplexity {self.perplexity:.4g} over {_count(self.tokens, 'token')} of "
            f"{_count(len(self.per_text), 'text')}{left_out if self.unscored else ''}; "
            f"{self.bits_per_byte:.4g} bits per byte"
        )


@dataclass(frozen=True)
class Window:
    """Tokens start to end of a text (end excluded); those from position `first` on are scored."""

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
    """Compute the perplexity of texts under a causal language model: exp of the mean NLL per token.

    Args:
        batch_size: the most texts (or windows) in a forward pass.
        stride: how many new tokens each further window scores; with None, no text may be longer
            than max_length.
        max_length: the most tokens in a forward pass, with the BOS; by default the config's limit.
        bos: True puts the tokenizer's BOS before each text, a number puts that token id there; with
            False, the first token of each text is unscored.

    >>> from course_pkg.lm.load import load
    >>> print(perplexity(*load("tiny"), ["Any text.", "Two."], bos=True))
    perplexity 2... over 13 tokens of 2 texts; ... bits per byte
    """
    texts = _check_texts(texts)
    if not callable(tokenizer) or not hasattr(tokenizer, "bos_token_id"):
        raise TypeError(
            f"tokenizer must be a transformers tokenizer, got {type(tokenizer).__name__}: "
            "pass *load(name), the model first"
        )
    prefix = _prefix(tokenizer, bos)
    tokenized = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    encoded = [[*prefix, *ids] for ids in tokenized]
    limit = _context(model, max_length, stride)
    pieces = [
        (number, window)
        for number, ids in enumerate(encoded)
        for window in _split(number, len(ids), limit, stride)
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
            f"there is no token to score in {_count(len(texts), 'text')}: each text is empty or "
            "has a single token and no BOS; pass bos=True to score the first token too"
        )
    return PerplexityResult(**vars(total), per_text=per_text)


def windows(length: int, max_length: int, stride: int) -> list[Window]:
    """Split a text of `length` tokens into windows, one every `stride` tokens.

    Each token is scored once. The first window scores all its tokens except position 0.
    Each further window scores its last `stride` tokens (the last window may have fewer);
    the max_length - stride tokens before them are context only.

    >>> windows(8, max_length=6, stride=3)
    [Window(start=0, end=6, first=1), Window(start=3, end=8, first=6)]
    """
    require_integer(length, "length", 0)
    require_integer(max_length, "max_length", 2)
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride < max_length:
        raise ValueError(
            f"stride must be from 1 to max_length - 1 = {max_length - 1}, got {stride}; "
            "every window needs some context"
        )
    windows = [Window(0, min(length, max_length), 1)] if length else []
    while windows and windows[-1].end < length:
        last = windows[-1]
        start = last.start + stride
        windows.append(Window(start, min(length, start + max_length), last.end))
    return windows


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split(number: int, length: int, limit: int | None, stride: int | None) -> list[Window]:
    if stride is not None:
        return windows(length, limit, stride)
    if limit is not None and length > limit:
        raise ValueError(
            f"text {number} has {length} tokens, but max_length is {limit}: give a stride "
            f"(such as {limit // 2}) to score it in overlapping windows, or shorten it"
        )
    return [Window(0, length, 1)]


def _check_texts(texts: str | Sequence[str]) -> list[str]:
    texts = text_list(texts)
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {number} contains half a character ({text[error.start]!r} at position "
                f"{error.start}), which UTF-8 cannot encode: read the file with its own encoding"
            ) from None
    return texts


def _prefix(tokenizer: "PreTrainedTokenizerBase", bos: bool | int) -> list[int]:
    if bos is False:
        return []
    if bos is not True:
        if not isinstance(bos, int) or not 0 <= bos < len(tokenizer):
            raise ValueError(
                f"bos must be True, False or a token id below {len(tokenizer)}, got {bos!r}"
            )
        return [bos]
    if tokenizer.bos_token_id is None:
        raise ValueError(
            "the tokenizer has no BOS token: leave bos out, or give the id of the token that "
            "separated documents in the model's training"
        )
    return [tokenizer.bos_token_id]


def _context(model: nn.Module, max_length: int | None, stride: int | None) -> int | None:
    config = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if max_length is None:
        if stride is not None and limit is None:
            raise ValueError("the model's config has no context length: give max_length too")
        return limit
    most = max_length if limit is None else limit
    if not isinstance(max_length, int) or not 2 <= max_length <= most:
        upper = "" if limit is None else f" and at most {limit}, the model's context length"
        raise ValueError(f"max_length must be at least 2{upper}, got {max_length!r}")
    return max_length
