"""`lora-math`, in the student's process: the models for an answer, and what it does with them."""

from functools import partial
from typing import Any

import torch
from torch import nn

from course_pkg.grading.questions.calling import WrongUse

GAIN = 0.5  # of every adapter, when the injected model runs
STEP = 0.3  # the length of a training step, for each parameter


def merge(answer: Any, inputs: dict[str, Any]) -> list[Any]:
    """What the operations of a case, in order, observe on `LoRALinear(base, rank, alpha)`."""
    base = nn.Linear(*reversed(inputs["weight"].shape), bias=inputs["bias"] is not None)
    base.load_state_dict({n: inputs[n] for n in ("weight", "bias") if inputs[n] is not None})
    layer = answer(base, inputs["rank"], inputs["alpha"])
    factors = {name: getattr(layer, name, None) for name in ("lora_A", "lora_B")}
    for name, factor in factors.items():
        if not isinstance(factor, nn.Parameter) or factor.shape != inputs[name].shape:
            raise WrongUse(f"{name} must be an nn.Parameter of shape {tuple(inputs[name].shape)}")
        if inputs["_filled"]:
            factor.data.copy_(inputs[name])
    observed: list[Any] = []
    for operation in inputs["operations"]:
        match operation:
            case "forward":
                observed.append(layer(inputs["x"]))
            case "weight":
                observed.append(layer.base.weight.detach().clone())
            case "gradients":
                loss = layer(inputs["x"]).square().sum()
                observed += torch.autograd.grad(loss, factors.values(), materialize_grads=True)
            case "A is not zero":
                observed.append(factors["lora_A"].any())
            case "merge" | "unmerge":
                getattr(layer, operation)()
    return observed


def inject(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `inject(model, targets, wrap)` makes of the case's model, or that it refuses it."""
    model = build_model(inputs)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    try:
        returned = answer(model, inputs["targets"], partial(Gain, name=inputs["_parameter"]))
    except ValueError:
        if not inputs["_may_raise"]:
            raise
        return {"raises": "ValueError"}
    now = {name: model.get_submodule(name) for name in layers}
    adapters = {name: m for name, m in now.items() if isinstance(m, Gain)}
    for adapter in adapters.values():
        adapter.get_parameter(adapter.name).data.fill_(GAIN)
    return {
        "raises": "nothing",
        "wrapped": sorted(adapters),
        "returned": None if returned is None else sorted(str(name) for name in returned),
        "each around its own layer": all(m.linear is layers[n] for n, m in adapters.items()),
        "trainable": sorted(name for name, p in model.named_parameters() if p.requires_grad),
        **effects(model, inputs),
    }


def effects(model: nn.Module, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What a model computes, and what it computes after a training step of what can be trained.

    The step moves each parameter by STEP along its gradient, so that the numbers tell which ones
    can be trained.
    """
    output = outputs(model, inputs)
    trained = [p for p in model.parameters() if p.requires_grad]
    if trained and output.requires_grad:
        loss = output.square().mean()
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.data -= STEP * gradient / gradient.norm().clamp(min=1e-9)
    later = outputs(model, inputs)
    return {"output": output.detach(), "output after a training step": later.detach()}


class Gain(nn.Module):
    """An adapter: a trainable gain on each output of a linear layer, zero at first."""

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"wrap was given a {type(linear).__name__}; it adapts nn.Linear")
        self.linear = linear
        self.name = name
        self.register_parameter(name, nn.Parameter(torch.zeros(linear.out_features)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out), each output multiplied by 1 + gain."""
        return self.linear(x) * (1 + self.get_parameter(self.name))


def build_model(inputs: dict[str, Any]) -> nn.Module:
    """A tiny Llama, or a module with a layer norm ("norm…") or linear layer at each dotted name."""
    if "names" not in inputs:
        from course_pkg.lm.load import load

        return load("tiny", seed=inputs["_seed"])[0]
    model = nn.Module()
    for name in inputs["names"]:
        *parents, last = name.split(".")
        node = model
        for parent in parents:
            if not hasattr(node, parent):
                node.add_module(parent, nn.Module())
            node = node.get_submodule(parent)
        node.add_module(last, nn.LayerNorm(4) if name.startswith("norm") else nn.Linear(4, 4))
    generator = torch.Generator().manual_seed(inputs["_seed"])
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    return model


def outputs(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """A Llama's logits for the case's tokens; of another model, what each named layer computes."""
    if "names" not in inputs:
        return model(torch.tensor([inputs["_tokens"]])).logits
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 1.0, -1.0, 0.2]])
    return torch.stack([model.get_submodule(name)(x) for name in inputs["names"]])
