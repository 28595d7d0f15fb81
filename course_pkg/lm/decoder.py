"""A Llama-style decoder in one file: it runs Llama, Mistral and Qwen2 checkpoints, such as SmolLM2.

How tokens see each other is an argument: `attend(layer, query, key, value)` gets one layer's heads
and returns what each query has read. The default, `causal_attend`, lets a token see itself and the
tokens before it in the same call; a cache (`course_pkg.serving.kv_cache`) adds earlier calls.

Shapes: "hidden" is the width of a vector; a layer has "heads" query heads of width "head_dim", and
"kv_heads" key and value heads, each shared by heads / kv_heads query heads. Modules have the names
of a checkpoint's tensors. Not here: reading files, tokenizers, sampling, dropout.

Sources: Llama 2 (Touvron et al. 2023), RMSNorm (Zhang and Sennrich 2019), RoPE (Su et al. 2021),
SwiGLU (Shazeer 2020), grouped queries (Ainslie et al. 2023).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.lm.load import pick_device
from course_pkg.lm.pretrained import fitted, read_folder, refuse_adapters
from course_pkg.lm.rope import rotate, rotation

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Decoder(nn.Module):
    """A decoder with random weights; `from_folder` and `from_transformers` give trained ones."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        attend: Attend | None = None,
        last_only: bool = False,
        rows: slice | Tensor = slice(None),
    ) -> Tensor:
        """The logits of each next token, (batch, tokens, vocab); last_only: (batch, 1, vocab).

        Args:
            ids: (batch, tokens).
            positions: (tokens,) or (batch, tokens); None means 0, 1, 2, …, so give
                `cache.positions(tokens)` if a cache holds earlier tokens.
            attend: a function of layer, query (batch, heads, tokens, head_dim), key and value
                (batch, kv_heads, tokens, head_dim) that returns the shape of the query; None means
                `causal_attend(config)`.
            rows: the tokens whose next ones are scored; all by default.
        """
        if positions is None:
            positions = torch.arange(ids.shape[-1], device=ids.device)  # (tokens,)
        if ids.dim() != 2 or positions.shape not in (ids.shape, ids.shape[1:]):
            raise ValueError(
                f"ids {tuple(ids.shape)}, positions {tuple(positions.shape)}: expected ids of "
                "shape (batch, tokens) and positions of shape (tokens,) or (batch, tokens)"
            )
        attend = attend or causal_attend(self.config)
        x = self.embed_tokens(ids)  # (batch, tokens, hidden)
        cos, sin = rotation(self.config, positions.to(x.device), x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        x = x[:, slice(-1, None) if last_only else rows]  # (batch, rows, hidden)
        x = self.norm(x)
        if hasattr(self, "lm_head"):
            return self.lm_head(x)  # (batch, rows, vocab)
        return F.linear(x, self.embed_tokens.weight)  # tied

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "Decoder":
        """The decoder in a folder with config.json and one or several .safetensors files.

        Args:
            device: None means the CPU, "auto" means a GPU if there is one.
        """
        config, tensors = read_folder(folder)
        return cls._of(config, tensors).to(pick_device(device), dtype)

    @classmethod
    def from_transformers(cls, model: nn.Module) -> "Decoder":
        """The decoder for a transformers model, whose tensors and quantized layers it shares."""
        if not hasattr(model, "config"):
            raise TypeError(f"expected a transformers model, got {type(model).__name__}")
        config = DecoderConfig.from_dict(model.config.to_dict())
        tensors = model.state_dict()
        refuse_adapters(tensors, tied=config.tied)
        quantized = {
            name.removeprefix("model."): module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and not module.weight.is_floating_point()
        }
        prefixes = tuple(f"{path}." for path in quantized)
        tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if not name.removeprefix("model.").startswith(prefixes)
        }
        return cls._of(config, tensors, quantized)

    @classmethod
    def _of(
        cls,
        config: DecoderConfig,
        tensors: dict[str, Tensor],
        quantized: Mapping[str, nn.Linear] = MappingProxyType({}),
    ) -> "Decoder":
        with torch.device("meta"):  # parameters without memory, replaced below
            decoder = cls(config)
        for path in quantized:
            decoder.set_submodule(path, nn.Identity())
        shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
        decoder.load_state_dict(fitted(tensors, shapes, config.tied), assign=True)
        for path, layer in quantized.items():
            decoder.set_submodule(path, layer)
        return decoder.eval()


class Layer(nn.Module):
    """Attention, then SwiGLU; each reads a normalized copy of x, and its result is added to x."""

    def __init__(self, config: DecoderConfig, index: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x and the result: (batch, tokens, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    """The projections around `attend`, and the rotation of queries and keys."""

    def __init__(self, config: DecoderConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        hidden = config.hidden_size
        wide = config.heads * config.head_dim
        narrow = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(hidden, wide, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, narrow, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, narrow, bias=config.qkv_bias)
        self.o_proj = nn.Linear(wide, hidden, bias=config.output_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x and the result: (batch, tokens, hidden)."""
        query = self._split(self.q_proj(x))  # (batch, heads, tokens, head_dim)
        key = self._split(self.k_proj(x))  # (batch, kv_heads, tokens, head_dim)
        value = self._split(self.v_proj(x))  # (batch, kv_heads, tokens, head_dim)
        both = rotate(torch.cat([query, key], 1), cos, sin)  # in one pass
        query, key = both.split([query.shape[1], key.shape[1]], 1)
        read = attend(self.layer, query, key, value)
        read = read.transpose(1, 2).flatten(2)  # (batch, tokens, heads * head_dim)
        return self.o_proj(read)  # (batch, tokens, hidden)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (b, n, tokens, head_dim)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), at each token by itself."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.up_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.down_proj = nn.Linear(*reversed(sizes), bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: (batch, tokens, hidden)."""
        inner = F.silu(self.gate_proj(x)) * self.up_proj(x)  # (batch, tokens, intermediate)
        return self.down_proj(inner)  # (batch, tokens, hidden)


class RMSNorm(nn.Module):
    """x divided by its root mean square, computed in fp32 or better, times a learned weight."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: (…, size)."""
        # torch computes x / sqrt(mean(x²) + eps) in fp32 and rounds it, then comes the weight.
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


def causal_attend(config: DecoderConfig, key_mask: Tensor | None = None) -> Attend:
    """An `attend` in which a token sees itself and the tokens before it, within the layer's window.

    Args:
        key_mask: (batch, tokens), true at real tokens; nothing sees padding, and the logits at
            padding mean nothing.
    """

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens = query.shape[2]
        window = config.window(layer)
        if key_mask is None and (window is None or window >= tokens):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
        i = torch.arange(tokens, device=query.device)[:, None]  # (tokens, 1), queries
        j = i.mT  # (1, tokens), keys
        seen = (j <= i) & (j > i - (window or tokens))  # (tokens, tokens)
        if key_mask is not None:
            if key_mask.shape != (query.shape[0], tokens):
                expected = (query.shape[0], tokens)
                raise ValueError(f"key_mask is {tuple(key_mask.shape)}, expected {expected}")
            seen = seen & key_mask.bool()[:, None, None]  # (batch, 1, tokens, tokens)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)

    return attend
