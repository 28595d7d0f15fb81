"""DoRA: LoRA changes the direction of each row of a weight, and a trained vector sets its length::

    y = m ⊙ ((W + ΔW) x) / ‖W + ΔW‖ + b        ΔW = scaling · B A

W is (out_features, in_features); ‖·‖ is the norm of each row, (out_features,), where m starts. The
bias is not scaled. The backward pass treats the norm as a constant. Source: Liu et al. 2024, "DoRA:
Weight-Decomposed Low-Rank Adaptation", equations 5 and 11 and section 4.3.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.lora import LoRAConfig, LoRALinear


@dataclass(frozen=True)
class DoRAConfig(LoRAConfig):
    """The settings of a DoRA adapter, which are LoRA's; `DoRALinear.forward` explains dropout."""


class DoRALinear(LoRALinear):
    """A frozen nn.Linear (or GPT-2's Conv1D) with any number of named DoRA adapters.

    Each adapter has LoRA's `lora_A[name]` and `lora_B[name]`, and `lora_magnitude_vector[name]`,
    (out_features,). Several active adapters act in turn, as in PEFT, so their order matters. A row
    of W that is zero has no direction; it stays zero (PEFT's becomes NaN). A quantized base must
    have a `dequantized_weight` method.
    """

    parts = ("lora_A", "lora_B", "lora_magnitude_vector")
    config_type = DoRAConfig
    method = "DoRA"
    wraps = "an nn.Linear whose weight it can read as numbers"

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        return super().accepts(module) and (
            module.weight.is_floating_point() or hasattr(module, "dequantized_weight")
        )

    def new_weights(self, config: DoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """LoRA's A and B = 0, and the norms of W's rows as the magnitude."""
        weights = super().new_weights(config, generator)
        norm = torch.linalg.vector_norm(self.base_weight().to(self.adapter_dtype()), dim=1)
        return {**weights, "lora_magnitude_vector": norm}

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """W x + b + (g - 1) ⊙ W x + g ⊙ ΔW x, with g = m / ‖W + ΔW‖; it needs W x only once.

        With dropout, the last two terms take dropout(x), and W x is computed twice.
        """
        result = self.base(x)  # (..., out_features)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            A = self.lora_A[name]
            W = self.base_weight().to(A.dtype)
            z = x.to(A.dtype)
            dropout = self.configs[name].dropout
            if dropout and self.training:
                z = F.dropout(z, dropout)
                direct = F.linear(z, W)
            else:
                direct = result if self.bias is None else result - self.bias
            g = self.lora_magnitude_vector[name] / self._norm(W, name)  # (out_features,)
            low = F.linear(F.linear(z, A), self.lora_B[name]) * self.scaling(name)
            result = result + (g - 1) * direct + g * low
        return result.to(dtype)

    def merged_weight(self) -> Tensor:
        """g ⊙ (W + ΔW) by rows, for each active adapter in turn; the norms are always of W + ΔW."""
        delta = {name: self.delta_weight(name) for name in self.active}
        total = W = self.base_weight().to(delta[self.active[0]].dtype)
        for name in self.active:
            g = self.lora_magnitude_vector[name].detach() / self._norm(W, name)
            total = g[:, None] * (total + delta[name])
        return total

    def _norm(self, W: Tensor, name: str) -> Tensor:
        """‖W + ΔW‖ by rows, a constant; above zero, so that a zero row gives 0 instead of NaN."""
        norm = torch.linalg.vector_norm(W + self.delta_weight(name).to(W.dtype), dim=1)
        return norm.clamp_min(torch.finfo(norm.dtype).tiny)
