"""Training on several processes: what the ranks deal out, add up, and agree on.

`torchrun` starts N processes, the ranks, which run one script. Each has the whole model, and
computes its share of a step's batches; the gradients are added up, so all ranks take the same step.
In one process, everything here returns at once.

Whole batches are dealt, not their rows: then each batch is computed as one process computes it,
whatever its tensors are, and a step has the same targets for every N. If N doesn't divide the
batches of a step, some ranks wait for the others.

Every rank reads all batches. So each knows the targets of the step without asking, and a mistake in
the data is the same everywhere. Differences are found, not assumed away: a failure on one rank
becomes the same error on all, because a rank that waits for a failed one waits forever.

Source: Li et al. 2020, "PyTorch Distributed". `sharding` has the way in which no rank holds the
whole model. Chapter: finetuning/sft.
"""

import contextlib
import math
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_pkg.finetuning.sharding import shard, whole

BUCKET = 25 * 2**20  # bytes that are summed in one call, as in torch's DistributedDataParallel


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

    rank, size: this process's number, and how many there are. sharded: whether each rank holds only
    a part of each weight; None means yes on GPUs, unless a callback needs whole weights.
    Raises ValueError for sharded=True without a process group, or with a callback.
    """

    def __init__(self, sharded: bool | None = None, callback: object = None) -> None:
        self.together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.together else 0
        self.size = dist.get_world_size() if self.together else 1
        nccl = self.together and "nccl" in dist.get_backend()
        gpu = torch.cuda.current_device() if nccl else None
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        if sharded and not self.together:
            raise ValueError(
                "sharded=True needs a process group: run the script with torchrun, and train "
                "inside `with process_group():`"
            )
        if sharded and callback is not None:
            raise ValueError("a callback needs whole weights: train with sharded=False")
        self.sharded = nccl and callback is None if sharded is None else sharded

    def share(self, model: nn.Module) -> nn.Module:
        """The model, with the weights of rank 0; if sharded, a copy in which this rank has a part.

        Raises ValueError if the ranks' models differ in more than values, or if the model is not on
        the GPU and must be: shards are put there, but a whole model stays where it is.
        """
        if not self.together:
            return model
        here = {parameter.device.type for parameter in model.parameters()}
        if self.device.type == "cuda" and not self.sharded and here != {"cuda"}:
            raise ValueError(
                'the ranks communicate between GPUs: move the model to one with model.to("cuda"), '
                "or train with sharded=True"
            )
        kinds = [(n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()]
        self.require_same("the model", kinds)
        for tensor in [*model.parameters(), *model.buffers()]:
            first = tensor.detach().to(self.device).contiguous()
            dist.broadcast(first, 0)
            tensor.detach().copy_(first)
        return shard(model, self.device) if self.sharded else model

    def deal(self, counts: Sequence[int]) -> list[tuple[int, float]]:
        """The batches of a step that this rank computes: index and share of the step's targets.

        counts: the targets of each batch. A batch without targets is left out: its mean loss would
        be 0/0. Sharded ranks compute together, so one with too few batches computes another one's
        again, with weight 0.

        >>> Ranks().deal([3, 0, 1])
        [(0, 0.75), (2, 0.25)]
        """
        indices = [index for index, count in enumerate(counts) if count > 0]
        mine = [(i, counts[i] / sum(counts)) for i in indices[self.rank :: self.size]]
        if self.sharded:
            rounds = math.ceil(len(indices) / self.size)
            mine += [(indices[0], 0.0)] * (rounds - len(mine))
        return mine

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sum over the ranks of each number, in float64."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def of_first(self, number: float) -> float:
        """The number that rank 0 has."""
        return self.sum([number if self.rank == 0 else 0.0])[0]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by the sum over the ranks; FSDP2 has done it in the backward pass.

        A rank without a gradient counts as 0. Without any, there is none, so AdamW skips it.
        Raises RuntimeError if FSDP2 has not.
        """
        parameters = list(parameters)
        if self.sharded and all(p.grad is None for p in parameters):
            raise RuntimeError(
                "FSDP2 found no gradient: the model's output must be a dict or a ModelOutput of "
                "transformers, in which it finds the loss; or train with sharded=False"
            )
        if self.size == 1 or self.sharded:
            return
        present = self.sum([float(p.grad is not None) for p in parameters])
        used = [p for p, count in zip(parameters, present, strict=True) if count]
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in buckets([p.grad for p in used]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat)
            for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients as torch's `clip_grad_norm_`; the norm is over all parts of shards."""
        return whole(nn.utils.clip_grad_norm_(parameters, max_norm))

    def gather(self, value: Any) -> list:
        """The values of all ranks, by rank."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def agree(self, computing: bool = False) -> Iterator[None]:
        """A block that all ranks leave together: if it fails on one, the same error is on all.

        The block must not communicate. computing: it runs the model, in which sharded ranks do
        communicate; then a failure is this rank's alone, and the launcher ends the others.
        """
        if self.size == 1 or (computing and self.sharded):
            yield
            return
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        if any(self.sum([float(error is not None)])):
            errors = self.gather(error and _portable(error))
            rank = next(rank for rank, each in enumerate(errors) if each is not None)
            if rank == self.rank:
                raise error
            errors[rank].add_note(f"on rank {rank}")
            raise errors[rank] from error

    def on_first(self, function: Callable, *arguments: Any) -> None:
        """Call a function on rank 0 alone; all wait for it, and raise what it raises."""
        with self.agree():
            if self.rank == 0:
                function(*arguments)

    def require_same(self, name: str, value: Any) -> None:
        """Raise ValueError on all ranks unless the value, tensors included, is the same on each."""
        if self.size == 1:
            return
        digests = self.gather(zlib.crc32(_text(value).encode()))
        other = next((r for r, each in enumerate(digests) if each != digests[0]), None)
        if other is not None:
            raise ValueError(
                f"{name} differs between rank 0 and rank {other}: give every rank the same model, "
                "the same settings, and all batches in the same order (a DataLoader that shuffles "
                "needs a generator with a seed); train deals the batches to the ranks itself"
            )


def buckets(tensors: Iterable[Tensor], size: int = BUCKET) -> Iterator[list[Tensor]]:
    """Successive tensors of one dtype and device, of at most `size` bytes unless one is larger.

    >>> rows = [torch.zeros(2), torch.zeros(1), torch.zeros(3), torch.zeros(1).double()]
    >>> [[len(row) for row in bucket] for bucket in buckets(rows, size=12)]
    [[2, 1], [3], [1]]
    """
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(each.nbytes for each in bucket) + tensor.nbytes > size
        if bucket and (full or not _alike(tensor, bucket[0])):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device) == (other.dtype, other.device)


def _portable(error: Exception) -> Exception:
    """The error, or one that can be sent."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _text(value: Any) -> str:
    """A value as text, which differs if a tensor in it has another number."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, Tensor):
        data = value.detach().cpu().flatten().view(torch.uint8).numpy()
        return f"{value.dtype}{tuple(value.shape)}{zlib.crc32(data)}"
    return repr(value)
