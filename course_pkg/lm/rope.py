"""Rotary position embedding (RoPE): queries and keys are rotated by angles that grow with position.

The types of scaling are those of transformers: linear, dynamic, llama3, yarn and longrope.
Sources: RoFormer (Su et al. 2021), YaRN (Peng et al. 2023), LongRoPE (Ding et al. 2024).
"""

import math

import torch
from torch import Tensor

from course_pkg.lm.decoder_config import DecoderConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + head_dim/2}) by its angle; a rotation keeps lengths.

    Args:
        x: (batch, heads, tokens, head_dim). The product of a rotated query and a rotated key
            depends only on the distance between their positions.

    >>> rotate(torch.tensor([1.0, 0.0]), torch.tensor([0.6]), torch.tensor([0.8]))
    tensor([0.6000, 0.8000])
    """
    first, second = x.chunk(2, dim=-1)  # (batch, heads, tokens, head_dim/2) each
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(rotated, dim=-1)  # (batch, heads, tokens, head_dim)


def rotation(config: DecoderConfig, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RoPE's cosines and sines, (batch or 1, 1, tokens, head_dim/2).

    Args:
        positions: (tokens,) or (batch, tokens). "dynamic" and "longrope" depend on the longest one.
    """
    length = 0
    if config.rope["rope_type"] in ("dynamic", "longrope") and positions.numel():
        length = int(positions.max()) + 1
    frequencies, scale = rope_frequencies(config, length)
    positions = torch.atleast_2d(positions)[:, None, :, None]  # (batch or 1, 1, tokens, 1)
    angles = positions * frequencies.to(positions.device)  # (batch or 1, 1, tokens, head_dim/2)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rope_frequencies(config: DecoderConfig, length: int = 0) -> tuple[Tensor, float]:
    """The angle per position of each pair of dimensions, (head_dim/2,); a factor on cos and sin.

    Pair i turns by theta ** (-2i / head_dim) per position. To reach beyond the `original` length of
    the training, a scaling slows the pairs down: all alike (linear), by a larger theta (dynamic
    NTK), only those that turn rarely within that length (llama3, yarn), or by a list (longrope).

    Args:
        length: the number of positions in use, for dynamic and longrope.
    """
    rope = config.rope
    dim = config.head_dim
    theta = rope["rope_theta"]
    original = rope["original_max_position_embeddings"]
    exponents = torch.arange(0, dim, 2) / dim  # (head_dim/2,)
    frequencies = 1 / theta**exponents  # (head_dim/2,)
    factor = rope.get("factor") or config.max_positions / original
    match rope["rope_type"]:
        case "linear":
            return frequencies / factor, 1.0
        case "dynamic":
            excess = max(length / config.max_positions, 1) - 1
            theta *= (1 + factor * excess) ** (dim / (dim - 2))
            return 1 / theta**exponents, 1.0
        case "llama3":
            low = rope["low_freq_factor"]
            high = rope["high_freq_factor"]
            turns = original * frequencies / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: turns often, stays as it is
            return frequencies * (kept + (1 - kept) / factor), 1.0
        case "yarn":
            kept = 1 - _yarn_ramp(rope, dim)
            return frequencies * (kept + (1 - kept) / factor), _yarn_scale(rope, factor)
        case "longrope":
            slower = torch.tensor(rope["long_factor" if length > original else "short_factor"])
            scale = math.sqrt(1 + math.log(max(factor, 1)) / math.log(original))
            return frequencies / slower, rope.get("attention_factor") or scale
    return frequencies, 1.0


def _yarn_ramp(rope: dict, dim: int) -> Tensor:
    """0 for pairs that turn beta_fast times or more, 1 for beta_slow or fewer: (head_dim/2,)."""
    original = rope["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return dim / 2 * math.log(original / (times * 2 * math.pi), rope["rope_theta"])

    first = pair_that_turns(rope.get("beta_fast") or 32)
    last = pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, dim - 1)
    return ((torch.arange(dim // 2) - first) / ((last - first) or 0.001)).clamp(0, 1)


def _yarn_scale(rope: dict, factor: float) -> float:
    """The factor on cos and sin: 0.1 ln(factor) + 1 unless the config says otherwise."""
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    grow = math.log(max(factor, 1)) / 10
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return (rope["mscale"] * grow + 1) / (rope["mscale_all_dim"] * grow + 1)
    return grow + 1
