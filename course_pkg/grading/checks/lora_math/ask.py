"""`lora-math`, beside the student: how an answer is run on plain inputs.

It builds layers and models from numbers, calls the answer, and hands back plain values. It
imports no reference implementation, and knows no right answer.
"""

from typing import Any

import torch
from torch import nn

TARGETS = ("q_proj", "v_proj")


def by_hand(rng: Any) -> dict[str, Any]:
    """A layer of shape (d, k) and a decoder, small enough to count on paper."""
    if rng is None:
        d, k, rank, layers, hidden = 3072, 768, 8, 32, 4096
        total = 6_738_415_616
    else:
        k = 64 * int(rng.integers(4, 33))
        d = k * int(rng.integers(2, 6))
        rank = int(2 ** rng.integers(2, 6))
        layers, hidden = 2 * int(rng.integers(6, 21)), 256 * int(rng.integers(3, 21))
        total = 12 * layers * hidden**2 + 32_000 * hidden
    return {
        "d": d,
        "k": k,
        "rank": rank,
        "layers": layers,
        "hidden": hidden,
        "total": total,
        "targets": list(TARGETS),
    }


def _number(answer: Any, inputs: Any) -> Any:
    return answer


def _tensor(array: Any) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array.numpy())


def call_counts(answer: Any, inputs: Any) -> Any:
    """Call `lora_parameter_count(shapes, targets, rank)`; shapes: name -> (out, in)."""
    return answer(inputs["shapes"], inputs["targets"], inputs["rank"])


def call_forward(answer: Any, inputs: Any) -> Any:
    """Call `lora_forward(x, weight, bias, lora_A, lora_B, alpha)` on fresh tensors."""
    names = ("x", "weight", "bias", "lora_A", "lora_B")
    with torch.no_grad():
        return answer(*(_tensor(inputs[name]) for name in names), inputs["alpha"])


def call_merge(answer: Any, inputs: Any) -> Any:
    """Build `LoRALinear(base, rank, alpha)` and run the script of operations on it.

    "set" fills in A and B; "forward" and "weight" each add one array to what is handed in.
    """
    weight, bias, x = (_tensor(inputs[name]) for name in ("weight", "bias", "x"))
    base = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        base.weight.copy_(weight)
        if bias is not None:
            base.bias.copy_(bias)
        layer = answer(base, inputs["rank"], inputs["alpha"])
        seen = []
        for operation in inputs["script"]:
            match operation:
                case "set":
                    layer.lora_A.copy_(_tensor(inputs["lora_A"]))
                    layer.lora_B.copy_(_tensor(inputs["lora_B"]))
                case "forward":
                    seen.append(layer(x))
                case "weight":
                    seen.append(layer.base.weight.detach().clone())
                case "A is zero":
                    seen.append(bool((layer.lora_A == 0).all()))
                case "merge":
                    layer.merge()
                case "unmerge":
                    layer.unmerge()
    return seen


class Gain(nn.Module):
    """The adapter that `inject` is asked to put in: a trainable gain on each output."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.gain = nn.Parameter(torch.zeros(linear.out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out), each output multiplied by 1 + gain."""
        return self.linear(x) * (1 + self.gain)


class Chain(nn.Module):
    """Linear layers of one width, nested by their dotted names, applied in order."""

    def __init__(self, names: list[str], width: int, seed: int) -> None:
        super().__init__()
        self.order = names
        generator = torch.Generator().manual_seed(seed)
        for name in names:
            *parents, last = name.split(".")
            node: nn.Module = self
            for parent in parents:
                if not hasattr(node, parent):
                    node.add_module(parent, nn.Module())
                node = getattr(node, parent)
            linear = nn.Linear(width, width)
            with torch.no_grad():
                linear.weight.normal_(generator=generator, std=width**-0.5)
                linear.bias.normal_(generator=generator)
            node.add_module(last, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) -> (..., width)."""
        for name in self.order:
            x = torch.tanh(self.get_submodule(name)(x))
        return x


def call_inject(answer: Any, inputs: Any) -> Any:
    """Call `inject(model, targets, wrap)` on a model, and report what became of the model."""
    model, run = _model(inputs)
    try:
        returned = answer(model, inputs["targets"], Gain)
    except ValueError:
        return {"refused": True}
    gains = {name: m for name, m in model.named_modules() if isinstance(m, Gain)}
    with torch.no_grad():
        for module in gains.values():
            module.gain.fill_(inputs["gain"])
        output = run()
    return {
        "refused": False,
        "returned": sorted(str(name) for name in returned) if returned is not None else None,
        "wrapped": sorted(gains),
        "trainable": sorted(name for name, p in model.named_parameters() if p.requires_grad),
        "output": output,
    }


def _model(inputs: dict[str, Any]) -> tuple[nn.Module, Any]:
    if inputs["model"] == "llama":
        from course_pkg.lm.load import load

        model, _ = load("tiny", seed=inputs["seed"])
        tokens = torch.tensor([inputs["tokens"]])
        return model, lambda: model(input_ids=tokens).logits
    model = Chain(inputs["names"], inputs["width"], inputs["seed"])
    x = _tensor(inputs["x"])
    return model, lambda: model(x)


CALLS = {
    "by-hand/parameters": _number,
    "by-hand/reduction": _number,
    "by-hand/share": _number,
    "by-hand/optimizer-bytes": _number,
    "counts": call_counts,
    "forward": call_forward,
    "merge": call_merge,
    "inject": call_inject,
}
VARIANTS = {"by-hand": by_hand}
