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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.settings import (
    Bias,
    first_match,
    read_pattern,
    require_alpha,
    require_bias,
)
from course_pkg.arguments import require_integer, require_number


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
    rank_pattern, alpha_pattern: other ranks and alphas for some modules. A key is a regex for a
    whole name or its last parts; the first key that fits a module counts.
    bias: which biases of the base are trained too: "none", those of the target modules
    ("lora_only"), or "all". They have no copies, as in PEFT; see `trained_biases`.
    Raises ValueError for a value outside these ranges, TypeError for one of another type.
    Source: Hu et al. 2021, section 4.1; rsLoRA.

    >>> LoRAConfig(rank=8, alpha=16).scaling
    2.0
    >>> LoRAConfig(rank=16, alpha=16, use_rslora=True).scaling
    4.0
    >>> LoRAConfig(rank=8, rank_pattern={"v_proj": 4}).rank_of("layers.0.v_proj")
    4
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict, kw_only=True, hash=False)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict, kw_only=True, hash=False)
    bias: Bias = field(default="none", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer(self.rank, "rank")
        require_alpha(self.alpha, "alpha")
        require_bias(self.bias)
        for name in ("rank_pattern", "alpha_pattern"):
            object.__setattr__(self, name, read_pattern(getattr(self, name), name))
        for key, rank in self.rank_pattern.items():
            require_integer(rank, f"rank_pattern[{key!r}]")
        for key, alpha in self.alpha_pattern.items():
            require_alpha(alpha, f"alpha_pattern[{key!r}]")
        if not isinstance(self.use_rslora, bool):
            raise TypeError(f"use_rslora must be True or False, got {self.use_rslora!r}")
        if not 0 <= require_number(self.dropout, "dropout") < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def scaling(self) -> float:
        """The factor on B(A(x)): alpha / rank, or alpha / sqrt(rank) for rsLoRA.

        This is the factor of a module that no pattern names; `scaling_of` takes the name.
        """
        return self._scaling(self.rank, self.alpha)

    def rank_of(self, module_name: str) -> int:
        """The rank of the named module."""
        return first_match(self.rank_pattern, module_name, self.rank)

    def scaling_of(self, module_name: str) -> float:
        """The factor on B(A(x)) of the named module, by its own rank and alpha."""
        alpha = first_match(self.alpha_pattern, module_name, self.alpha)
        return self._scaling(self.rank_of(module_name), alpha)

    def check_new(self, names: Sequence[str]) -> None:
        """Raise ValueError if a key of a pattern fits none of the targets; PEFT ignores it."""
        for setting in ("rank_pattern", "alpha_pattern"):
            for key, value in getattr(self, setting).items():
                if not any(first_match({key: value}, name, None) for name in names):
                    raise ValueError(f"{setting} has {key!r}, which fits none of the targets")

    def _scaling(self, rank: int, alpha: float) -> float:
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


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
    method = "LoRA"

    def new_weights(self, config: LoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """Kaiming-uniform A (a = sqrt(5)) and B = 0, so that delta_W is 0, as in loralib and PEFT.

        >>> layer = LoRALinear(nn.Linear(4, 3))
        >>> weights = layer.new_weights(LoRAConfig(rank=2), torch.Generator().manual_seed(0))
        >>> weights["lora_A"].shape, weights["lora_B"].shape
        (torch.Size([2, 4]), torch.Size([3, 2]))
        """
        rank = config.rank_of(self.module_name)
        A = torch.empty(rank, self.in_features, dtype=self.adapter_dtype())
        nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)
        return {"lora_A": A, "lora_B": A.new_zeros(self.out_features, rank)}

    def scaling(self, name: str) -> float:
        """The factor on B(A(x)) of one adapter in this module."""
        return self.configs[name].scaling_of(self.module_name)

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
            low = F.linear(z, A) * self.scaling(name)  # (..., rank), the smallest tensor
            result = result + F.linear(low, B)
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """delta_W = scaling * B A of one adapter, (out_features, in_features), in fp32 or fp64."""
        A, B = self.lora_A[name].detach(), self.lora_B[name].detach()
        wide = torch.promote_types(A.dtype, torch.float32)
        return self.scaling(name) * (B.to(wide) @ A.to(wide))

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
        ranks = {name: c.rank_of(self.module_name) for name, c in self.configs.items()}
        return f"ranks={ranks}, active={self.active}, merged={self.merged}"
