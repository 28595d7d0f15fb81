"""SmoothQuant: move outliers from the activations into the weights, with the same outputs.

A few features of activations have magnitudes far above the others. Dividing feature j by s_j, and
multiplying column j of the weight by it, changes no product::

    X Wᵀ = (X diag(s)⁻¹)(W diag(s))ᵀ,        s_j = max|X_j|^α / max|W_j|^(1−α)

After it, the maxima of feature j are (max|X_j| max|W_j|)^(1−α) in X and (…)^α in W: equal for
α = 0.5. The division is multiplied into the layer before, which is the RMSNorm for q, k, v and for
gate, up; v for o (a row of v is read by all heads that share it); up for down.

Source: Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", section 4, equations 3 and 4.
"""

import copy
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM

from course_pkg.common.arguments import require_choice, require_number
from course_pkg.lm.decoder import Decoder

FOLDED = ("norms", "v_proj", "up_proj")
MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Decoder)


def smoothing_scales(input_maxima: Tensor, weight_maxima: Tensor, alpha: float = 0.5) -> Tensor:
    """s_j = max|X_j|^α / max|W_j|^(1−α), in fp64, (features,), and 1 where a maximum is 0.

    Args:
        alpha: from 0, which flattens the weight, to 1, which flattens the activations.
    """
    if not 0 <= require_number(alpha, "alpha") <= 1:
        raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
    if input_maxima.shape != weight_maxima.shape:
        raise ValueError(
            f"the maxima of inputs, {tuple(input_maxima.shape)}, and of columns of the weight, "
            f"{tuple(weight_maxima.shape)}, do not match"
        )
    x = input_maxima.double()
    w = weight_maxima.double()
    for name, maxima in (("inputs", x), ("weights", w)):
        if not torch.isfinite(maxima).all() or (maxima < 0).any():
            raise ValueError(f"the maxima of the {name} must be finite and not negative")
    return torch.where((x == 0) | (w == 0), 1.0, x**alpha / w ** (1 - alpha))


@torch.no_grad()
def input_maxima(model: nn.Module, inputs: Iterable[Tensor]) -> dict[str, Tensor]:
    """The largest magnitude of each input feature of each linear layer of the blocks, fp32.

    Args:
        model: a Llama, Mistral or Qwen2 of transformers, or a `Decoder`.
        inputs: token ids, each (batch, tokens), without padding.
    """
    maxima: dict[str, Tensor] = {}

    def record(name: str, x: Tensor) -> None:
        largest = x.flatten(0, -2).abs().amax(0).float()
        maxima[name] = torch.maximum(maxima[name], largest) if name in maxima else largest

    hooks = []
    for name, module in _blocks(model).named_modules():
        if isinstance(module, nn.Linear) and name.startswith("layers."):
            hook = module.register_forward_pre_hook(
                lambda module, arguments, name=name: record(name, arguments[0])
            )
            hooks.append(hook)
    try:
        for ids in inputs:
            model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    if not maxima:
        raise ValueError("there are no calibration inputs; give token ids, (batch, tokens)")
    return maxima


@torch.no_grad()
def smooth(
    model: nn.Module,
    maxima: dict[str, Tensor],
    alpha: float = 0.5,
    folded: Collection[str] = ("norms",),
) -> nn.Module:
    """A copy of the model with smoothed activations and the same outputs, to be quantized.

    Args:
        maxima: of `input_maxima`.
        folded: which layers take the divisions: "norms" (for q, k, v, gate and up), "v_proj" (for
            o), "up_proj" (for down).
    """
    for name in [folded] if isinstance(folded, str) else folded:
        require_choice(name, "folded", FOLDED)
    _blocks(model)
    model = copy.deepcopy(model)
    for place in _places(_blocks(model), folded):
        if place.name not in maxima:
            raise ValueError(f"maxima has no {place.name}: compute it with input_maxima(model, …)")
        weights = torch.cat([reader.weight for reader in place.readers])
        scales = smoothing_scales(
            place.shared(maxima[place.name].to(weights.device)),
            place.shared(weights.abs().amax(0)),
            alpha,
        )
        _multiply(place.writer.weight, 1 / scales.view(-1, *[1] * (place.writer.weight.dim() - 1)))
        bias = getattr(place.writer, "bias", None)
        if bias is not None:
            _multiply(bias, 1 / scales)
        for reader in place.readers:
            _multiply(reader.weight, place.spread(scales))
    return model


@dataclass(frozen=True)
class _Place:
    """The layer that takes the division, and those that read its output, one of them by name."""

    name: str
    writer: nn.Module
    readers: tuple[nn.Module, ...]
    repeats: int = 1  # heads of the output that share a head of v, and so its scale
    width: int = 1  # of a head

    def shared(self, maxima: Tensor) -> Tensor:
        """The maxima of the reader's features, as maxima of the writer's."""
        return maxima.view(-1, self.repeats, self.width).amax(1).flatten()

    def spread(self, scales: Tensor) -> Tensor:
        """The scales of the writer's features, for the reader's."""
        return scales.view(-1, 1, self.width).expand(-1, self.repeats, -1).flatten()


def _places(blocks: nn.Module, folded: Collection[str]) -> list[_Place]:
    places = []
    for number, layer in enumerate(blocks.layers):
        prefix = f"layers.{number}"
        attention = layer.self_attn
        mlp = layer.mlp
        for name, module in layer.named_modules():
            if name.endswith("_proj") and not isinstance(module, nn.Linear):
                kind = type(module).__name__
                raise TypeError(f"{prefix}.{name} is a {kind}; smooth the model without adapters")
            if name.endswith("_proj") and not module.weight.is_floating_point():
                raise TypeError(f"{prefix}.{name} is quantized; smooth the model before it is")
        if "norms" in folded:
            readers = (attention.q_proj, attention.k_proj, attention.v_proj)
            places.append(_Place(f"{prefix}.self_attn.q_proj", layer.input_layernorm, readers))
            readers = (mlp.gate_proj, mlp.up_proj)
            norm = layer.post_attention_layernorm
            places.append(_Place(f"{prefix}.mlp.gate_proj", norm, readers))
        if "v_proj" in folded:
            repeats = attention.o_proj.in_features // attention.v_proj.out_features
            name = f"{prefix}.self_attn.o_proj"
            places.append(
                _Place(name, attention.v_proj, (attention.o_proj,), repeats, attention.head_dim)
            )
        if "up_proj" in folded:
            places.append(_Place(f"{prefix}.mlp.down_proj", mlp.up_proj, (mlp.down_proj,)))
    return places


def _multiply(parameter: Tensor, factor: Tensor) -> None:
    parameter.copy_((parameter.double() * factor).to(parameter.dtype))


def _blocks(model: nn.Module) -> nn.Module:
    """The module that has the layers."""
    if not isinstance(model, MODELS):
        names = ", ".join(kind.__name__ for kind in MODELS)
        raise TypeError(f"expected one of {names}, got {type(model).__name__}")
    return model if isinstance(model, Decoder) else model.model
