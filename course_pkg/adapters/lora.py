"""LoRA: a frozen linear layer plus a trainable product of two thin matrices::

    y = W x + b + scaling * B(A(dropout(x)))        scaling = alpha / rank, or alpha / sqrt(rank)

W is (out_features, in_features), A is (rank, in_features), B is (out_features, rank).
An embedding gets LoRA too: row(token) = E[token] + scaling * B A[:, token].

Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1;
Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (rsLoRA).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.argument_checks import read_pattern, regex_matches
from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.common.arguments import (
    require_between,
    require_bool,
    require_choice,
    require_integer,
)

Bias = Literal["none", "all", "lora_only"]  # the base's biases to train


@dataclass(frozen=True)
class LoRAConfig(AdapterConfig):
    """The settings of an adapter: rank, scale, dropout, and the modules that get one.

    Attributes:
        alpha: numerator of the scale.
        dropout: probability in [0, 1), on the LoRA path only.
        use_rslora: scale by alpha / sqrt(rank) instead of alpha / rank.
        rank_pattern, alpha_pattern: other ranks and alphas for some modules. A key is a regex for a
            whole name or its last parts; the first key that fits a module counts.
        bias: the biases of the base that are trained: "none", "lora_only" (of the target modules),
            or "all". They have no copies, as in PEFT; see `trained_biases`.

    >>> LoRAConfig(rank=8, alpha=16).scaling_of(), LoRAConfig(16, 16, use_rslora=True).scaling_of()
    (2.0, 4.0)
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
        require_between(self.alpha, "alpha", 0, math.inf)
        require_between(self.dropout, "dropout", 0, 1, closed=True)
        require_choice(self.bias, "bias", get_args(Bias))
        require_bool(self.use_rslora, "use_rslora")
        for name in ("rank_pattern", "alpha_pattern"):
            object.__setattr__(self, name, read_pattern(getattr(self, name), name))
        for key, rank in self.rank_pattern.items():
            require_integer(rank, f"rank_pattern[{key!r}]")
        for key, alpha in self.alpha_pattern.items():
            require_between(alpha, f"alpha_pattern[{key!r}]", 0, math.inf)

    def rank_of(self, module_name: str) -> int:
        return first_match(self.rank_pattern, module_name, self.rank)

    def scaling_of(self, module_name: str = "") -> float:
        """The factor on B(A(x)) of the named module; by default, of one that no pattern names."""
        rank = self.rank_of(module_name)
        alpha = first_match(self.alpha_pattern, module_name, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def check_new(self, names: Sequence[str]) -> None:
        """PEFT ignores a key that fits none of the targets."""
        for setting in ("rank_pattern", "alpha_pattern"):
            for key, value in getattr(self, setting).items():
                if not any(first_match({key: value}, name, None) for name in names):
                    raise ValueError(f"{setting} has {key!r}, which fits none of the targets")


def first_match(pattern: Mapping[str, Any], module_name: str, default: Any) -> Any:
    """The value of the first key that is a regex for the name or its last parts, as in PEFT."""
    for key, value in pattern.items():
        if regex_matches(rf"(.*\.)?({key})$", module_name, "the key of a pattern", whole=False):
            return value
    return default


class LoRALinear(AdapterLayer):
    """A frozen nn.Linear (or GPT-2's Conv1D) with any number of named LoRA adapters.

    The weights are `lora_A[name]`, (rank, in_features), and `lora_B[name]`, (out_features, rank);
    the effects of active adapters add up. The input is cast to the adapter's dtype and the sum back
    to the base's, as in PEFT. Source: Hu et al. 2021, equation 3.

    >>> layer = LoRALinear(nn.Linear(768, 3072), LoRAConfig(rank=8))
    >>> sum(p.numel() for p in layer.parameters() if p.requires_grad)
    30720
    """

    parts = ("lora_A", "lora_B")
    file_keys: ClassVar = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}
    config_type = LoRAConfig
    method = "LoRA"

    def new_weights(self, config: LoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """Kaiming-uniform A (a = sqrt(5)) and B = 0, so delta_W is 0, as in loralib and PEFT."""
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
            A = self.lora_A[name]
            B = self.lora_B[name]
            z = x.to(A.dtype)
            if dropout := self.configs[name].dropout:
                z = F.dropout(z, dropout, self.training)
            low = F.linear(z, A) * self.scaling(name)  # (..., rank), the smallest tensor
            result = result + F.linear(low, B)
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """delta_W = scaling * B A of one adapter, (out_features, in_features), in fp32 or fp64."""
        A, B = (getattr(self, part)[name].detach() for part in self.parts[:2])
        wide = torch.promote_types(A.dtype, torch.float32)
        return self.scaling(name) * (B.to(wide) @ A.to(wide))

    def extra_repr(self) -> str:
        ranks = {name: c.rank_of(self.module_name) for name, c in self.configs.items()}
        return f"ranks={ranks}, active={self.active}, merged={self.merged}"


class LoRAEmbedding(LoRALinear):
    """A frozen nn.Embedding with any number of named LoRA adapters.

    The weights are `lora_embedding_A[name]`, (rank, num_embeddings), and `lora_embedding_B[name]`,
    (embedding_dim, rank). A starts at zero and B is random, the reverse of a linear layer. An
    output layer tied to the embedding keeps its weight. Dropout is not applied, as in PEFT.
    """

    parts = ("lora_embedding_A", "lora_embedding_B")
    file_keys: ClassVar = {}
    wraps = "an nn.Embedding"

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        return isinstance(module, nn.Embedding)

    @property
    def in_features(self) -> int:
        return self.base.num_embeddings

    @property
    def out_features(self) -> int:
        return self.base.embedding_dim

    def new_weights(self, config: LoRAConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """A = 0 and a standard normal B."""
        rank = config.rank_of(self.module_name)
        B = torch.empty(self.out_features, rank, dtype=self.adapter_dtype())
        B.normal_(generator=generator)
        A = B.new_zeros(rank, self.in_features)
        return {"lora_embedding_A": A, "lora_embedding_B": B}

    def forward(self, ids: Tensor) -> Tensor:  # ids: (...), integers
        """E[ids] + scaling * B A[:, ids], summed over the active adapters: (..., embedding_dim)."""
        result = self.base(ids)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            A = self.lora_embedding_A[name]
            B = self.lora_embedding_B[name]
            low = F.embedding(ids, A.T, self.base.padding_idx)  # (..., rank)
            result = result + self.scaling(name) * F.linear(low, B)
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        """scaling * (B A) transposed, (num_embeddings, embedding_dim), in fp32 or fp64."""
        return super().delta_weight(name).T
