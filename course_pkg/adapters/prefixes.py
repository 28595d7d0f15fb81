"""Prefix tuning and P-tuning v2: trained keys and values at the start of every layer's cache::

    attention of layer l = softmax(q [K_l; k]^T / sqrt(d)) [V_l; v]

K_l and V_l are (num_virtual_tokens, heads · head_dim), counting key-value heads; the model never
rotates them. Li & Liang compute them with an MLP while training ("reparametrization"); P-tuning v2
trains them directly. Sources: Li & Liang 2021, "Prefix-Tuning: Optimizing Continuous Prompts for
Generation", section 4; Liu et al. 2022, "P-Tuning v2", section 3.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from course_pkg.adapters.virtual_tokens import TokenEncoder, VirtualTokenConfig, VirtualTokenModel
from course_pkg.common.arguments import require_bool, require_choice, require_integer

Init = Literal["random", "zero"]


@dataclass(frozen=True)
class PrefixTuningConfig(VirtualTokenConfig):
    """The settings of prefix tuning (reparametrize) and of P-tuning v2 (by default).

    Attributes:
        reparametrize: compute the prefix with an MLP while training.
        hidden_size: the MLP's inner width; by default the width of a layer's keys, as in PEFT.
        init: "random", or "zero" for a prefix of zeros, which has an effect too: the softmax gives
            a key with score 0 some weight.
    """

    reparametrize: bool = False
    hidden_size: int | None = None
    init: Init = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bool(self.reparametrize, "reparametrize")
        if self.hidden_size is not None:
            require_integer(self.hidden_size, "hidden_size")
        require_choice(self.init, "init", get_args(Init))


class CacheShape(NamedTuple):
    """The sizes of a model's KV cache; `heads` are key-value heads."""

    layers: int
    heads: int
    head_dim: int


def cache_shape(config: PreTrainedConfig) -> CacheShape:
    """Layers, key-value heads and their size, which must be the same in every layer."""
    text = config.get_text_config()
    other = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    settings = ("kv_lora_rank", "global_head_dim", "num_kv_shared_layers", "multi_query")
    other |= {name for name in settings if getattr(text, name, None)}
    if other:
        raise ValueError(
            "prefix tuning needs keys and values of one shape in every layer; "
            f"{type(text).__name__} has {', '.join(sorted(other))}; try prompt tuning"
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return CacheShape(text.num_hidden_layers, heads, size)


class PrefixMLP(TokenEncoder):
    """Computes the prefix of all layers, (num_virtual_tokens, layers · 2 · heads · head_dim).

    A row holds a token's keys of layer 0, its values of layer 0, its keys of layer 1, and so on.
    """

    def forward(self) -> Tensor:
        """tanh(embedding · down^T + down_bias) · up^T + up_bias."""
        hidden = torch.tanh(nn.functional.linear(self.embedding, self.down, self.down_bias))
        return nn.functional.linear(hidden, self.up, self.up_bias)


class PrefixTunedModel(VirtualTokenModel):
    """A frozen language model with any number of named prefixes, one of them active.

    The trained weights are `encoders[name]`'s, in fp32 (fp64 for a model in fp64); the prefix is
    cast to the model's dtype. In a layer with sliding-window attention, only tokens within the
    window see the prefix.
    """

    config_type = PrefixTuningConfig
    method = "prefix tuning"

    def new_encoder(self, config: PrefixTuningConfig, generator: torch.Generator) -> TokenEncoder:
        """A standard normal prefix or embedding and PyTorch's usual linear layers, as in PEFT."""
        layers, heads, size = cache_shape(self.config)
        n = config.num_virtual_tokens
        keys = heads * size  # the width of a layer's keys
        width = layers * 2 * keys

        def normal(columns: int) -> Tensor:
            empty = torch.empty(n, columns, dtype=self.adapter_dtype())
            return empty.normal_(generator=generator)

        def uniform(*sizes: int, fan_in: int) -> Tensor:
            bound = 1 / math.sqrt(fan_in)
            empty = torch.empty(sizes, dtype=self.adapter_dtype())
            return empty.uniform_(-bound, bound, generator=generator)

        factor = 0.0 if config.init == "zero" else 1.0
        if not config.reparametrize:
            return TokenEncoder(prompt_embeddings=factor * normal(width))
        h = config.hidden_size or keys
        return PrefixMLP(
            embedding=normal(keys),
            down=uniform(h, keys, fan_in=keys),
            down_bias=uniform(h, fan_in=keys),
            up=factor * uniform(width, h, fan_in=h),
            up_bias=factor * uniform(width, fan_in=h),
        )

    def drop_reparametrization(self) -> None:
        """Replace every MLP with the prefix that it computes, after training; the outputs stay."""
        for name, encoder in self.encoders.items():
            self.set_embeddings(name, encoder())

    def add_virtual_tokens(self, inputs: dict[str, Any], encoder: nn.Module) -> dict[str, Any]:
        """Put the prefix into the empty cache."""
        modules = self.base.modules() if self.training else ()
        if any(getattr(module, "gradient_checkpointing", False) for module in modules):
            raise RuntimeError(
                "gradient checkpointing drops the cache, and the prefix with it; call "
                "model.base.gradient_checkpointing_disable(), or use prompt tuning"
            )
        text = inputs.get("inputs_embeds")
        batch = len(inputs["input_ids"] if text is None else text)
        shape = cache_shape(self.config)
        prefix = encoder().to(self.base.dtype)
        prefix = prefix.view(-1, shape.layers, 2, shape.heads, shape.head_dim)
        prefix = prefix.permute(1, 2, 3, 0, 4)  # (layers, K and V, heads, n, head_dim)
        cache = inputs.get("past_key_values")
        cache = DynamicCache(config=self.config) if cache is None else cache
        for layer, (K, V) in enumerate(prefix):
            expanded = (t.expand(batch, -1, -1, -1) for t in (K, V))
            cache.update(*expanded, layer)
        return {**inputs, "past_key_values": cache}

    @classmethod
    def file_settings(cls, base: PreTrainedModel) -> dict[str, int]:
        layers, heads, size = cache_shape(base.config)
        return {"token_dim": heads * size, "num_attention_heads": heads, "num_layers": layers}

    @classmethod
    def width(cls, base: PreTrainedModel) -> int:
        """Keys and values of every layer: layers · 2 · heads · head_dim."""
        layers, heads, size = cache_shape(base.config)
        return layers * 2 * heads * size
