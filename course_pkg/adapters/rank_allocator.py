"""AdaLoRA's training: an orthogonality penalty, and a budget of ranks that moves between modules.

After each step, every triplet of every module gets an importance score. In the pruning phase, the
budget b(t), a number of triplets in the whole model, falls from the initial to the target ranks::

    b(t) = b_T + (b_0 - b_T) (1 - (t - tinit) / (T - tfinal - tinit))³

The entries of Λ of all but the b(t) triplets with the highest scores become zero. A removed
triplet can come back, until the final phase. Source: Zhang et al. 2023, sections 3.1 to 3.3, as
PEFT implements it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.adalora import SUFFIX, AdaLoRAConfig, AdaLoRALinear
from course_pkg.adapters.injection import layers_with


def budget_at(step: int, config: AdaLoRAConfig, modules: int) -> int:
    """The number of triplets that the whole model may have at a step, counted from 1.

    modules: how many have this adapter. Source: Zhang et al. 2023, section 3.3, as in PEFT.
    """
    first = config.initial_rank * modules
    last = config.target_rank * modules
    end = config.total_step - config.tfinal
    if step <= config.tinit:
        return first
    if step > end:
        return last
    left = 1 - (step - config.tinit) / (end - config.tinit)
    return int((first - last) * left**3 + last)


def orthogonality(matrices: list[Tensor]) -> Tensor:
    """How far matrices are from having orthonormal rows: the mean of ‖M Mᵀ - I‖ (Frobenius).

    Source: Zhang et al. 2023, section 3.1; like PEFT, it doesn't square the norms.

    >>> orthogonality([torch.eye(2, 3), 2 * torch.eye(2, 3)]).item()  # (0 + √(3² + 3²)) / 2
    2.1213...
    """
    norms = []
    for M in matrices:
        identity = torch.eye(len(M), dtype=M.dtype, device=M.device)
        norms.append(torch.linalg.matrix_norm(M @ M.T - identity))
    return torch.stack(norms).mean()


class RankAllocator:
    """The callback that `finetuning.trainer.train` needs for AdaLoRA.

    `masks` says which triplets each module keeps; `allocations` has a (step, {module: rank}) for
    every allocation. Call `prune` after training.
    """

    def __init__(self, model: nn.Module, adapter_name: str = "default") -> None:
        self.model = model
        self.name = adapter_name
        self.layers: dict[str, AdaLoRALinear] = layers_with(model, adapter_name, AdaLoRALinear)
        if not self.layers:
            raise ValueError(f"the model has no AdaLoRA adapter {adapter_name!r}; inject one")
        self.config: AdaLoRAConfig = next(iter(self.layers.values())).configs[adapter_name]
        if self.config.rank_pattern is not None:
            raise ValueError(f"the ranks of {adapter_name!r} are final; train it without allocator")
        self.masks = {
            module: torch.ones_like(layer.lora_E[adapter_name][:, 0], dtype=torch.bool)
            for module, layer in self.layers.items()
        }
        self.allocations: list[tuple[int, dict[str, int]]] = []
        self.final = False
        # By module and part: the moving averages of sensitivity and of uncertainty (section 3.2).
        self.averages: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}

    def start(self, model: nn.Module, steps: int) -> None:
        """Raise ValueError unless training is of this model, with total_step steps."""
        if layers_with(model, self.name, AdaLoRALinear) != self.layers:
            raise ValueError("the allocator is for another model; make a RankAllocator of this one")
        if steps != self.config.total_step:
            raise ValueError(
                f"the config's total_step is {self.config.total_step}, but training has {steps} "
                "steps; the schedule needs the same number"
            )

    def extra_loss(self) -> Tensor:
        """The orthogonality penalty of all P and Q, times orth_reg_weight."""
        matrices = [layer.lora_A[self.name] for layer in self.layers.values()]
        matrices += [layer.lora_B[self.name].T for layer in self.layers.values()]
        return self.config.orth_reg_weight * orthogonality(matrices)

    def after_step(self, step: int) -> None:
        """Update the scores and the ranks, after the optimizer's step, with its gradients."""
        config = self.config
        end = config.total_step - config.tfinal
        if step > end:
            self._apply_masks()
            return
        if step < end:
            self._update_averages()
        if step == end and not self.averages:
            fix = "lower the learning rate, or train in bf16 or fp32"
            raise RuntimeError(f"no step before {end} had finite gradients; {fix}")
        due = step > config.tinit and step % config.delta_t == 0 and self.averages
        if step == end or due:
            self._allocate(budget_at(step, config, len(self.layers)))
            self.allocations.append((step, self.ranks()))
        if step == end:
            self.final = True
            self.averages = {}

    def ranks(self) -> dict[str, int]:
        return {module: int(mask.sum()) for module, mask in self.masks.items()}

    def prune(self) -> None:
        """Remove the zeroed triplets from the layers, so that files contain only those kept."""
        if not self.final:
            raise RuntimeError("the ranks are not final; train for total_step steps first")
        pattern = {module + SUFFIX: tuple(mask.tolist()) for module, mask in self.masks.items()}
        for module, layer in self.layers.items():
            layer.prune(self.name, self.masks[module])
        for layer in layers_with(self.model, self.name).values():  # also those of modules_to_save
            layer.configs[self.name] = replace(self.config, rank_pattern=pattern)

    def state_dict(self) -> dict[str, Any]:
        averages = {
            module: {part: [one.cpu() for one in both] for part, both in parts.items()}
            for module, parts in self.averages.items()
        }
        masks = {module: mask.cpu() for module, mask in self.masks.items()}
        allocations = [[step, ranks] for step, ranks in self.allocations]
        state = {"averages": averages, "masks": masks, "allocations": allocations}
        return state | {"final": self.final}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        devices = {module: mask.device for module, mask in self.masks.items()}
        self.averages = {
            module: {
                part: tuple(one.to(devices[module]) for one in both) for part, both in parts.items()
            }
            for module, parts in state["averages"].items()
        }
        self.masks = {module: mask.to(devices[module]) for module, mask in state["masks"].items()}
        self.allocations = [(step, ranks) for step, ranks in state["allocations"]]
        self.final = state["final"]

    @torch.no_grad()
    def _update_averages(self) -> None:
        adapters = [layer.weights_of(self.name).values() for layer in self.layers.values()]
        gradients = [w.grad for weights in adapters for w in weights if w.grad is not None]
        if not gradients:
            raise RuntimeError("no gradients; call after_step before the gradients are cleared")
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            return  # fp16 skipped this step
        beta1 = self.config.beta1
        beta2 = self.config.beta2
        for module, layer in self.layers.items():
            parts = self.averages.setdefault(module, {})
            for part, weight in layer.weights_of(self.name).items():
                zero = torch.zeros_like(weight)
                sensitivity, uncertainty = parts.get(part, (zero, zero))
                now = zero if weight.grad is None else (weight * weight.grad).abs()
                sensitivity = beta1 * sensitivity + (1 - beta1) * now
                difference = (now - sensitivity).abs()
                uncertainty = beta2 * uncertainty + (1 - beta2) * difference
                parts[part] = (sensitivity, uncertainty)

    def _importance(self, module: str) -> Tensor:
        """The score of each triplet, (rank,): of its entry of Λ plus the means over its vectors."""
        parts = {part: one * other for part, (one, other) in self.averages[module].items()}
        vectors = parts["lora_A"].mean(dim=1) + parts["lora_B"].mean(dim=0)
        return parts["lora_E"].flatten() + vectors

    def _allocate(self, budget: int) -> None:
        """Keep the triplets above the highest score to be removed; ties with it are removed too."""
        scores = {module: self._importance(module) for module in self.layers}
        together = torch.cat([score.to("cpu") for score in scores.values()])
        surplus = len(together) - budget
        threshold = together.kthvalue(surplus).values.item() if surplus else -1.0
        self.masks = {module: score > threshold for module, score in scores.items()}
        self._apply_masks()

    @torch.no_grad()
    def _apply_masks(self) -> None:
        for module, layer in self.layers.items():
            layer.lora_E[self.name].masked_fill_(~self.masks[module][:, None], 0.0)
