"""What a method can add to the training loop: a penalty in the loss, and work after each step.

AdaLoRA needs both: `adapters.rank_allocator.RankAllocator` has these methods.
Chapter: adapters/variants.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Callback(Protocol):
    """The methods that `train` calls; a subclass overrides those it needs. Steps count from 1.

    >>> class Count(Callback):
    ...     steps = 0
    ...     def after_step(self, step):
    ...         self.steps += 1
    >>> isinstance(Count(), Callback), isinstance(print, Callback)
    (True, False)
    """

    def start(self, model: nn.Module, steps: int) -> None:
        """Check the model and the number of steps; raise before anything changes."""

    def extra_loss(self) -> Tensor | None:
        """A scalar that is added to the loss of each step; the record doesn't include it."""
        return None

    def after_step(self, step: int) -> None:
        """Work after the optimizer's step, while the gradients (clipped) are still there."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers and strings in dicts and lists."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
