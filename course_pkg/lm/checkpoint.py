"""Checkpoints of the Llama, Mistral and Qwen2 families: config.json and .safetensors files.

`DecoderConfig.from_dict` turns a config.json of transformers 4 or 5 into the settings of
`course_pkg.lm.decoder`, and `read_folder` adds the tensors. What the decoder lacks is refused:
other architectures and activations, rotations of a part of a head, quantized weights.

Chapter: serving/kv-cache.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from course_pkg.lm.errors import CorruptModelError, ModelError
from course_pkg.lm.unmerged import refuse_adapters

FAMILIES = ("llama", "mistral", "qwen2")
SIZES = (  # in the order of DecoderConfig's first fields
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
ROPE_TYPES = {  # the settings that each needs besides rope_theta
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes and settings of a decoder.

    max_positions: the longest sequence of the training, for the scalings of RoPE that need it.
    rope: "rope_type", "rope_theta", "original_max_position_embeddings", and what the type needs.
    windows: for each layer, how many tokens a token sees, itself included; None means all.
    tied: the output matrix is the embedding matrix.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    max_positions: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: dict[str, Any]
    windows: tuple[int | None, ...]
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    def window(self, layer: int) -> int | None:
        """How many tokens a token sees in this layer, itself included; None means all."""
        return self.windows[layer]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "DecoderConfig":
        """The settings in a config.json; what it leaves out has transformers' default.

        Raises ModelError if it is no Llama, Mistral or Qwen2, if a size is missing or does not
        fit the others, or if the decoder lacks one of its features.

        >>> sizes = dict(vocab_size=9, hidden_size=8, intermediate_size=16, num_hidden_layers=2)
        >>> rest = dict(num_attention_heads=4, max_position_embeddings=64, sliding_window=5)
        >>> config = DecoderConfig.from_dict({"model_type": "mistral"} | sizes | rest)
        >>> config.head_dim, config.window(0)
        (2, 5)
        """
        family = given.get("model_type")
        _need(family in FAMILIES, f"model_type is {family!r}", f"one of {', '.join(FAMILIES)}")
        optional = [name for name in ("num_key_value_heads", "head_dim") if given.get(name)]
        for name in (*SIZES, *optional):
            size = given.get(name)
            _need(isinstance(size, int) and size > 0, f"{name} is {size!r}", "a positive integer")
        act = given.get("hidden_act", "silu")
        _need(act == "silu", f"hidden_act is {act!r}", "silu")
        hidden, heads = given["hidden_size"], given["num_attention_heads"]
        kv_heads = given.get("num_key_value_heads") or heads
        _need(
            heads % kv_heads == 0,
            f"num_key_value_heads is {kv_heads}",
            f"a divisor of {heads} heads",
        )
        head_dim = given.get("head_dim") or hidden // heads
        _need(head_dim % 2 == 0, f"head_dim is {head_dim}", "an even number, for RoPE's pairs")
        return cls(
            *(given[name] for name in SIZES),
            kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=given.get("rms_norm_eps", 1e-6),
            rope=_rope(given, head_dim),
            windows=_windows(given),
            tied=given.get("tie_word_embeddings", False),
            qkv_bias=family == "qwen2" or _llama_bias(given, "attention_bias"),
            output_bias=_llama_bias(given, "attention_bias"),
            mlp_bias=_llama_bias(given, "mlp_bias"),
        )


def read_folder(folder: str | Path) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The settings and the tensors of a checkpoint, in one or several .safetensors files.

    Raises ModelError if the folder is no checkpoint that the decoder can run, CorruptModelError if
    a file cannot be read or one that the index names is missing.
    """
    path = Path(folder).expanduser()
    files = {file.name: file for file in sorted(path.glob("*.safetensors"))}
    if not (path / "config.json").is_file() or not files:
        raise ModelError(
            f"{path} is no checkpoint: expected a folder with config.json and .safetensors files, "
            "as save_pretrained writes it"
        )
    try:
        given = json.loads((path / "config.json").read_bytes())
        index = path / "model.safetensors.index.json"
        if index.is_file():
            named = set(json.loads(index.read_bytes())["weight_map"].values())
            if named - files.keys():
                raise CorruptModelError(
                    f"{path} lacks {min(named - files.keys())}, which {index.name} names: "
                    "copy the whole folder again"
                )
            files = {name: files[name] for name in sorted(named)}
        if not isinstance(given, dict):
            raise ValueError("config.json is no dictionary")
        tensors = {name: t for file in files.values() for name, t in load_file(file).items()}
    except (ValueError, KeyError, SafetensorError) as error:
        raise CorruptModelError(f"{path} cannot be read ({error}): copy it again") from error
    return DecoderConfig.from_dict(given), tensors


