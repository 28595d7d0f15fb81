"""Training on several processes: what they share, deal out and add up, around the plain loop.

`torchrun` starts N processes, the ranks. Each has the whole model (on GPUs, a part of each weight:
FSDP2), and computes its share of a step's batches; the gradients are added up. Not torch's
DistributedDataParallel, which accelerate uses too: it communicates inside `backward`, so a rank
that fails there leaves the others waiting. Here a failure on one rank becomes the same error on
all.

Sources: Li et al. 2020, "PyTorch Distributed"; Zhao et al. 2023, "PyTorch FSDP".
"""

import contextlib
import copy
import math
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from course_pkg.acceleration.parallel.sharded_units import default_units
from course_pkg.adapters.injection import trainable_parameters
from course_pkg.finetuning.batches import Batch
from course_pkg.finetuning.config import Callback, Evaluate, FilePath, TrainConfig
from course_pkg.finetuning.training_state import (
    History,
    TrainingState,
    random_states,
    write_checkpoint,
)


@contextlib.contextmanager
def process_group() -> Iterator["Ranks"]:
    """Join the other processes that `torchrun` started; without it, this process is alone.

    With GPUs, each process uses the one with the number LOCAL_RANK, and NCCL; otherwise gloo.

    >>> with process_group() as ranks:
    ...     ranks.rank, ranks.size
    (0, 1)
    """
    joins = "WORLD_SIZE" in os.environ and not dist.is_initialized()
    if joins:
        gpus = torch.cuda.is_available()
        if gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if gpus else "gloo")
    try:
        yield Ranks()
    finally:
        if joins:
            dist.destroy_process_group()


class Ranks:
    """The processes that train together, as one of them sees it.

    Attributes:
        rank: this process's number, from 0.
        size: the number of processes.
        device: where tensors must be to be sent.
    """

    def __init__(self) -> None:
        self.together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.together else 0
        self.size = dist.get_world_size() if self.together else 1
        nccl = self.together and "nccl" in dist.get_backend()
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        )
        self.settled = False  # the ranks have agreed on an error
        self.computing = False  # inside code that communicates by itself

    def gather(self, value: Any = None, error: Exception | None = None) -> list:
        """The values of all ranks, by rank. If one of them sends an error, all raise it."""
        if not self.together:
            if error is not None:
                raise error
            return [value]
        messages: list = [None] * self.size
        dist.all_gather_object(messages, (value, _portable(error)))
        for rank, (_, failure) in enumerate(messages):
            if failure is None:
                continue
            self.settled = True
            if rank == self.rank:
                raise error
            failure.add_note(f"on rank {rank}")
            raise failure from error
        return [value for value, _ in messages]

    @contextlib.contextmanager
    def agreement(self) -> Iterator[None]:
        """A block that all ranks leave together: an error on one is the same error on all.

        Only a failure in code that communicates by itself is this rank's alone; then the launcher
        ends the others.
        """
        try:
            yield
        except Exception as error:
            if self.together and not (self.settled or self.computing):
                self.gather(error=error)
            raise
        self.gather()

    def on_first(self, function: Callable, *arguments: Any) -> None:
        """Call a function on rank 0 alone; all wait for it, and raise what it raises."""
        with self.agreement():
            if self.rank == 0:
                function(*arguments)

    def require_same(self, name: str, value: Any) -> None:
        """Raise ValueError on all ranks unless the value, tensors included, is the same on each."""
        digests = self.gather(zlib.crc32(_text(value).encode()))
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            self.settled = True
            raise ValueError(
                f"{name} differs between rank 0 and rank {different[0]}: give every rank the same "
                "model, the same settings, and all batches in the same order (a DataLoader that "
                "shuffles needs a generator with a seed); train deals the batches to the ranks "
                "itself"
            )


