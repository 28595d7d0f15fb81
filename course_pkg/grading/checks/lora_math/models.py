"""The models that `lora-math` asks an answer to put adapters into, and the adapter itself.

Chapter: exercises.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Gain(nn.Module):
    """An adapter: a trainable gain on each output of a linear layer, zero at first.

    name: what its parameter is called, so that an answer can't know it by name.
    """

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__()
        self.linear, self.name = linear, name
        self.register_parameter(name, nn.Parameter(torch.zeros(linear.out_features)))

    def opened(self) -> nn.Parameter:
        """The gain, (out_features,)."""
        return getattr(self, self.name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out), each output multiplied by 1 + gain."""
        return self.linear(x) * (1 + self.opened())


class Chain(nn.Module):
    """Layers of one width, nested by their dotted names and applied in order.

    names: the linear layers. norms: names of layer norms, which come between them.
    """

    def __init__(self, names: list[str], norms: list[str], width: int, seed: int) -> None:
        super().__init__()
        self.order = [*norms, *names]
        generator = torch.Generator().manual_seed(seed)
        for name in self.order:
            *parents, last = name.split(".")
            node: nn.Module = self
            for parent in parents:
                if not hasattr(node, parent):
                    node.add_module(parent, nn.Module())
                node = getattr(node, parent)
            layer = nn.LayerNorm(width) if name in norms else nn.Linear(width, width)
            with torch.no_grad():
                layer.weight.normal_(generator=generator, std=width**-0.5)
                layer.bias.normal_(generator=generator)
            node.add_module(last, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) -> (..., width)."""
        for name in self.order:
            x = torch.tanh(self.get_submodule(name)(x))
        return x


def build_model(
    inputs: dict[str, Any],
) -> tuple[nn.Module, Callable[[], torch.Tensor], Callable[[nn.Linear], Gain], type[Gain]]:
    """The model of a case, how to run it, how to make an adapter, and the adapter's class."""

    def wrap(linear: nn.Linear) -> Gain:
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"wrap was given a {type(linear).__name__}; it adapts nn.Linear")
        return Gain(linear, inputs["parameter"])

    if inputs["model"] == "llama":
        from course_pkg.lm.load import load

        model, _ = load("tiny", seed=inputs["seed"])
        tokens = torch.tensor([inputs["tokens"]])
        return model, lambda: model(input_ids=tokens).logits, wrap, Gain
    model = Chain(inputs["names"], inputs["norms"], inputs["width"], inputs["seed"])
    x = torch.from_numpy(inputs["x"].numpy())
    return model, lambda: model(x), wrap, Gain
