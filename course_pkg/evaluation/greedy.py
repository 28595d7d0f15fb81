"""Greedy generation for many prompts, until a stop string, an end token, or a number of tokens.

Stop strings are looked for in the decoded text, after every token, since a token may contain more
than one, and one may span tokens. Prompts of similar length share a batch; what they all begin with
is computed once. Source: lm-eval 0.4.13's generate_until.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteria
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_integer, text_list
from course_pkg.evaluation.continuation_scores import Progress, as_decoder, silent
from course_pkg.evaluation.masked_cache import MaskedCache
from course_pkg.evaluation.option_boundary import encode
from course_pkg.evaluation.token_tree import shared_length
from course_pkg.lm.decoder import Decoder


@dataclass(frozen=True)
class Generation:
    """What a model wrote, up to the stop string; tokens: all, those of the stop included.

    finish: what ended it; "refused" is a server's. notes: how it was asked otherwise than wanted.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Literal["stop", "end", "length", "refused"]
    stop: str | None = None
    notes: tuple[str, ...] = ()


def generate_greedy(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int = 64,
    stop: Sequence[str] = (),
    end_tokens: Collection[int] | None = None,
    batch_size: int = 16,
    progress: Progress = silent,
) -> list[Generation]:
    """The most probable next token, again and again, for each prompt.

    Args:
        model: a Decoder, or a causal model of transformers.
        stop: strings that end the text.
        end_tokens: by default, those of the model's generation config and the tokenizer's EOS.
        progress: gets the share of the work that is done at most, after each token.
    """
    require_integer(max_new_tokens, "max_new_tokens")
    require_integer(batch_size, "batch_size")
    prompts = text_list(prompts, "prompt")
    stop = _checked_stop(stop, tokenizer)
    ends = _end_tokens(model, tokenizer) if end_tokens is None else frozenset(end_tokens)
    encoded = [encode(tokenizer, prompt) for prompt in prompts]
    _check_lengths(model, encoded, max_new_tokens)
    rows = [_Row(tokenizer, stop, ends) for _ in prompts]
    decoder = as_decoder(model)
    if decoder is None:
        for number, (ids, row) in enumerate(zip(encoded, rows, strict=True), start=1):
            _generate_with_transformers(model, ids, row, max_new_tokens)
            progress(number / len(rows))
    else:
        order = sorted(range(len(prompts)), key=lambda number: len(encoded[number]))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            steps = _steps(decoder, [encoded[number] for number in batch])
            for step, tokens in enumerate(islice(steps, max_new_tokens), start=1):
                for number, token in zip(batch, tokens, strict=True):
                    rows[number].add(token)
                done = sum(
                    1.0 if rows[number].finish else step / max_new_tokens for number in batch
                )
                progress((start + done) / len(rows))
                if all(rows[number].finish for number in batch):
                    break
    return [row.generation() for row in rows]


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest stop string begins, and which it is; None if there is none."""
    return min(((text.index(string), string) for string in stop if string in text), default=None)


class _Row:
    """One prompt's new tokens. finish: None while it grows; later tokens are ignored."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], ends: frozenset[int]):
        self.tokenizer = tokenizer
        self.strings = stop
        self.ends = ends
        self.tokens: list[int] = []
        self.text = ""
        self.stop: str | None = None
        self.finish: Literal["stop", "end"] | None = None

    def add(self, token: int) -> None:
        if self.finish:
            return
        self.tokens.append(token)
        if token in self.ends:
            self.finish = "end"
            return
        self.text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if place_and_stop := first_stop(self.text, self.strings):
            place, self.stop = place_and_stop
            self.text = self.text[:place]
            self.finish = "stop"

    def generation(self) -> Generation:
        return Generation(self.text, tuple(self.tokens), self.finish or "length", self.stop)