class SharedState(TrainingState):
    """The state of a run on several ranks, each of which begins with the weights of rank 0.

    A checkpoint, which rank 0 writes and all read, holds whole tensors, so any number of ranks can
    resume it.

    Args:
        sharded: each rank holds only a part of each weight of its copy of the model, on its
            device; `finish` gives the model the trained weights. None means yes on GPUs, unless
            there is a callback.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        callback: Callback | None,
        ranks: Ranks,
        sharded: bool | None,
    ) -> None:
        if sharded and callback is not None:
            raise ValueError("a callback needs whole weights: train with sharded=False")
        if sharded is None:
            sharded = ranks.device.type == "cuda" and callback is None
        self.ranks = ranks
        self.sharded = sharded
        self.whole_model = model
        self._share_weights()
        if sharded:
            model = shard(model, ranks.device)
        super().__init__(model, config, callback)
        self.seed += ranks.rank  # each rank drops out other numbers
        if ranks.rank > 0:
            self.config = replace(config, progress=False)

    def _share_weights(self) -> None:
        model = self.whole_model
        devices = {parameter.device.type for parameter in model.parameters()}
        if self.ranks.device.type == "cuda" and not self.sharded and devices != {"cuda"}:
            raise ValueError(
                'the ranks communicate between GPUs: move the model to one with model.to("cuda"), '
                "or train with sharded=True"
            )
        kinds = [(n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()]
        self.ranks.require_same("the model", [self.sharded, kinds])
        for tensor in [*model.parameters(), *model.buffers()]:
            first = tensor.detach().to(self.ranks.device).contiguous()
            dist.broadcast(first, 0)
            tensor.detach().copy_(first)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Code that runs the model, in which ranks with parts of it communicate."""
        self.ranks.computing = self.sharded
        yield
        self.ranks.computing = False  # after an error, it stays as it is

    def backward(self, batches: Sequence[Batch], weights: Sequence[float]) -> list[float]:
        ranks = self.ranks
        ranks.require_same(f"the data of step {len(self.history.steps) + 1}", batches)
        own = [0.0] * len(batches)
        with self._computing():
            for index, weight in deal(weights, ranks.rank, ranks.size, equally=self.sharded):
                own[index] += self.backward_batch(batches[index], weight)
        parameters = list(self.parameters.values())
        present = [parameter.grad is not None for parameter in parameters]
        losses, used = zip(*ranks.gather((own, present)), strict=True)
        if not self.sharded:
            used = map(any, zip(*used, strict=True))
            add_gradients([p for p, some in zip(parameters, used, strict=True) if some])
        elif not any(present):
            raise RuntimeError(
                "FSDP2 found no gradient: the model's output must be a dict or a ModelOutput of "
                "transformers, in which it finds the loss; or train with sharded=False"
            )
        return [sum(parts) for parts in zip(*losses, strict=True)]

    def clip_gradients(self) -> float:
        """The norm is over all parts of shards."""
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm)
        return whole(norm).item()

    def evaluate(self, function: Evaluate) -> float:
        """The value that rank 0 has; all compute it."""
        with self._computing():
            value = super().evaluate(function)
        return self.ranks.gather(value)[0]

    def finish(self) -> History:
        if self.sharded:
            with torch.no_grad():
                for name, parameter in trainable_parameters(self.whole_model).items():
                    parameter.copy_(whole(self.parameters[name].detach()))
        return super().finish()

    def save(self, path: FilePath) -> None:
        """Rank 0 writes whole weights and optimizer, and the random states of all ranks."""
        content = whole(self.content(), keep=self.ranks.rank == 0)
        first, *others = self.ranks.gather(random_states())
        content |= {**first, "other_ranks": others}
        self.ranks.on_first(write_checkpoint, path, content)

    def read(self, path: FilePath) -> dict[str, Any]:
        """A checkpoint's content, with this rank's parts and random states."""
        content = super().read(path)
        states = [content, *content.get("other_ranks", [])]
        # A rank that the run didn't have keeps the random state that it has.
        mine = states[self.ranks.rank] if self.ranks.rank < len(states) else random_states()
        weights = {
            name: part_like(weight, self.parameters[name])
            for name, weight in content["weights"].items()
        }
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = {
            index: {name: part_like(moment, parameters[index]) for name, moment in state.items()}
            for index, state in content["optimizer"]["state"].items()
        }
        return content | {
            "weights": weights,
            "optimizer": {**content["optimizer"], "state": moments},
            "rng": mine["rng"],
            "cuda_rng": mine["cuda_rng"],
        }

    def check_path(self, path: FilePath) -> None:
        if self.ranks.rank == 0:
            super().check_path(path)


def deal(
    weights: Sequence[float], rank: int, size: int, *, equally: bool = False
) -> list[tuple[int, float]]:
    """The batches of a step that a rank computes: index and weight of each.

    Args:
        weights: of all batches. One with weight 0 has no target, and is left out.
        equally: a rank with too few batches computes another one's again, with weight 0, because
            ranks with parts of a model compute together.
    """
    indices = [index for index, weight in enumerate(weights) if weight > 0]
    own = [(index, weights[index]) for index in indices[rank::size]]
    if equally:
        rounds = math.ceil(len(indices) / size)
        own += [(indices[0], 0.0)] * (rounds - len(own))
    return own


def add_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by the sum over the ranks; one that is absent counts as 0."""
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = gradient.contiguous()
    sums = [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
    for pending in sums:
        pending.wait()


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a model in which each rank has its part of each weight, on its device (FSDP2).

    torch's `fully_shard` cuts each weight into N parts by rows; a layer's whole weights exist only
    while it computes. The model itself stays where it is: on the CPU if one GPU can't hold it.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    sharded = copy.deepcopy(model)
    for module in [*default_units(sharded), sharded]:
        fully_shard(module, mesh=mesh)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sums over the ranks, not means
            module.set_force_sum_reduction_for_comms(True)  # gloo can't scale while it sums
    return sharded


def whole(value: Any, keep: bool = True) -> Any:
    """Gather what is in parts (DTensors), also in a dict of dicts; every rank must call it.

    keep=False returns None for each of them, for a rank that only helps the others.
    """
    if isinstance(value, dict):
        return {name: whole(content, keep) for name, content in value.items()}
    if not isinstance(value, DTensor):
        return value
    gathered = value.full_tensor()
    return gathered.cpu() if keep else None


def part_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a whole tensor, if a parameter of its shape is in parts."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    tensor = tensor.to(parameter.device)
    mesh = parameter.device_mesh
    return distribute_tensor(tensor, mesh, parameter.placements, src_data_rank=None)


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one that can be sent."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _text(value: Any) -> str:
    """A value as text, which differs if a tensor in it has another number."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{_text(content)}" for name, content in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, Tensor):
        data = value.detach().cpu().flatten().view(torch.uint8).numpy()
        return f"{value.dtype}{tuple(value.shape)}{zlib.crc32(data)}"
    return repr(value)
