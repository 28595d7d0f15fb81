"""A whole decoder with weights in 8 or 4 bits, for inference: what the engine serves faster.

The head is a copy of the embeddings where the two are tied, so that only the copy is quantized. The
embeddings, the norms and the activations are in bf16, for which torch has fast kernels
(`cpu_kernels`).
"""

import copy

import torch
from torch import nn

from course_pkg.acceleration.quantization.fused_layers import fuse
from course_pkg.acceleration.quantization.gguf_blocks import FORMATS as GGUF_FORMATS
from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.int8 import int8_weight
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.common.arguments import require_choice
from course_pkg.lm.decoder import Decoder

FORMATS = ("int8", "int4")
INT4 = "Q4_1"  # blocks of 32 with a scale and a minimum, 5 bits per weight
BLOCK = GGUF_FORMATS[INT4].size


@torch.no_grad()
def quantize_decoder(
    decoder: Decoder,
    weights: str = "int8",
    dtype: torch.dtype | None = None,
    *,
    fused: bool = False,
) -> Decoder:
    """A decoder with quantized weights; the given one stays as it is.

    Args:
        weights: "int8": every linear layer, one scale per row; "int4": llama.cpp's Q4_1 for the
            layers of the blocks, int8 for the head.
        dtype: of everything else; None for the decoder's, if it has 16 bits, and bf16 otherwise.
        fused: fewer, larger products (`fused_layers`), which take no adapters.
    """
    require_choice(weights, "weights", FORMATS)
    if not isinstance(decoder, Decoder):
        raise TypeError(
            f"expected a Decoder, got {type(decoder).__name__}; Decoder.from_transformers gives one"
        )
    own = decoder.embed_tokens.weight.dtype
    dtype = dtype or (own if own.itemsize == 2 else torch.bfloat16)
    layers = [module for module in decoder.modules() if isinstance(module, nn.Linear)]
    unchanged = {id(layer.weight): layer.weight for layer in layers}  # they are replaced below
    unchanged.pop(id(decoder.embed_tokens.weight), None)  # a head may share it, but it stays
    quantized = copy.deepcopy(decoder, unchanged)
    if not hasattr(quantized, "lm_head"):
        vocab, hidden = quantized.embed_tokens.weight.shape
        quantized.lm_head = nn.Linear(hidden, vocab, bias=False, device="meta")
        quantized.lm_head.weight = nn.Parameter(decoder.embed_tokens.weight, requires_grad=False)
    for name, layer in _linear_layers(quantized).items():
        if not layer.weight.is_floating_point():
            raise ValueError(f"{name} is quantized already; give the decoder with its own weights")
    if fused:
        fuse(quantized)
    for name, layer in _linear_layers(quantized).items():
        if weights == "int4" and name != "lm_head" and layer.in_features % BLOCK:
            raise ValueError(
                f"{name} has rows of {layer.in_features} weights, which blocks of {BLOCK} do not "
                'divide: use "int8"'
            )
        weight = layer.weight.to(torch.float32)
        if weights == "int8" or name == "lm_head":
            stored = int8_weight(weight)
        else:
            stored = write_gguf(weight, INT4)
        quantized.set_submodule(name, QuantizedLinear(stored, layer.bias))
    return quantized.to(dtype).eval()


def freeze(decoder: Decoder) -> Decoder:
    """The decoder, whose weights don't change any more, with its quantized layers frozen."""
    for module in decoder.modules():
        if isinstance(module, QuantizedLinear):
            module.freeze()
    return decoder


def _linear_layers(decoder: Decoder) -> dict[str, nn.Linear]:
    return {name: m for name, m in decoder.named_modules() if isinstance(m, nn.Linear)}
