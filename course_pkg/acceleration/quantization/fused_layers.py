"""Fused projections: fewer, larger products, for a decoder that generates one token at a time.

A product over one token takes a tenth of a millisecond, and each operation around it some
microseconds. So q, k and v, which read the same vector, become one matrix, and so do gate and up.
vLLM and llama.cpp do this too. Modules call each other's `forward`: a module's call would look for
hooks first. An adapter needs the separate layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.lm.decoder import Attend, Attention, Decoder, Layer, RMSNorm, SwiGLU
from course_pkg.lm.rope import rotate


class FusedLayer(nn.Module):
    """`Layer` with fused parts."""

    def __init__(self, separate: Layer):
        super().__init__()
        self.input_layernorm = PairedRMSNorm(separate.input_layernorm)
        attention, mlp = separate.self_attn, separate.mlp
        plain = _are_plain(attention.q_proj, attention.k_proj, attention.v_proj)
        self.self_attn = FusedAttention(attention) if plain else attention
        self.post_attention_layernorm = PairedRMSNorm(separate.post_attention_layernorm)
        self.mlp = FusedSwiGLU(mlp) if _are_plain(mlp.gate_proj, mlp.up_proj) else mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn.forward(self.input_layernorm.forward(x), cos, sin, attend)
        return x + self.mlp.forward(self.post_attention_layernorm.forward(x))


class FusedAttention(nn.Module):
    """`Attention` with one projection for queries, keys and values."""

    def __init__(self, separate: Attention):
        super().__init__()
        self.layer = separate.layer
        self.head_dim = separate.head_dim
        self.heads = separate.q_proj.out_features // self.head_dim
        self.kv_heads = separate.k_proj.out_features // self.head_dim
        self.qkv_proj = below_each_other(separate.q_proj, separate.k_proj, separate.v_proj)
        self.o_proj = separate.o_proj

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        every = self.qkv_proj.forward(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        turned = self.heads + self.kv_heads
        both = rotate(every[:, :turned], cos, sin)  # (batch, heads + kv_heads, tokens, head_dim)
        query, key = both.split([self.heads, self.kv_heads], 1)
        read = attend(self.layer, query, key, every[:, turned:])
        return self.o_proj.forward(read.transpose(1, 2).flatten(2))


class FusedSwiGLU(nn.Module):
    """`SwiGLU` with one projection for gate and up."""

    def __init__(self, separate: SwiGLU):
        super().__init__()
        self.gate_up_proj = below_each_other(separate.gate_proj, separate.up_proj)
        self.down_proj = separate.down_proj

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj.forward(x).chunk(2, dim=-1)
        return self.down_proj.forward(F.silu(gate) * up)


class PairedRMSNorm(nn.Module):
    """`RMSNorm` by torch's kernel for LayerNorm, which it has in one piece.

    LayerNorm subtracts the mean and divides by the standard deviation. The numbers (x, −x) have the
    mean 0 and the variance mean(x²), so the first half of their LayerNorm is RMSNorm of x.
    """

    def __init__(self, separate: RMSNorm):
        super().__init__()
        self.eps = separate.eps
        self.weight = nn.Parameter(separate.weight.repeat(2), requires_grad=False)  # (2 · size,)
        self.size = len(separate.weight)
        self.both = (2 * self.size,)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x, -x], dim=-1)
        return F.layer_norm(both, self.both, self.weight, eps=self.eps)[..., : self.size]


def below_each_other(*layers: nn.Linear) -> nn.Linear:
    """One linear layer that gives the outputs of several, which read the same x, in their order."""
    widths = {layer.in_features for layer in layers}
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if len(widths) > 1 or len(biases) not in (0, len(layers)):
        raise ValueError(
            f"layers that read {sorted(widths)} features, {len(biases)} of {len(layers)} with a "
            "bias, can't be fused; they must read the same features, and all or none have a bias"
        )
    weight = torch.cat([layer.weight for layer in layers])
    fused = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return fused


@torch.no_grad()
def fuse(decoder: Decoder) -> Decoder:
    """Replace a decoder's layers by fused ones, in place; returns it.

    Layers with an adapter stay separate. Weights must not be quantized yet:
    `quantize_decoder(decoder, fused=True)` does both.
    """
    decoder.layers = nn.ModuleList(map(FusedLayer, decoder.layers))
    decoder.norm = PairedRMSNorm(decoder.norm)
    return decoder


def _are_plain(*layers: nn.Module) -> bool:
    """Whether the layers compute x Wᵀ + b only; a wrapped one, such as LoRA's, adds to it."""
    return all(type(layer) is nn.Linear for layer in layers)
