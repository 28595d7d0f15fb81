"""LoRA: a frozen linear layer plus a trainable product of two thin matrices.

    y = W x + b + scaling * B(A(dropout(x)))        scaling = alpha / rank, or alpha / sqrt(rank)

W is (out_features, in_features), A is (rank, in_features), B is (out_features, rank).
This module has one layer and its configuration; `layer` has what all methods' layers share,
`injection` finds layers in a model, and `adapter_io` reads and writes files.

Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1;
Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (rsLoRA).
Chapter: adapters/lora.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.metrics.arguments import require_integer, require_number


@dataclass(frozen=True)
class LoRAConfig(AdapterConfig):
    """The settings of an adapter: rank, scale, dropout, and the modules that get one.

    rank: columns of B and rows of A, at least 1. A rank above min(in, out) is allowed, as in PEFT,
    but wasteful.
    alpha: numerator of the scale, positive and finite. dropout: probability in [0, 1), on the LoRA
    path only.
    target_modules: "all-linear", a list of name endings, or a regex that matches the whole name.
    modules_to_save: name endings of modules that are trained in full.
    use_rslora: scale by alpha / sqrt(rank) instead of alpha / rank.
    Raises ValueError for a value outside these ranges, TypeError for one of another type.
    Source: Hu et al. 2021, section 4.1; rsLoRA.

    >>> LoRAConfig(rank=8, alpha=16).scaling
    2.0
    >>> LoRAConfig(rank=16, alpha=16, use_rslora=True).scaling
    4.0
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    use_rslora: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer(self.rank, "rank")
        if not 0 < require_number(self.alpha, "alpha") < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {self.alpha}")
        if not isinstance(self.use_rslora, bool):
            raise TypeError(f"use_rslora must be True or False, got {self.use_rslora!r}")
        if not 0 <= require_number(self.dropout, "dropout") < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def scaling(self) -> float:
        """The factor on B(A(x)): alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


class LoRALinear(AdapterLayer):
    """A frozen nn.Linear (or GPT-2's Conv1D) with any number of named LoRA adapters.

    base: the layer to adapt; it is frozen and keeps its bias. config: adds a first adapter.
    The weights are `lora_A[name]`, (rank, in_features), and `lora_B[name]`, (out_features, rank);
    adapters listed in `active` take part in the forward pass, and their effects add up.
    An adapter is fp32 where the base is 16-bit or quantized, and in the base's dtype otherwise;
    the input is cast to the adapter's dtype and the sum back to the base's (PEFT does the same).
    Raises TypeError if base is another kind of layer.
    Source: Hu et al. 2021, equation 3.

    >>> layer = LoRALinear(nn.Linear(768, 3072), LoRAConfig(rank=8))
    >>> sum(p.numel() for p in layer.parameters() if p.requires_grad)
    30720
    >>> layer.lora_A["default"].shape, layer.lora_B["default"].abs().max().item()
    (torch.Size([8, 768]), 0.0)
    """

    parts = ("lora_A", "lora_B")
    file_keys: ClassVar = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}
    config_type = LoRAConfig

    def new_weights(self, config: LoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """Kaiming-uniform A (a = sqrt(5)) and B = 0, so that delta_W is 0, as in loralib and PEFT.

        >>> layer = LoRALinear(nn.Linear(4, 3))
        >>> weights = layer.new_weights(LoRAConfig(rank=2), torch.Generator().manual_seed(0))
        >>> weights["lora_A"].shape, weights["lora_B"].shape
        (torch.Size([2, 4]), torch.Size([3, 2]))
        """
        A = torch.empty(config.rank, self.in_features, dtype=self.adapter_dtype())
        nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)
        return {"lora_A": A, "lora_B": A.new_zeros(self.out_features, config.rank)}

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """W x + b + scaling * B(A(dropout(x))), summed over the active adapters."""
        result = self.base(x)  # (..., out_features)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            A, B, config = self.lora_A[name], self.lora_B[name], self.configs[name]
            z = x.to(A.dtype)
            if config.dropout:
                z = F.dropout(z, config.dropout, self.training)
            low = F.linear(z, A) * config.scaling  # (..., rank), the smallest tensor
            result = result + F.linear(low, B)
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """delta_W = scaling * B A of one adapter, (out_features, in_features), in fp32 or fp64."""
        A, B = self.lora_A[name].detach(), self.lora_B[name].detach()
        wide = torch.promote_types(A.dtype, torch.float32)
        return self.configs[name].scaling * (B.to(wide) @ A.to(wide))

    def merged_weight(self) -> Tensor:
        """W + delta_W of the active adapters. Source: Hu et al. 2021, section 4.1.

        >>> layer = LoRALinear(nn.Linear(4, 3), LoRAConfig(rank=2))
        >>> layer.merge(); layer.merge(); layer.merged
        True
        """
        delta = sum(self.delta_weight(name) for name in self.active)
        return self.base_weight().to(delta.dtype) + delta

    def extra_repr(self) -> str:
        """What print(model) shows of this layer."""
        ranks = {name: config.rank for name, config in self.configs.items()}
        return f"ranks={ranks}, active={self.active}, merged={self.merged}"
