"""IA³: learned vectors that scale keys, values and the hidden units of the feed-forward network::

    y = l ⊙ (W x + b)        for keys and values: l is (out_features, 1)
    y = W (l ⊙ x) + b        for the feed-forward network's last layer: l is (1, in_features)

Every vector starts at one. Merging multiplies the rows of W (and b) or the columns of W by l.
Source: Liu et al. 2022, "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than
In-Context Learning", section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.argument_checks import read_names, regex_matches, require_regex
from course_pkg.adapters.layer import AdapterConfig, AdapterLayer


@dataclass(frozen=True)
class IA3Config(AdapterConfig):
    """The modules that get a vector; the defaults are for Llama's names.

    Weight decay would pull the vectors to zero, not to one, so train without it.

    Attributes:
        feedforward_modules: the targets whose input is scaled instead of their output: a list of
            some of target_modules, or a regex. As in PEFT, an entry matches any name that ends with
            it.

    >>> config = IA3Config()
    >>> config.scales_input("model.layers.0.mlp.down_proj"), config.scales_input("v_proj")
    (True, False)
    """

    target_modules: str | Sequence[str] = field(
        default=("k_proj", "v_proj", "down_proj"), kw_only=True
    )
    feedforward_modules: str | Sequence[str] = field(default=("down_proj",), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = read_names(self.feedforward_modules, "feedforward_modules", whole=True)
        targets = self.target_modules
        object.__setattr__(self, "feedforward_modules", inner)
        if isinstance(targets, str) and targets.lower() == "all-linear":
            raise ValueError(
                'IA³ takes no target_modules="all-linear"; name the keys, values and the '
                "feed-forward network's last layer"
            )
        if isinstance(inner, str):
            require_regex(inner, "feedforward_modules")
        elif not isinstance(targets, str) and (others := sorted(set(inner) - set(targets))):
            raise ValueError(
                f"feedforward_modules must be some of target_modules {list(targets)}, got {others}"
            )

    def scales_input(self, module_name: str) -> bool:
        return _ends_or_matches(module_name, self.feedforward_modules)

    def check_modules(self, names: Sequence[str]) -> None:
        inner = self.feedforward_modules
        for entry in [inner] if isinstance(inner, str) else [(ending,) for ending in inner]:
            if not any(_ends_or_matches(name, entry) for name in names):
                raise ValueError(f"feedforward_modules {entry!r} matches none of the targets")


def _ends_or_matches(name: str, modules: str | tuple[str, ...]) -> bool:
    """Whether a regex matches the name, or one of several endings does, as in PEFT."""
    if isinstance(modules, str):
        return regex_matches(modules, name, "feedforward_modules")
    return name.endswith(modules)


class IA3Linear(AdapterLayer):
    """A frozen nn.Linear (or GPT-2's Conv1D) with any number of named IA³ vectors.

    An adapter has one vector, `ia3_l[name]`: (1, in_features) if its config scales the input of
    `module_name`, and otherwise (out_features, 1). The vectors of several active adapters are
    multiplied. It scales 16-bit values in fp32 and rounds the product.
    """

    parts = ("ia3_l",)
    config_type = IA3Config
    method = "IA³"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_parameter("unmerged_bias", None)  # b while base holds l ⊙ b
        self.register_state_dict_post_hook(_save_unmerged_bias)

    def new_weights(self, config: IA3Config, generator: torch.Generator) -> dict[str, Tensor]:
        """A vector of ones; the generator is not used."""
        inner = config.scales_input(self.module_name)
        shape = (1, self.in_features) if inner else (self.out_features, 1)
        return {"ia3_l": torch.ones(shape, dtype=self.adapter_dtype())}

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """l ⊙ (W x + b), or W (l ⊙ x) + b."""
        if self.merged or self.disabled:
            return self.base(x)
        inner = self._product(of_inputs=True)
        outer = self._product(of_inputs=False)
        if inner is not None:
            x = (x.to(inner.dtype) * inner).to(x.dtype)
        result = self.base(x)  # (..., out_features)
        return result if outer is None else (result * outer).to(result.dtype)

    def merged_weight(self) -> Tensor:
        inner = self._product(of_inputs=True)
        outer = self._product(of_inputs=False)
        W = self.base_weight()
        W = W.to(torch.promote_types(W.dtype, torch.float32))
        if outer is not None:
            W = W * outer.detach()[:, None]
        return W if inner is None else W * inner.detach()

    def merge(self) -> None:
        if self.merged:
            return
        super().merge()
        bias = self.base.bias
        outer = self._product(of_inputs=False)
        if self.merged and bias is not None and outer is not None:
            scaled = (bias.detach() * outer.detach()).to(bias.dtype)
            if not torch.isfinite(scaled).all():
                self.unmerge()
                raise ValueError(f"merging {self.active} gives a bias that is not finite")
            self.unmerged_bias = bias
            self.base.bias = nn.Parameter(scaled, requires_grad=False)

    def unmerge(self) -> None:
        super().unmerge()
        if self.unmerged_bias is not None:
            self.base.bias = self.unmerged_bias
            self.unmerged_bias = None

    def _product(self, of_inputs: bool) -> Tensor | None:
        """The product of the active adapters' vectors that scale inputs (or outputs), if any."""
        product = None
        for name in self.active:
            if self.configs[name].scales_input(self.module_name) is of_inputs:
                vector = self.ia3_l[name].flatten()
                product = vector if product is None else product * vector
        return product


def _save_unmerged_bias(layer: IA3Linear, state: dict, prefix: str, _metadata: dict) -> None:
    """Save b in a state dict, not l ⊙ b."""
    if layer.unmerged_bias is not None:
        state[f"{prefix}base.bias"] = state.pop(f"{prefix}unmerged_bias")
