"""AdaLoRA's layer: a change in the form of a singular value decomposition, whose rank can shrink::

    y = W x + b + scaling · P Λ Q dropout(x)        scaling = alpha / (initial_rank + 1e-5)

P is (out_features, rank), Q is (rank, in_features), Λ is diagonal and starts at zero. PEFT calls
them `lora_B`, `lora_A` and `lora_E`, (rank, 1). An entry of Λ that is set to zero removes one
triplet: a column of P, an entry of Λ, and a row of Q. Source: Zhang et al. 2023, "AdaLoRA: Adaptive
Budget Allocation for Parameter-Efficient Fine-Tuning", equation 3; the scaling is PEFT's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.lora import Bias
from course_pkg.common.arguments import require_between, require_choice, require_integer

SUFFIX = ".lora_E"  # of the keys of rank_pattern, as in PEFT's files


@dataclass(frozen=True)
class AdaLoRAConfig(AdapterConfig):
    """The settings of an AdaLoRA adapter, with the schedule of its budget.

    Attributes:
        total_step: training steps T.
        initial_rank, target_rank: triplets per module at the start, and on average at the end.
        tinit, tfinal: steps at the start without pruning, and at the end with fixed ranks; the
            ranks become final at step T - tfinal, 2 or later.
        delta_t: steps between two allocations.
        beta1, beta2: decay rates, in (0, 1), of the averages of sensitivity and uncertainty.
        orth_reg_weight: the factor γ of the orthogonality penalty.
        rank_pattern: which triplets each module keeps, such as {"h.0.q_proj.lora_E": (True,
            False)}, with initial_rank entries; None before the ranks are final.

    Source: Zhang et al. 2023, algorithm 1; defaults: PEFT's, and LoRAConfig's alpha.
    """

    total_step: int
    initial_rank: int = 12
    target_rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    tinit: int = 0
    tfinal: int = 0
    delta_t: int = 1
    beta1: float = 0.85
    beta2: float = 0.85
    orth_reg_weight: float = 0.5
    rank_pattern: Mapping[str, Sequence[bool]] | None = None
    bias: Bias = field(default="none", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("total_step", "initial_rank", "target_rank", "delta_t"):
            require_integer(getattr(self, name), name)
        for name in ("tinit", "tfinal"):
            require_integer(getattr(self, name), name, least=0)
        if self.target_rank > self.initial_rank:
            raise ValueError(
                f"target_rank {self.target_rank} is above initial_rank {self.initial_rank}; "
                "AdaLoRA only removes ranks, so start with more"
            )
        if self.tinit + self.tfinal >= self.total_step:
            raise ValueError(
                f"tinit {self.tinit} + tfinal {self.tfinal} leave none of total_step "
                f"{self.total_step} to remove ranks; lower them, or train longer"
            )
        if self.total_step - self.tfinal < 2 and self.rank_pattern is None:
            raise ValueError(
                f"total_step {self.total_step} and tfinal {self.tfinal} make the ranks final at "
                "step 1, before any triplet has a score; lower tfinal, or train longer"
            )
        require_between(self.alpha, "alpha", 0, math.inf)
        require_between(self.dropout, "dropout", 0, 1, closed=True)
        require_between(self.beta1, "beta1", 0, 1)
        require_between(self.beta2, "beta2", 0, 1)
        require_between(self.orth_reg_weight, "orth_reg_weight", 0, math.inf, closed=True)
        require_choice(self.bias, "bias", get_args(Bias))
        if self.rank_pattern is not None:
            object.__setattr__(self, "rank_pattern", self._masks())

    def _masks(self) -> dict[str, tuple[bool, ...]]:
        if not isinstance(self.rank_pattern, Mapping):
            raise TypeError(f"rank_pattern must be a dict, got {self.rank_pattern!r:.80}")
        for key, mask in self.rank_pattern.items():
            fits = isinstance(mask, Sequence) and len(mask) == self.initial_rank
            if not (fits and key.endswith(SUFFIX) and all(type(keep) is bool for keep in mask)):
                raise ValueError(
                    f"rank_pattern must map names that end in {SUFFIX} to {self.initial_rank} "
                    f"(initial_rank) booleans, got {key!r}: {mask!r:.80}"
                )
        return {key: tuple(mask) for key, mask in self.rank_pattern.items()}

    @property
    def scaling(self) -> float:
        """The factor on P Λ Q: alpha / (initial_rank + 1e-5), also after ranks are removed."""
        return self.alpha / (self.initial_rank + 1e-5)

    def rank_of(self, module_name: str) -> int:
        mask = (self.rank_pattern or {}).get(module_name + SUFFIX)
        return self.initial_rank if mask is None else mask.count(True)

    def check_modules(self, names: Sequence[str]) -> None:
        if self.rank_pattern is None:
            return
        patterned = {key.removesuffix(SUFFIX) for key in self.rank_pattern}
        if unknown := sorted(patterned - set(names)):
            raise ValueError(f"rank_pattern has {unknown[0]!r}, which is not a target module")
        if missing := sorted(set(names) - patterned):
            raise ValueError(f"rank_pattern lacks the target module {missing[0]!r}")


class AdaLoRALinear(AdapterLayer):
    """A frozen nn.Linear (or GPT-2's Conv1D) with any number of named AdaLoRA adapters.

    The weights are Q, `lora_A[name]`, (rank, in_features); the diagonal of Λ, `lora_E[name]`,
    (rank, 1); and P, `lora_B[name]`, (out_features, rank).
    """

    parts = ("lora_A", "lora_E", "lora_B")
    config_type = AdaLoRAConfig
    method = "AdaLoRA"

    def new_weights(self, config: AdaLoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """Λ = 0, and P and Q from a normal distribution with standard deviation 0.02."""
        rank = config.rank_of(self.module_name)
        Q = torch.empty(rank, self.in_features, dtype=self.adapter_dtype())
        P = torch.empty(self.out_features, rank, dtype=self.adapter_dtype())
        for matrix in (Q, P):
            matrix.normal_(std=0.02, generator=generator)
        return {"lora_A": Q, "lora_E": Q.new_zeros(rank, 1), "lora_B": P}

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """W x + b + scaling · P Λ Q dropout(x), summed over the active adapters."""
        result = self.base(x)  # (..., out_features)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            Q = self.lora_A[name]
            config = self.configs[name]
            z = x.to(Q.dtype)
            if config.dropout:
                z = F.dropout(z, config.dropout, self.training)
            low = F.linear(z, self.lora_E[name] * Q) * config.scaling  # (..., rank)
            result = result + F.linear(low, self.lora_B[name])
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """scaling · P Λ Q of one adapter, (out_features, in_features), in fp32 or fp64."""
        wide = torch.promote_types(self.lora_A[name].dtype, torch.float32)
        weights = {part: weight.detach().to(wide) for part, weight in self.weights_of(name).items()}
        low = weights["lora_E"] * weights["lora_A"]
        return self.configs[name].scaling * (weights["lora_B"] @ low)

    def prune(self, name: str, mask: Tensor) -> None:
        """Keep only the triplets where mask, (rank,), is True."""
        self._require_unmerged("remove ranks")
        for part, weight in self.weights_of(name).items():
            kept = weight[:, mask] if part == "lora_B" else weight[mask]
            kept = nn.Parameter(kept.detach().clone(), requires_grad=weight.requires_grad)
            getattr(self, part)[name] = kept