def fitted(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], tied: bool
) -> dict[str, Tensor]:
    """The tensors under the decoder's names: exactly those in `shapes`, with these shapes.

    A checkpoint's names begin with "model."; old ones also store RoPE's frequencies, and tied ones
    may store the embeddings a second time, as lm_head. Raises CorruptModelError if tensors are
    missing, unknown or of the wrong shape, or if tied tensors differ, and ModelError if they
    include an adapter that is not merged.

    >>> sorted(fitted({"model.norm.weight": torch.ones(3)}, {"norm.weight": (3,)}, tied=False))
    ['norm.weight']
    """
    refuse_adapters(tensors, tied=tied)
    found = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    if tied and (head := found.pop("lm_head.weight", None)) is not None:
        embeddings = found.get("embed_tokens.weight")
        if embeddings is not None and not torch.equal(head, embeddings):
            raise CorruptModelError(
                "lm_head.weight differs from embed_tokens.weight, but the config ties them: "
                "set tie_word_embeddings to false"
            )
    if missing := sorted(shapes.keys() - found.keys()):
        raise CorruptModelError(f"the checkpoint lacks {_listed(missing)}: copy it again")
    if surplus := sorted(found.keys() - shapes.keys()):
        raise CorruptModelError(
            f"the decoder has no {_listed(surplus)}: give a checkpoint that is not quantized, and "
            "whose config.json belongs to it"
        )
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise CorruptModelError(
                f"{name} has shape {tuple(found[name].shape)}, expected {tuple(shape)}: "
                "config.json belongs to another checkpoint"
            )
    return found


def _rope(given: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """RoPE's settings in one dictionary; transformers 4 has them in two places."""
    rope = dict(given.get("rope_scaling") or given.get("rope_parameters") or {})
    kind = rope["rope_type"] = rope.get("rope_type") or rope.pop("type", "default")
    _need(
        kind in ROPE_TYPES and not any(isinstance(value, dict) for value in rope.values()),
        f"RoPE's settings are {rope!r:.80}",
        f"one rope_type for all layers: {', '.join(ROPE_TYPES)}",
    )
    part = rope.get("partial_rotary_factor", given.get("partial_rotary_factor")) or 1.0
    _need(part == 1, f"partial_rotary_factor is {part}", "1: RoPE rotates whole heads")
    rope["rope_theta"] = rope.get("rope_theta") or given.get("rope_theta") or 10000.0
    rope["original_max_position_embeddings"] = (
        given.get("original_max_position_embeddings")
        or rope.get("original_max_position_embeddings")
        or given["max_position_embeddings"]
    )
    for name in ROPE_TYPES[kind]:
        value = rope.get(name)
        if name in ("short_factor", "long_factor"):
            fits = isinstance(value, list) and len(value) == head_dim // 2
            _need(fits, f"RoPE's {name} is {value!r:.40}", f"{head_dim // 2} numbers")
        else:
            _need(isinstance(value, int | float), f"RoPE's {name} is {value!r}", "a number")
    return rope


def _windows(given: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each layer's window: Mistral has one for all layers, Qwen2 for the layers that it names."""
    layers, window = given["num_hidden_layers"], given.get("sliding_window", 4096)
    slides = [given["model_type"] == "mistral"] * layers
    if given["model_type"] == "qwen2":
        if not given.get("use_sliding_window", False):
            window = None
        first = layers if window is None else given.get("max_window_layers", 28)
        types = given.get("layer_types") or [
            "full_attention" if layer < first else "sliding_attention" for layer in range(layers)
        ]
        known = {"full_attention": False, "sliding_attention": True}
        fits = len(types) == layers and set(types) <= known.keys()
        _need(fits, f"layer_types is {types!r:.80}", f"{layers} of {', '.join(known)}")
        slides = [known[kind] for kind in types]
        _need(window or not any(slides), "layers slide, but sliding_window is off", "its size")
    usable = window is None or (isinstance(window, int) and window > 0)
    _need(usable or not any(slides), f"sliding_window is {window!r}", "a positive integer or null")
    return tuple(window if slide else None for slide in slides)


def _llama_bias(given: Mapping[str, Any], name: str) -> bool:
    return given["model_type"] == "llama" and bool(given.get(name, False))


def _need(holds: Any, found: str, expected: str) -> None:
    if not holds:
        raise ModelError(
            f"the decoder cannot run this config: {found}, expected {expected}; use transformers"
        )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more tensors"