@torch.no_grad()
def _steps(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The next token of each prompt, step after step, without an end."""
    device = decoder.embed_tokens.weight.device
    cache = MaskedCache(decoder.config)
    batch = len(prompts)
    shared = min(shared_length(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    if shared:
        positions = torch.arange(shared, device=device)[None]  # (1, shared)
        seen = positions[:, None] <= positions[:, :, None]  # (1, shared, shared)
        ids = torch.tensor([prompts[0][:shared]], device=device)  # (1, shared)
        decoder(ids, positions, cache.attend(positions, seen), last_only=True)
    longest = max(map(len, prompts)) - shared
    pads = torch.tensor([longest - len(ids) + shared for ids in prompts], device=device)[:, None]
    ids = torch.tensor(
        [[0] * (longest - len(ids) + shared) + list(ids[shared:]) for ids in prompts], device=device
    )  # (batch, longest)
    column = torch.arange(longest, device=device)  # (longest,)
    positions = (shared + column - pads).clamp(min=0)  # (batch, longest)
    real = (column >= pads)[:, None]  # (batch, 1, longest)
    itself = column == column[:, None]  # (longest, longest); padding too must see something
    seen = (real & (column <= column[:, None])) | itself  # (batch, longest, longest)
    seen = torch.cat((seen.new_ones(batch, longest, shared), seen), dim=2)
    while True:
        logits = decoder(ids, positions, cache.attend(positions, seen), last_only=True)[:, -1]
        best = _argmax(logits)  # (batch,)
        yield best.tolist()
        ids = best[:, None]  # (batch, 1)
        positions = positions[:, -1:] + 1  # (batch, 1)
        seen = torch.cat((seen[:, -1:], seen.new_ones(batch, 1, 1)), dim=2)  # (batch, 1, all)


def _argmax(logits: Tensor) -> Tensor:
    if logits.isnan().any():
        raise FloatingPointError(
            "the model's logits are NaN: check its weights, or load it in float32 if it is in half "
            "precision"
        )
    return logits.argmax(-1)


class _StopAtRow(StoppingCriteria):
    def __init__(self, row: _Row):
        self.row = row

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs) -> Tensor:
        self.row.add(int(input_ids[0, -1]))
        return torch.tensor([self.row.finish is not None], device=input_ids.device)


def _generate_with_transformers(
    model: nn.Module, prompt: list[int], row: _Row, max_new_tokens: int
) -> None:
    ids = torch.tensor([prompt], device=next(model.parameters()).device)  # (1, tokens)
    plain = GenerationConfig(  # without the repetition penalty, and so on, of the model's own
        do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0
    )
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=plain,
        stopping_criteria=[_StopAtRow(row)],
    )


def _end_tokens(model: nn.Module, tokenizer: Tokenizer) -> frozenset[int]:
    settings = getattr(model, "generation_config", None)
    ends = settings.eos_token_id if settings is not None else None
    ends = [ends] if isinstance(ends, int) else ends or []
    return frozenset([*ends, tokenizer.eos_token_id]) - {None}


def _checked_stop(stop: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    stop = text_list(stop, "stop string") if len(stop) else []
    for string in stop:
        if not string:
            raise ValueError("a stop string is empty: every text contains it")
        if special := [token for token in tokenizer.all_special_tokens if token in string]:
            raise ValueError(
                f"the stop string {string!r} contains the special token {special[0]!r}, which "
                "texts leave out: give its id in `end_tokens`"
            )
    return stop


def _check_lengths(model: nn.Module, encoded: list[list[int]], max_new_tokens: int) -> None:
    config = model.config
    longest = getattr(config, "max_positions", getattr(config, "max_position_embeddings", None))
    for number, ids in enumerate(encoded):
        if not ids:
            raise ValueError(f"prompt {number} has no token: begin it with a text or a BOS")
        if longest is not None and len(ids) + max_new_tokens > longest + 1:
            raise ValueError(
                f"prompt {number} has {len(ids)} tokens, and {max_new_tokens} new ones do not fit "
                f"into the model's {longest}: use fewer examples, or a smaller max_new_tokens"
            )
