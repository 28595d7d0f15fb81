"""Units: the parts of a model whose weights are gathered, reduced and freed together.

A unit is a module with the parameters that belong to no smaller unit. In a decoder each layer is
one, and what remains (embeddings, last norm, output) is the last, with the model as its module.
While one layer computes, the weights of the others need not be there.

Hooks call back at four moments: before and after a forward pass of the module, before its backward
pass, and when that is over, which is when the gradients of its inputs are known. No input of the
whole model requires a gradient, so for that unit the last moment is not seen; its backward pass
ends with that of the model.

Sources: PyTorch FSDP (Zhao et al. 2023), section 3.2; the hooks of torch's `fully_shard`.
Chapter: acceleration/parallelism.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.flat_parameter import FlatParameter


@dataclasses.dataclass(eq=False)
class ShardedUnit:
    """A module and its parameters: one flat tensor for each dtype, trained or not.

    backward_done: whether its backward pass has ended since the gradients were last reduced.
    """

    module: nn.Module
    flats: list[FlatParameter]
    backward_done: bool = False


def default_units(model: nn.Module) -> list[nn.Module]:
    """The modules in the model's outermost ModuleLists: a decoder's layers.

    >>> model = nn.Module()
    >>> model.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    >>> default_units(model) == list(model.layers)
    True
    """
    found: list[nn.Module] = []
    for child in model.children():
        found += child if isinstance(child, nn.ModuleList) else default_units(child)
    return found


def make_units(model: nn.Module, modules: Sequence[nn.Module], group: Group) -> list[ShardedUnit]:
    """The units of these modules, and one of the whole model for the other parameters, at the end.

    The parameters become views of flat tensors. Raises ValueError if two units share a parameter.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    owner: dict[nn.Parameter, nn.Module] = {}
    for module in modules:
        for parameter in module.parameters():
            if owner.setdefault(parameter, module) is not module:
                raise ValueError(
                    f"two units share the parameter {names[parameter]}; "
                    "give a module that contains both as a unit"
                )
    inside = {part for module in modules for part in module.modules()}
    for holder in set(model.modules()) - inside:
        for parameter in holder.parameters(recurse=False):
            if owner.setdefault(parameter, model) is not model:
                raise ValueError(
                    f"a unit shares the parameter {names[parameter]} with the rest of the model; "
                    "leave that unit out"
                )
    units = []
    for module in [*modules, model]:
        kinds: dict[tuple, dict[str, nn.Parameter]] = {}
        for parameter, name in names.items():
            if owner[parameter] is module:
                kind = (parameter.dtype, parameter.requires_grad)
                kinds.setdefault(kind, {})[name] = parameter
        flats = [FlatParameter(parameters, group) for parameters in kinds.values()]
        units.append(ShardedUnit(module, flats))
    return units


def call_around_passes(
    unit: ShardedUnit,
    before: Callable[[ShardedUnit], None],
    after: Callable[[ShardedUnit], None],
) -> None:
    """Call `before(unit)` before each forward and backward pass, `after(unit)` after each forward.

    A backward pass begins when the gradient of one of the module's outputs is known. When it ends
    is up to `call_after_backward`.
    """

    def mark_outputs(module: nn.Module, args: tuple, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: before(unit))
        after(unit)

    unit.module.register_forward_pre_hook(lambda *_: before(unit))
    unit.module.register_forward_hook(mark_outputs)


def call_after_backward(unit: ShardedUnit, done: Callable[[ShardedUnit], None]) -> None:
    """Call `done(unit)` when the gradients of all inputs of the module are known.

    Inputs are the tensors among its arguments that require a gradient; if there is none, or if one
    gets no gradient, `done` is not called. Each becomes a view, whose gradient is what this module
    alone contributes. The view is the first operation of the forward pass, so it is the last one
    of the backward pass: by then the gradients of the module's parameters are known.
    """

    def mark_inputs(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        inputs: list[Tensor] = []

        def marked(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
                inputs.append(value.view_as(value))
                return inputs[-1]
            return value

        args = tuple(marked(value) for value in args)
        kwargs = {name: marked(value) for name, value in kwargs.items()}
        # torch's register_multi_grad_hook would do, but its closure keeps the graph alive.
        waiting = len(inputs)

        def gradient_is_known(gradient: Tensor) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                done(unit)

        for value in inputs:
            value.register_hook(gradient_is_known)
        return args, kwargs

    unit.module.register_forward_pre_hook(mark_inputs, with_kwargs=True)


def _tensors(output: Any) -> list[Tensor]:
    """The tensors in the output of a module."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
