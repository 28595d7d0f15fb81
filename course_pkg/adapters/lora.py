"""LoRA: a frozen linear layer plus a trainable product of two thin matrices.

    y = W x + b + scaling * B(A(dropout(x)))        scaling = alpha / rank, or alpha / sqrt(rank)

W is (out_features, in_features), A is (rank, in_features), B is (out_features, rank).
This module has one layer and its configuration. `injection` finds layers in a model, and
`adapter_io` reads and writes files.

Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1;
Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (rsLoRA).
Chapter: adapters/lora.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.metrics.arguments import require_integer, require_number


@dataclass(frozen=True)
class LoRAConfig:
    """The settings of an adapter: rank, scale, dropout, and the modules that get one.

    rank: columns of B and rows of A, at least 1. A rank above min(in, out) is allowed, as in PEFT,
    but wasteful.
    alpha: numerator of the scale, positive and finite. dropout: probability in [0, 1), on the LoRA
    path only.
    target_modules: "all-linear", a list of name endings, or a regex that matches the whole name.
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
    target_modules: str | Sequence[str] = "all-linear"
    use_rslora: bool = False

    def __post_init__(self) -> None:
        require_integer(self.rank, "rank")
        if not 0 < require_number(self.alpha, "alpha") < math.inf:
            raise ValueError(f"alpha must be positive and finite, got {self.alpha}")
        if not 0 <= require_number(self.dropout, "dropout") < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        targets = self.target_modules
        if not isinstance(targets, str):
            if not isinstance(targets, Iterable) or not all(isinstance(t, str) for t in targets):
                raise TypeError(f"target_modules must be a string or strings, got {targets!r:.80}")
            object.__setattr__(self, "target_modules", tuple(sorted(targets)))
        if not self.target_modules:
            raise ValueError('target_modules is empty; name at least one module, or "all-linear"')

    @property
    def scaling(self) -> float:
        """The factor on B(A(x)): alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


class LoRALinear(nn.Module):
    """A frozen nn.Linear with any number of named LoRA adapters.

    base: the layer to adapt; it is frozen and keeps its bias. config: adds a first adapter.
    The weights are `lora_A[name]`, (rank, in_features), and `lora_B[name]`, (out_features, rank);
    adapters listed in `active` take part in the forward pass, and their effects add up.
    An adapter is fp32 where the base is 16-bit or quantized, and in the base's dtype otherwise;
    the input is cast to the adapter's dtype and the sum back to the base's (PEFT does the same).
    Raises TypeError if base is not an nn.Linear.
    Source: Hu et al. 2021, equation 3.

    >>> layer = LoRALinear(nn.Linear(768, 3072), LoRAConfig(rank=8))
    >>> sum(p.numel() for p in layer.parameters() if p.requires_grad)
    30720
    """

    def __init__(
        self,
        base: nn.Linear,
        config: LoRAConfig | None = None,
        adapter_name: str = "default",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(base, nn.Linear):
            raise TypeError(f"LoRALinear wraps an nn.Linear, got {type(base).__name__}")
        self.base = base.requires_grad_(False)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.lora_A = nn.ParameterDict()
        self.lora_B = nn.ParameterDict()
        self.configs: dict[str, LoRAConfig] = {}
        self.active: list[str] = []
        self.disabled = False
        self.register_parameter("unmerged_weight", None)  # W while base holds W + delta
        self.register_state_dict_post_hook(_save_unmerged)
        if config is not None:
            self.add_adapter(adapter_name, config, generator=generator)

    def add_adapter(
        self, name: str, config: LoRAConfig, *, generator: torch.Generator | None = None
    ) -> None:
        """Add an adapter with Kaiming-uniform A (a = sqrt(5)) and B = 0, so delta_W is 0.

        generator: a CPU generator that draws A; by default a new one with seed 0.
        The first adapter becomes active; activate later ones with `set_active`.
        Raises ValueError if the name exists or is invalid, RuntimeError while merged.
        Source: the same initialization as the authors' loralib and PEFT.

        >>> layer = LoRALinear(nn.Linear(4, 3))
        >>> layer.add_adapter("poetry", LoRAConfig(rank=2))
        >>> layer.lora_A["poetry"].shape, layer.lora_B["poetry"].abs().max().item()
        (torch.Size([2, 4]), 0.0)
        """
        self._require_unmerged("add an adapter")
        if not re.fullmatch(r"[\w-]+", name) or hasattr(nn.ParameterDict(), name):
            raise ValueError(
                f"adapter name {name!r} is invalid: use letters, digits, _ and -, and not "
                "the name of a ParameterDict method"
            )
        if name in self.configs:
            raise ValueError(f"adapter {name!r} already exists in this layer")
        weight = self.base.weight
        wide = weight.dtype in (torch.float32, torch.float64)
        dtype = weight.dtype if wide else torch.float32
        A = torch.empty(config.rank, self.in_features, dtype=dtype)
        B = torch.zeros(self.out_features, config.rank, dtype=dtype)
        generator = generator or torch.Generator().manual_seed(0)
        nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)
        self.lora_A[name] = nn.Parameter(A.to(weight.device))
        self.lora_B[name] = nn.Parameter(B.to(weight.device))
        self.configs[name] = config
        self.set_active(self.active or [name])

    def set_active(self, names: str | Sequence[str]) -> None:
        """Activate and unfreeze exactly these adapters; ignore names that this layer lacks."""
        self._require_unmerged("change the active adapters")
        names = [names] if isinstance(names, str) else names
        self.active = [name for name in dict.fromkeys(names) if name in self.configs]
        for name in self.configs:
            self.lora_A[name].requires_grad_(name in self.active)
            self.lora_B[name].requires_grad_(name in self.active)

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

    @property
    def merged(self) -> bool:
        """Whether base.weight currently holds W + delta_W."""
        return self.unmerged_weight is not None

    def delta_weight(self, name: str) -> Tensor:
        """delta_W = scaling * B A of one adapter, (out_features, in_features), in fp32 or fp64."""
        A, B = self.lora_A[name].detach(), self.lora_B[name].detach()
        wide = torch.promote_types(A.dtype, torch.float32)
        return self.configs[name].scaling * (B.to(wide) @ A.to(wide))

    def merge(self) -> None:
        """Add the active adapters to base.weight, so that the layer costs as much as the base.

        The sum is computed in fp32 (or fp64) and rounded once. The layer keeps a copy of W until
        `unmerge`. Merging twice does nothing. While merged, the adapters get no gradient.
        Raises ValueError if the base is quantized or the sum is not finite, and RuntimeError
        while disabled; the layer is then unchanged.
        Source: Hu et al. 2021, section 4.1.

        >>> layer = LoRALinear(nn.Linear(4, 3), LoRAConfig(rank=2))
        >>> layer.merge(); layer.merge(); layer.merged
        True
        """
        if self.merged or not self.active:
            return
        if self.disabled:
            raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
        weight = self.base.weight
        if not weight.is_floating_point():
            raise ValueError(
                f"cannot merge into a quantized weight ({weight.dtype}); dequantize it first"
            )
        delta = sum(self.delta_weight(name) for name in self.active)
        total = (weight.detach().to(delta.dtype) + delta).to(weight.dtype)
        if not torch.isfinite(total).all():
            raise ValueError(
                f"merging {self.active} gives weights that are not finite in {weight.dtype}; "
                "the adapter has NaN or infinite entries, or its scale is too large"
            )
        self.unmerged_weight = weight
        self.base.weight = nn.Parameter(total, requires_grad=False)

    def unmerge(self) -> None:
        """Restore the weight saved by `merge`; do nothing if not merged."""
        if self.merged:
            self.base.weight, self.unmerged_weight = self.unmerged_weight, None

    @property
    def weight(self) -> nn.Parameter:
        """The base's weight; some models read it (T5 reads its dtype)."""
        return self.base.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The base's bias, which LoRA does not change."""
        return self.base.bias

    def extra_repr(self) -> str:
        """What print(model) shows of this layer."""
        ranks = {name: config.rank for name, config in self.configs.items()}
        return f"ranks={ranks}, active={self.active}, merged={self.merged}"

    def _require_unmerged(self, action: str) -> None:
        if self.merged:
            raise RuntimeError(f"cannot {action} while merged; call unmerge() first")

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        self._require_unmerged("load a state dict")
        super()._load_from_state_dict(*args, **kwargs)


def _save_unmerged(layer: LoRALinear, state: dict, prefix: str, _metadata: dict) -> None:
    """Save W in a state dict, not W + delta; loading W + delta would apply the adapter twice."""
    if layer.merged:
        state[f"{prefix}base.weight"] = state.pop(f"{prefix}unmerged_weight")
