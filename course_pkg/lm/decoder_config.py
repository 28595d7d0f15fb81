"""The sizes and settings of a decoder, from a config.json of transformers 4 or 5.

What `course_pkg.lm.decoder` lacks is refused: other families than Llama, Mistral and Qwen2, other
activations, rotations of a part of a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_pkg.lm.model_errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2")
SIZES = (  # in the order of DecoderConfig's first fields
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
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

    Attributes:
        max_positions: the longest sequence of the training, for the scalings of RoPE that need it.
        rope: "rope_type", "rope_theta", "original_max_position_embeddings", and what the type
            needs.
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
        return self.windows[layer]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "DecoderConfig":
        """The settings in a config.json; what it leaves out has transformers' default."""
        family = config.get("model_type")
        _need(family in FAMILIES, f"model_type is {family!r}", f"one of {', '.join(FAMILIES)}")
        optional = [name for name in ("num_key_value_heads", "head_dim") if config.get(name)]
        for name in (*SIZES, *optional):
            size = config.get(name)
            _need(isinstance(size, int) and size > 0, f"{name} is {size!r}", "a positive integer")
        act = config.get("hidden_act", "silu")
        _need(act == "silu", f"hidden_act is {act!r}", "silu")
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        ratio = f"num_key_value_heads is {kv_heads}"
        _need(heads % kv_heads == 0, ratio, f"a divisor of {heads} heads")
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        _need(head_dim % 2 == 0, f"head_dim is {head_dim}", "an even number, for RoPE's pairs")
        attention_bias = family == "llama" and bool(config.get("attention_bias", False))
        return cls(
            *(config[name] for name in SIZES),
            kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope=_rope(config, head_dim),
            windows=_windows(config),
            tied=config.get("tie_word_embeddings", False),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        )


def _rope(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """RoPE's settings in one dictionary; transformers 4 has them in two places."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    kind = rope["rope_type"] = rope.get("rope_type") or rope.pop("type", "default")
    _need(
        kind in ROPE_TYPES and not any(isinstance(value, dict) for value in rope.values()),
        f"RoPE's settings are {rope!r:.80}",
        f"one rope_type for all layers: {', '.join(ROPE_TYPES)}",
    )
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    _need(part == 1, f"partial_rotary_factor is {part}", "1: RoPE rotates whole heads")
    rope["rope_theta"] = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    rope["original_max_position_embeddings"] = (
        config.get("original_max_position_embeddings")
        or rope.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    for name in ROPE_TYPES[kind]:
        value = rope.get(name)
        if name in ("short_factor", "long_factor"):
            fits = isinstance(value, list) and len(value) == head_dim // 2
            _need(fits, f"RoPE's {name} is {value!r:.40}", f"{head_dim // 2} numbers")
        else:
            _need(isinstance(value, int | float), f"RoPE's {name} is {value!r}", "a number")
    return rope


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each layer's window: Mistral has one for all layers, Qwen2 for the layers that it names."""
    layers = config["num_hidden_layers"]
    window = config.get("sliding_window", 4096)
    slides = [config["model_type"] == "mistral"] * layers
    if config["model_type"] == "qwen2":
        if not config.get("use_sliding_window", False):
            window = None
        first = layers if window is None else config.get("max_window_layers", 28)
        types = config.get("layer_types") or [
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


def _need(holds: Any, setting: str, expected: str) -> None:
    if not holds:
        raise ModelError(
            f"the decoder cannot run this config: {setting}, expected {expected}; use transformers"
        )
