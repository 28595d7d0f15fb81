"""Rotate a Llama's residual stream: other weights, the same outputs.

If Q is orthogonal and every layer that writes a vector writes Qᵀ times it, and every layer that
reads one reads through Q, the outputs stay the same; RMSNorm without its scale commutes with Q, so
the scales are multiplied into the layers behind it first. Weights that lay on a 4-bit grid, such as
those of SmolLM2's file, leave the grid: quantization can then be measured fairly.

Sources: Ashkboos et al. 2024, "SliceGPT", section 3, and "QuaRot", section 4.
"""

import copy

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from course_pkg.common.arguments import require_integer


def random_orthogonal(size: int, seed: int = 0) -> Tensor:
    """A random orthogonal matrix, (size, size), fp64, uniform over all of them.

    The QR decomposition of a normal matrix, with the signs of R's diagonal moved into Q.
    Source: Mezzadri 2007, "How to generate random matrices from the classical compact groups".
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(size, size, generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(normal)
    return Q * R.diagonal().sign()


@torch.no_grad()
def rotate_residual_stream(model: LlamaForCausalLM, seed: int = 0) -> LlamaForCausalLM:
    """A copy of the model with a rotated residual stream and no norm scales; same outputs.

    The embedding and the output head become different matrices, so the copy does not tie them.
    """
    if not isinstance(model, LlamaForCausalLM):
        raise TypeError(f"expected a LlamaForCausalLM, got {type(model).__name__}")
    for name, module in model.named_modules():
        if name.endswith(("_proj", "lm_head")) and type(module) is not nn.Linear:
            raise TypeError(
                f"{name} is a {type(module).__name__}, not a plain Linear: rotate the model before "
                "anything else is done to it"
            )
    require_integer(seed, "seed", least=0)
    model = copy.deepcopy(model)
    embedding = model.get_input_embeddings()
    head = model.lm_head
    decoder = model.model
    head.weight = nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
    model.config.tie_word_embeddings = False
    Q = random_orthogonal(model.config.hidden_size, seed).to(embedding.weight.device)
    _set(embedding.weight, embedding.weight.double() @ Q)
    for layer in decoder.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        _read(layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj), Q)
        _read(layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj), Q)
        for writer in (attention.o_proj, mlp.down_proj):
            _set(writer.weight, Q.T @ writer.weight.double())
            if writer.bias is not None:
                _set(writer.bias, writer.bias.double() @ Q)
    _read(decoder.norm, (head,), Q)
    return model


def _read(norm: nn.Module, readers: tuple[nn.Linear, ...], Q: Tensor) -> None:
    """Multiply a norm's scale and Q into the layers that read its output."""
    for reader in readers:
        _set(reader.weight, reader.weight.double() * norm.weight.double() @ Q)
    norm.weight.fill_(1)


def _set(parameter: nn.Parameter, value: Tensor) -> None:
    parameter.copy_(value.to(parameter.dtype))
