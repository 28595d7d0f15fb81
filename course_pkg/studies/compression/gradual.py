"""Gradual magnitude pruning: a little at a time, with training in between.

From step t₀ on, every Δt steps, the smallest weights are removed until the sparsity is

    s_t = s_f + (s_i − s_f) (1 − (t − t₀) / (n Δt))³        for t = t₀, t₀ + Δt, …, t₀ + n Δt

Most goes at first, when there is much to spare; what is removed stays removed. `GradualPruning` is
a callback of the course's trainer. It prunes LoRA layers with masks (`masked_lora`), whose frozen
weight and update are pruned together, and plain layers that are trained in full, whose weights
are set to 0 again after each step (AdamW's averages would move them).

Source: Zhu and Gupta 2017, "To prune, or not to prune", section 3, equation 1.
Chapter: deployment/compression.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.common.arguments import require_integer
from course_pkg.studies.compression.masked_lora import MaskedLoRALinear
from course_pkg.studies.compression.pruning import PRUNED
from course_pkg.studies.compression.sparsity_patterns import Per, Unstructured, require_sparsity


@dataclass(frozen=True)
class CubicSchedule:
    """How sparse the weights are at each step of a training, counted from 1.

    final_sparsity: s_f. begin_step: t₀. end_step: t₀ + n Δt. frequency: Δt, in steps.
    initial_sparsity: s_i. Raises ValueError if Δt does not divide the steps from t₀ to the end, or
    a value is out of range.

    >>> schedule = CubicSchedule(0.8, begin_step=2, end_step=10, frequency=4)
    >>> [round(schedule.sparsity_at(step), 3) for step in (1, 2, 6, 10, 11)]  # 0.8 − 0.8 / 8
    [0.0, 0.0, 0.7, 0.8, 0.8]
    """

    final_sparsity: float
    begin_step: int
    end_step: int
    frequency: int = 1
    initial_sparsity: float = 0.0

    def __post_init__(self) -> None:
        require_sparsity(self.final_sparsity)
        require_sparsity(self.initial_sparsity)
        require_integer(self.begin_step, "begin_step")
        require_integer(self.end_step, "end_step", least=self.begin_step + 1)
        require_integer(self.frequency, "frequency")
        if self.initial_sparsity > self.final_sparsity:
            raise ValueError(
                f"the sparsity can't fall, from {self.initial_sparsity} to {self.final_sparsity}"
            )
        if (self.end_step - self.begin_step) % self.frequency:
            raise ValueError(
                f"frequency {self.frequency} must divide the {self.end_step - self.begin_step} "
                "steps from begin_step to end_step"
            )

    def sparsity_at(self, step: int) -> float:
        """s_t; 0 before begin_step, and s_f after end_step."""
        if step < self.begin_step:
            return 0.0
        left = 1 - min((step - self.begin_step) / (self.end_step - self.begin_step), 1)
        return self.final_sparsity + (self.initial_sparsity - self.final_sparsity) * left**3

    def due(self, step: int) -> bool:
        """Whether weights are removed after this step."""
        within = self.begin_step <= step <= self.end_step
        return within and (step - self.begin_step) % self.frequency == 0


class GradualPruning:
    """The callback that `finetuning.trainer.train` needs for gradual magnitude pruning.

    model: its layers in the blocks that have a masked LoRA or that are trained in full are pruned.
    per: which weights compete. masks: by the layers' full names, True where a weight stays.
    prunings: a (step, sparsity) for each time. Raises ValueError if there is no such layer.

    >>> from course_pkg.adapters.lora import LoRAConfig
    >>> from course_pkg.studies.compression.masked_lora import adapt_pruned
    >>> from course_pkg.lm.load import load
    >>> model = load("tiny").model
    >>> adapt_pruned(model, LoRAConfig(rank=2), {})
    >>> pruning = GradualPruning(model, CubicSchedule(0.5, 1, 3))
    >>> for step in (1, 2, 3):
    ...     pruning.after_step(step)
    >>> pruning.prunings, len(pruning.masks)
    ([(1, 0.0), (2, 0.4375), (3, 0.5)], 14)
    """

    def __init__(self, model: nn.Module, schedule: CubicSchedule, per: Per = "row") -> None:
        self.schedule = schedule
        self.per = per
        self.layers = pruned_layers(model)
        if not self.layers:
            raise ValueError(
                "the model has no masked LoRA and no trained linear layer in its blocks: use "
                "adapt_pruned, or unfreeze the weights"
            )
        self.masks = {
            name: layer.mask if isinstance(layer, MaskedLoRALinear) else _all_true(layer.weight)
            for name, layer in self.layers.items()
        }
        self.prunings: list[tuple[int, float]] = []

    def start(self, model: nn.Module, steps: int) -> None:
        """Raise ValueError unless training is of this model and reaches end_step."""
        if pruned_layers(model) != self.layers:
            raise ValueError("the pruning is for another model; make a GradualPruning of this one")
        if steps < self.schedule.end_step:
            raise ValueError(
                f"training has {steps} steps, but the schedule ends at {self.schedule.end_step}"
            )

    def extra_loss(self) -> None:
        """Nothing is added to the loss."""

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Remove weights if it is due, and set to 0 what the optimizer's step has changed."""
        if self.schedule.due(step):
            sparsity = self.schedule.sparsity_at(step)
            pattern = Unstructured(sparsity, self.per)
            for name, layer in self.layers.items():
                scores = effective_weight(layer).abs().masked_fill(~self.masks[name], -1)
                self.masks[name].logical_and_(pattern.mask(scores))
            self.prunings.append((step, sparsity))
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the masks, and what was done."""
        masks = {name: mask.clone() for name, mask in self.masks.items()}
        return {"masks": masks, "prunings": [list(each) for each in self.prunings]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, mask in self.masks.items():
            mask.copy_(state["masks"][name])
        self.prunings = [(int(step), float(sparsity)) for step, sparsity in state["prunings"]]
        self._apply()

    def _apply(self) -> None:
        for name, layer in self.layers.items():
            if isinstance(layer, MaskedLoRALinear):
                layer.prune(self.masks[name])
            else:
                layer.weight.mul_(self.masks[name])


def pruned_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that `GradualPruning` prunes, by full name."""
    found = {}
    for name, module in model.named_modules():
        trained = type(module) is nn.Linear and module.weight.requires_grad
        if name.endswith(PRUNED) and (trained or isinstance(module, MaskedLoRALinear)):
            found[name] = module
    return found


def effective_weight(layer: nn.Module) -> Tensor:
    """The weight that the layer multiplies by, with its active adapters, (rows, columns)."""
    if isinstance(layer, MaskedLoRALinear) and layer.active:
        return layer.merged_weight()
    return layer.weight.detach()


def _all_true(weight: Tensor) -> Tensor:
    return torch.ones_like(weight, dtype=torch.bool)
