"""`perplexity/batch`: the NLL of every text of a padded batch, in one forward pass.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from course_pkg.metrics.perplexity.token_scores import token_log_probs

from ...contract.compare import array, exactly, parts
from ...contract.questions import Misconception, Property, Question
from .ask import call_batch
from .models import VOCABULARY, build_model, real_tokens

LLAMA_BYTES = 256  # ids of the tiny tokenizer that stand for text
PAD = 0
close, count = array(rtol=1e-4), array(rtol=1e-9)
both = {"nll": close, "tokens": count}


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """What each text costs alone, without any pad."""
    ids, mask = (torch.from_numpy(inputs[name].numpy()) for name in ("input_ids", "attention_mask"))
    scores = token_log_probs(build_model(inputs["model"]), real_tokens(ids, mask), batch_size=1)
    return {
        "nll": torch.stack([-score.double().sum() for score in scores]),
        "tokens": torch.tensor([len(score) for score in scores]).double(),
        "passes": 1,
    }


def batch_nll(
    model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, fault: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """The NLL and tokens of each text with at most one known fault; without any it is right."""
    positions = None
    if fault != "no-positions":
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    seen = None if fault == "no-mask" else attention_mask
    with torch.no_grad():
        outputs = model(input_ids=input_ids, attention_mask=seen, position_ids=positions)
    targets = input_ids[:, 1:, None]
    costs = -outputs.logits[:, :-1].log_softmax(-1).gather(-1, targets)[..., 0]
    real = input_ids != PAD if fault == "by-id" else attention_mask == 1
    match fault:
        case "unmasked":
            scored = torch.ones_like(real[:, 1:])
        case "after-pads":
            scored = real[:, 1:]
        case "before-pads":
            scored = real[:, :-1]
        case _:
            scored = real[:, 1:] & real[:, :-1]
    nll, tokens = (costs * scored).sum(-1), scored.sum(-1)
    return (nll / tokens if fault == "mean" else nll), tokens


def _wrong(fault: str) -> Any:
    return lambda inputs: call_batch(lambda *given: batch_nll(*given, fault), inputs)


def _case(
    rng: np.random.Generator, kind: str, lengths: list[int], side: str, certain: bool = False
) -> dict[str, Any]:
    """A batch of texts of the given lengths, none of which holds the pad's id."""
    most = max(lengths)
    ids, mask = np.full((2, len(lengths), most), PAD)
    for row, length in enumerate(lengths):
        place = slice(length) if side == "right" else slice(most - length, most)
        ids[row, place] = rng.integers(1, LLAMA_BYTES if kind == "llama" else VOCABULARY, length)
        mask[row, place] = 1
    return {
        "model": {"kind": kind, "seed": int(rng.integers(2**31))},
        "pad": PAD,
        "pads_add_nothing": certain,
        "input_ids": ids,
        "attention_mask": mask,
    }


def _lengths(rng: np.random.Generator, size: int) -> list[int]:
    """Two to four different lengths, 3 at least, in any order."""
    return rng.choice(np.arange(3, 9), size=2 + size, replace=False).tolist()


def draw_whole(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Texts of one length, so without pads."""
    return _case(rng, "llama", [3 + size] * (2 + size), "right")


def draw_pads(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Right padding, on a Llama: only the loss needs a mask; a text holds the pad's id."""
    case = _case(rng, "llama", _lengths(rng, size), "right")
    case["input_ids"][int(rng.integers(2 + size)), int(rng.integers(1, 3))] = PAD
    return {**case, "leave_unchanged": True}


def draw_attention(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Left padding, on a Llama, whose positions are relative: only attention to pads shows."""
    return _case(rng, "llama", _lengths(rng, size), "left", certain=True)


def draw_positions(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Left padding, on a model with absolute positions and no attention; the longest text, which
    has no pad, comes first in one case and last in another."""
    lengths = sorted(_lengths(rng, size), reverse=size != 1)
    return _case(rng, "bigram with positions", lengths, "left", certain=True)


def draw_first(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Left padding, on a model without positions or attention: only what is scored shows."""
    return _case(rng, "bigram", _lengths(rng, size), "left")


BATCH = Question(
    name="batch",
    expected=expected,
    compare=parts(both),
    properties=(
        Property(
            "whole",
            1,
            "without pads: each text's total NLL and scored tokens, in one forward pass",
            "Sum over the positions of each row, not over the batch; and no mean.",
            draw_whole,
            compare=parts({**both, "passes": exactly()}),
        ),
        Property(
            "pads",
            2,
            "pads are not scored, and a real token with the pad's id is",
            "Multiply the costs by attention_mask[:, 1:]: the mask says what is a pad, the id "
            "does not. Write nothing into the tensors that you are given.",
            draw_pads,
        ),
        Property(
            "attention",
            1,
            "with left padding, the text's tokens don't attend to pads",
            "Hand the attention mask to the model.",
            draw_attention,
            compare=parts({"nll": close}),
        ),
        Property(
            "positions",
            2,
            "with left padding, the text's first token is at position 0",
            "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0): without it the model "
            "counts from the left edge, pads included.",
            draw_positions,
            compare=parts({"nll": close}),
        ),
        Property(
            "first",
            1,
            "with left padding, the text's first token is still not scored",
            "It stands after a pad, which predicts nothing. A token is scored if it is real and "
            "the one before it is too.",
            draw_first,
        ),
    ),
    misconceptions=(
        Misconception(
            "unmasked",
            "you scored the pads too",
            _wrong("unmasked"),
            ("pads", "first"),
        ),
        Misconception(
            "by-id",
            "you took every token with the pad's id for a pad; one of them belongs to the text",
            _wrong("by-id"),
            ("pads",),
        ),
        Misconception(
            "before-pads",
            "you masked by attention_mask[:, :-1], the token that predicts; a pad after the text "
            "is then scored",
            _wrong("before-pads"),
            ("pads",),
        ),
        Misconception(
            "no-mask",
            "the model attended to the pads: it was not given the attention mask",
            _wrong("no-mask"),
            ("attention",),
        ),
        Misconception(
            "no-positions",
            "positions were counted from the left edge, pads included",
            _wrong("no-positions"),
            ("positions",),
        ),
        Misconception(
            "after-pads",
            "you scored each text's first token too, as if the pad before it predicted it",
            _wrong("after-pads"),
            ("first",),
        ),
        Misconception(
            "mean",
            "you gave the mean of each text; the total was asked for",
            _wrong("mean"),
            ("whole", "pads", "attention", "positions", "first"),
        ),
    ),
)
