"""`lora-math`, beside the student: how an answer is run on plain inputs.

It builds layers and models from numbers, calls the answer, and hands back plain values. It
imports no reference implementation, and knows no right answer.

Chapter: exercises.
"""

from typing import Any

import torch
from torch import nn

from .models import build_model

TARGETS = ("q_proj", "v_proj")
MASKED = ("course_pkg.adapters", "peft")  # answers lie there: the grader shows stubs instead


def by_hand(rng: Any) -> dict[str, Any]:
    """A layer of shape (d, k) and a decoder, small enough to count on paper."""
    if rng is None:
        d, k, rank, layers, hidden = 3072, 768, 8, 32, 4096
        total = 6_738_415_616
    else:
        k = 64 * int(rng.integers(4, 33))
        d = k * int(rng.integers(2, 6))
        rank = int(2 ** rng.integers(2, 5))
        layers, hidden = 2 * int(rng.integers(6, 21)), 256 * int(rng.integers(5, 21))
        while abs(2 * hidden - d - k) < 0.1 * hidden:  # or the two layers have one count
            hidden += 256
        total = 12 * layers * hidden**2 + 32_000 * hidden
    numbers = {"d": d, "k": k, "rank": rank, "layers": layers, "hidden": hidden, "total": total}
    return {**numbers, "targets": list(TARGETS)}


def _number(answer: Any, inputs: Any) -> Any:
    return answer


def _tensor(array: Any) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array.numpy())


def call_counts(answer: Any, inputs: Any) -> Any:
    """Call `lora_parameter_count(shapes, targets, rank)`; shapes: name -> (out, in)."""
    return answer(inputs["shapes"], inputs["targets"], inputs["rank"])


def call_forward(answer: Any, inputs: Any) -> Any:
    """Call `lora_forward(x, weight, bias, lora_A, lora_B, alpha)` on fresh tensors.

    Gives the output, and the names of the arguments that were changed in place.
    """
    names = ("x", "weight", "bias", "lora_A", "lora_B")
    tensors = {name: _tensor(inputs[name]) for name in names}
    with torch.no_grad():
        output = answer(*tensors.values(), inputs["alpha"])
    changed = [
        name
        for name, tensor in tensors.items()
        if tensor is not None and not torch.equal(tensor, _tensor(inputs[name]))
    ]
    return {"output": output, "changed": changed}


def call_merge(answer: Any, inputs: Any) -> Any:
    """Build `LoRALinear(base, rank, alpha)` and run the script of operations on it.

    "set" fills in A and B; "forward", "weight", "gradients" and "A is zero" each add what they
    see to the list that is handed in.
    """
    weight, bias, x = (_tensor(inputs[name]) for name in ("weight", "bias", "x"))
    base = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        base.weight.copy_(weight)
        if bias is not None:
            base.bias.copy_(bias)
    layer = answer(base, inputs["rank"], inputs["alpha"])
    factors = {name: _factor(layer, name, inputs[name].shape) for name in ("lora_A", "lora_B")}
    seen: list[Any] = []
    for operation in inputs["script"]:
        match operation:
            case "set":
                with torch.no_grad():
                    for name, factor in factors.items():
                        factor.copy_(_tensor(inputs[name]))
            case "forward":
                seen.append(layer(x))
            case "weight":
                seen.append(layer.base.weight.detach().clone())
            case "A is zero":
                seen.append(not bool(factors["lora_A"].any()))
            case "gradients":
                layer(x).square().sum().backward()
                seen += [factors[name].grad for name in ("lora_A", "lora_B")]
            case "merge":
                layer.merge()
            case "unmerge":
                layer.unmerge()
    return seen


def _factor(layer: nn.Module, name: str, shape: tuple[int, ...]) -> nn.Parameter:
    """The layer's A or B; a clear error if it is missing, no parameter, or of another shape."""
    if not hasattr(layer, name):
        raise AttributeError(f"your layer has no attribute {name}")
    factor = getattr(layer, name)
    if not isinstance(factor, nn.Parameter):
        raise TypeError(f"{name} is a {type(factor).__name__}; wanted an nn.Parameter")
    if tuple(factor.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(factor.shape)}; wanted {shape}")
    return factor


def call_inject(answer: Any, inputs: Any) -> Any:
    """Call `inject(model, targets, wrap)` on a model, and report what became of the model."""
    model, run, wrap, adapter = build_model(inputs)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    try:
        returned = answer(model, inputs["targets"], wrap)
    except ValueError as error:
        return {"refused": True, "message": str(error)[:200]}
    found = {name: _submodule(model, name) for name in linears}
    wrapped = {name: m for name, m in found.items() if isinstance(m, adapter)}
    with torch.no_grad():
        for module in wrapped.values():
            module.opened().fill_(inputs["gain"])
        output = run()
    return {
        "refused": False,
        "returned": None if returned is None else sorted(str(name) for name in returned),
        "wrapped": sorted(wrapped),
        "around its own layer": all(m.linear is linears[name] for name, m in wrapped.items()),
        "trainable": sorted(name for name, p in model.named_parameters() if p.requires_grad),
        "output": output,
    }


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def call_inject_twice(answer: Any, inputs: Any) -> Any:
    """Which of two lists of targets `inject` refuses: the layers of one are not there."""
    both = inputs["targets"], inputs["then"]
    return [call_inject(answer, {**inputs, "targets": targets})["refused"] for targets in both]


def call_inject_either(answer: Any, inputs: Any) -> Any:
    """One call, or two where the inputs name targets that are there and some that are not."""
    return (call_inject_twice if "then" in inputs else call_inject)(answer, inputs)


CALLS = {
    "by-hand/parameters": _number,
    "by-hand/reduction": _number,
    "by-hand/share": _number,
    "by-hand/optimizer-bytes": _number,
    "counts": call_counts,
    "forward": call_forward,
    "merge": call_merge,
    "inject": call_inject_either,
}
VARIANTS = {"by-hand": by_hand}
