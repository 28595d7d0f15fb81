"""PiSSA: LoRA that starts from the largest singular values of the weight, instead of from zero::

    W = U S Vᵀ        scaling · B A = U_r S_r V_rᵀ        base weight = W - scaling · B A

The output is the same at the start. A saved adapter fits this changed base only. Source: Meng et
al. 2024, "PiSSA: Principal Singular Values and Singular Vectors Adaptation of Large Language
Models", section 3.
"""

import torch
from torch import Tensor, nn

from course_pkg.adapters.injection import layers_with
from course_pkg.adapters.lora import LoRAEmbedding, LoRALinear


def principal_factors(W: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A, (rank, in_features), and B, (out_features, rank): BA is W's best rank-r approximation.

    A = S_r^½ V_rᵀ and B = U_r S_r^½. Source: Meng et al. 2024, equations 2 and 3.
    """
    if not 1 <= rank <= min(W.shape):
        raise ValueError(f"rank must be 1 to {min(W.shape)} for a {tuple(W.shape)} weight: {rank}")
    U, S, Vh = torch.linalg.svd(W.float() if W.element_size() < 4 else W, full_matrices=False)
    root = S[:rank].sqrt()
    return root[:, None] * Vh[:rank], U[:, :rank] * root


@torch.no_grad()
def start_from_principal(
    model: nn.Module,
    adapter_name: str = "default",
    factors: dict[str, tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Give a LoRA adapter that was just injected PiSSA's start, and the base what is left.

    Args:
        factors: module name → what `principal_factors` returned, if it was computed before.
    """
    layers = layers_with(model, adapter_name, LoRALinear)
    layers = {name: la for name, la in layers.items() if not isinstance(la, LoRAEmbedding)}
    if not layers:
        raise ValueError(f"the model has no LoRA adapter {adapter_name!r}; inject one")
    for name, layer in layers.items():
        if layer.merged:
            raise RuntimeError("adapters are merged; call unmerge_adapters(model) first")
        if layer.lora_B[adapter_name].any():
            raise ValueError(f"adapter {adapter_name!r} in {name} is trained; start with a new one")
        if not layer.base.weight.is_floating_point():
            raise ValueError(f"{name} is quantized; start PiSSA first, then quantize what is left")
    factors = factors or {
        name: principal_factors(layer.base_weight(), layer.lora_A[adapter_name].shape[0])
        for name, layer in layers.items()
    }
    for name, layer in layers.items():
        A, B = factors[name]
        root = layer.scaling(adapter_name) ** 0.5
        layer.lora_A[adapter_name].copy_(A / root)
        layer.lora_B[adapter_name].copy_(B / root)
        layer.base_weight().sub_(layer.delta_weight(adapter_name))
