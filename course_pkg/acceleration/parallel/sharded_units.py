"""Units: the parts of a model whose weights are gathered, reduced and freed together.

Each layer of a decoder is a unit; what remains is the last. A unit's parameters are views into one
flat tensor, which is cut into N equal shards, and one collective moves them all. To free a flat
tensor, its storage is resized to 0 bytes: the views that the backward pass keeps refer to the same
storage, so they see the weights that are gathered again.

Sources: ZeRO (Rajbhandari et al. 2020), section 5; PyTorch FSDP (Zhao et al. 2023), sections 3.2
and 4.2 (FlatParameter).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group


class FlatParameter:
    """Parameters of one dtype, flat: (N · shard_size,), of which rank r has shard r.

    Rank 0's values replace those of the others. Until `keep_only_shard`, `flat` is whole on each
    rank.

    Args:
        parameters: by name; all have one dtype, and all or none are trained.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], group: Group):
        first = next(iter(parameters.values()))
        self.group = group
        self.parameters = parameters
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.trained = first.requires_grad
        self.numbers = sum(parameter.numel() for parameter in parameters.values())
        self.shard_size = -(-self.numbers // group.size)  # rounded up
        self.flat = first.new_zeros(group.size * self.shard_size)
        for view, parameter in zip(self.views(self.flat), parameters.values(), strict=True):
            view.copy_(parameter.detach())
        group.broadcast(self.flat)
        self.shard = self.own_part(self.flat)
        self.gradient: Tensor | None = None
        self._attach()

    @property
    def padding(self) -> int:
        """Numbers at the end of the flat tensor that belong to no parameter; at most N − 1."""
        return len(self.flat) - self.numbers

    @property
    def shard_padding(self) -> int:
        """The numbers of padding that lie in this rank's shard."""
        end = (self.group.rank + 1) * self.shard_size
        return min(self.shard_size, max(0, end - self.numbers))

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters' parts of a tensor (at least `numbers`,), in their shapes."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = flat[: self.numbers].split(sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]

    def own_part(self, flat: Tensor) -> Tensor:
        """This rank's shard of a flat tensor, as a view."""
        return flat.chunk(self.group.size)[self.group.rank]

    def keep_only_shard(self) -> None:
        """Copy the shard out of the flat tensor, and free that."""
        self.shard = self.shard.clone()
        self.free()

    def free(self) -> None:
        """Give the flat tensor's memory back; the parameters have no numbers until `gather`."""
        for parameter in self.parameters.values():
            parameter.data = parameter.data.new_empty(0)  # reading freed memory would crash
        self.flat.untyped_storage().resize_(0)

    def gather(self) -> None:
        """Fill the flat tensor from all ranks' shards, if it is freed; a collective."""
        storage = self.flat.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.flat.nbytes)
            self.group.all_gather(self.shard, into=self.flat)
            self._attach()

    def share_shards(self) -> None:
        """Fill the rest of a flat tensor that is kept, after ranks have changed their shards."""
        self.group.all_gather(self.shard, into=self.flat)

    def reduce_gradients(self, whole: bool) -> None:
        """Add the parameters' gradients, summed over the ranks, to `gradient`; a collective.

        Args:
            whole: keep a flat gradient of all ranks' sizes, of which only this rank's part is the
                sum, and of which the parameters' gradients are views. Otherwise keep the shard
                alone.
        """
        flat = self.flat.new_zeros(self.group.size * self.shard_size, device=self.shard.device)
        for view, parameter in zip(self.views(flat), self.parameters.values(), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view if whole else None
        shard = self.group.reduce_scatter(flat)
        if whole:
            self.own_part(flat).copy_(shard)
            self.gradient = flat
        elif self.gradient is None:
            self.gradient = shard
        else:
            self.gradient += shard

    @property
    def gradient_shard(self) -> Tensor:
        """This rank's part of the sum of the gradients: (shard_size,)."""
        if len(self.gradient) == self.shard_size:
            return self.gradient
        return self.own_part(self.gradient)

    def is_attached(self) -> bool:
        """Whether the parameters are still views of the flat tensor."""
        here = self.flat.untyped_storage().data_ptr()
        return all(p.untyped_storage().data_ptr() == here for p in self.parameters.values())

    def _attach(self) -> None:
        for view, parameter in zip(self.views(self.flat), self.parameters.values(), strict=True):
            parameter.data = view


@dataclasses.dataclass(eq=False)
class ShardedUnit:
    """A module and its parameters: one flat tensor for each dtype, trained or not."""

    module: nn.Module
    flats: list[FlatParameter]
    backward_done: bool = False  # since the gradients were last reduced


def default_units(model: nn.Module) -> list[nn.Module]:
    """The modules in the model's outermost ModuleLists: a decoder's layers."""
    units: list[nn.Module] = []
    for child in model.children():
        units += child if isinstance(child, nn.ModuleList) else default_units(child)
    return units


def make_units(model: nn.Module, group: Group) -> list[ShardedUnit]:
    """The units of the model's layers, and one of the whole model for the other parameters."""
    layers = default_units(model)
    in_layers = {part for layer in layers for part in layer.modules()}
    others = [part for part in model.modules() if part not in in_layers]
    rest = [parameter for part in others for parameter in part.parameters(recurse=False)]
    names = {parameter: name for name, parameter in model.named_parameters()}
    owner: dict[nn.Parameter, nn.Module] = {}
    for module, parameters in [*((layer, layer.parameters()) for layer in layers), (model, rest)]:
        for parameter in parameters:
            if owner.setdefault(parameter, module) is not module:
                raise ValueError(
                    f"two units share the parameter {names[parameter]}, so none may free it: give "
                    "each layer its own"
                )
    units = []
    for module in [*layers, model]:
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
    """Call `before(unit)` before each forward and backward, `after(unit)` after each forward."""

    def mark_outputs(module: nn.Module, args: tuple, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: before(unit))
        after(unit)

    unit.module.register_forward_pre_hook(lambda *_: before(unit))
    unit.module.register_forward_hook(mark_outputs)


def call_after_backward(unit: ShardedUnit, done: Callable[[ShardedUnit], None]) -> None:
    """Call `done(unit)` when the gradients of all inputs of the module are known.

    Without an input that requires a gradient, as in the unit of the whole model, `done` is not
    called. Each input becomes a view: the first operation of the forward pass, so the last one of
    the backward pass. By then the gradients of the module's parameters are known.
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
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
