"""Collectives as rings: each rank sends to the next one and receives from the one before.

An all-reduce takes two halves. Each rank cuts its tensor into N chunks. In a reduce-scatter, N − 1
steps pass partial sums on, so that at the end rank r has the whole sum of chunk r. In an
all-gather, N − 1 steps pass the sums around. A rank sends 2(N − 1)/N of the tensor in total. All
ranks end with the same bits, because each chunk is summed once and then copied.

Sources: Patarasuk and Yuan 2009; the α–β model, Hockney 1994; Pascanu et al. 2013 for clipping.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from course_pkg.common.arguments import (
    require_between,
    require_choice,
    require_integer,
    require_number,
)

ALGORITHMS = ("ring", "torch")
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
PIECES = 8  # into which a broadcast cuts its tensor


class Group:
    """The ranks that communicate with each other, as one of them sees it.

    All ranks must call the same collectives in the same order, with tensors of one shape and dtype.
    gloo notices only a message that is too long, and then ends the process.

    Args:
        process_group: one of torch, None for all ranks.
        algorithm: "ring" is this file, and counts bytes and messages in `sent_bytes` and
            `messages`; "torch" calls torch's collectives, which are faster and not counted.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, algorithm: str = "ring"):
        self.process_group = process_group or dist.group.WORLD
        self.algorithm = require_choice(algorithm, "algorithm", ALGORITHMS)
        self.rank = dist.get_rank(self.process_group)
        self.size = dist.get_world_size(self.process_group)
        self.sent_bytes = 0
        self.messages = 0

    def __deepcopy__(self, memo: dict) -> "Group":
        return self

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to a rank of this group, which must `receive` it."""
        self._check_other(rank)
        self._count(tensor)
        dist.send(tensor.contiguous(), group=self.process_group, group_dst=rank)

    def receive(self, into: Tensor, rank: int) -> Tensor:
        """Fill a tensor of the right shape and dtype with what another rank sends; return it."""
        self._check_other(rank)
        dist.recv(into, group=self.process_group, group_src=rank)
        return into

    def exchange(self, tensor: Tensor, into: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank while receiving from another, so that no rank waits for its turn."""
        self._check_other(to)
        self._check_other(source)
        self._count(tensor)
        operations = [
            dist.P2POp(dist.isend, tensor.contiguous(), group=self.process_group, group_peer=to),
            dist.P2POp(dist.irecv, into, group=self.process_group, group_peer=source),
        ]
        for work in dist.batch_isend_irecv(operations):  # gloo returns several, nccl one
            work.wait()
        return into

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Replace a tensor by the "sum" over all ranks, or the "max", in place; return it."""
        require_choice(operation, "operation", tuple(OPERATIONS))
        if self.algorithm == "torch":
            dist.all_reduce(tensor, OPERATIONS[operation], group=self.process_group)
            return tensor
        flat = tensor.contiguous().view(-1)
        chunks = list(flat.tensor_split(self.size))
        self._reduce_scatter_steps(chunks, operation)
        self._all_gather_steps(chunks)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view_as(tensor))
        return tensor

    def start_all_reduce(self, tensor: Tensor) -> Callable[[], object]:
        """Begin an `all_reduce`; the sum is in the tensor once the returned function was called.

        torch's runs in the background. A ring doesn't: it has ended when this returns.
        """
        if self.algorithm == "torch":
            return dist.all_reduce(tensor, group=self.process_group, async_op=True).wait
        self.all_reduce(tensor)
        return lambda: None

    @torch.no_grad()
    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """This rank's part of the sum over all ranks: rows r·n to (r + 1)·n of N·n rows."""
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} can't be divided among {self.size} ranks "
                "by rows; pad the first dimension"
            )
        if self.algorithm == "torch":
            part = tensor.new_empty(tensor.shape[0] // self.size, *tensor.shape[1:])
            dist.reduce_scatter_single(part, tensor.contiguous(), group=self.process_group)
            return part
        chunks = list(tensor.clone(memory_format=torch.contiguous_format).chunk(self.size))
        self._reduce_scatter_steps(chunks)
        return chunks[self.rank].clone()

    @torch.no_grad()
    def all_gather(self, tensor: Tensor, into: Tensor | None = None) -> Tensor:
        """The tensors of all ranks, which have one shape, below each other: (N · rows, …).

        Args:
            into: a contiguous tensor of that shape to fill; `tensor` may be this rank's rows of it.
        """
        if tensor.dim() == 0:
            raise ValueError("a tensor of shape () has no rows to gather; give tensor[None]")
        whole = into
        if whole is None:
            whole = tensor.new_empty(self.size * tensor.shape[0], *tensor.shape[1:])
        if self.algorithm == "torch":
            dist.all_gather_single(whole, tensor.contiguous(), group=self.process_group)
            return whole
        chunks = list(whole.chunk(self.size))
        chunks[self.rank].copy_(tensor)
        self._all_gather_steps(chunks)
        return whole

    @torch.no_grad()
    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace a tensor by the one of a rank, in place; return it.

        The pieces follow each other from rank to rank: the second is sent while the first is passed
        on.
        """
        self._check_rank(source)
        if self.algorithm == "torch":
            dist.broadcast(tensor, group=self.process_group, group_src=source)
            return tensor
        flat = tensor.contiguous().view(-1)
        place = (self.rank - source) % self.size  # in the chain that begins at the source
        for piece in flat.tensor_split(PIECES):
            if place > 0:
                self.receive(piece, (self.rank - 1) % self.size)
            if place < self.size - 1:
                self.send(piece, (self.rank + 1) % self.size)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view_as(tensor))
        return tensor

    def _reduce_scatter_steps(self, chunks: list[Tensor], operation: str = "sum") -> None:
        """Afterwards chunks[rank] is the sum; the other chunks are partial sums."""
        combine = torch.maximum if operation == "max" else torch.add
        received = torch.empty_like(chunks[0])  # the first chunk is never the smaller one
        for step in range(self.size - 1):
            mine = chunks[(self.rank - step - 1) % self.size]
            next_one = chunks[(self.rank - step - 2) % self.size]
            room = received[: len(next_one)]
            combine(next_one, self._pass_on(mine, room), out=next_one)

    def _all_gather_steps(self, chunks: list[Tensor]) -> None:
        """Before, chunks[rank] is right; afterwards, all chunks are."""
        for step in range(self.size - 1):
            mine = chunks[(self.rank - step) % self.size]
            self._pass_on(mine, chunks[(self.rank - step - 1) % self.size])

    def _pass_on(self, tensor: Tensor, into: Tensor) -> Tensor:
        return self.exchange(
            tensor, into, to=(self.rank + 1) % self.size, source=(self.rank - 1) % self.size
        )

    def _check_rank(self, rank: int) -> None:
        if require_integer(rank, "rank", 0) >= self.size:
            raise ValueError(f"rank must be below the number of ranks, {self.size}, got {rank}")

    def _check_other(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ValueError(f"rank {rank} can't send to itself, or receive from itself")

    def _count(self, tensor: Tensor) -> None:
        self.sent_bytes += tensor.nbytes
        self.messages += 1


def ring_bytes(collective: str, ranks: int, size: int) -> float:
    """The bytes that a rank sends in a collective on a tensor of `size` bytes."""
    steps = _steps(collective, require_integer(ranks, "ranks"))
    if collective == "broadcast":
        return float(size) if ranks > 1 else 0.0
    return steps * size / ranks


def ring_seconds(
    collective: str, ranks: int, size: int, *, latency: float, bandwidth: float
) -> float:
    """The α–β model: a message of n bytes takes α + n·β seconds.

    Args:
        latency: α, seconds.
        bandwidth: 1/β, bytes per second, of one link in one direction.

    Example:

        >>> small, large = (ring_seconds("all_reduce", n, 10**6, latency=1e-5, bandwidth=1e11)
        ...                 for n in (2, 64))
        >>> round(1e6 * small), round(1e6 * large)  # microseconds: more messages, not more bytes
        (30, 1280)
    """
    require_between(bandwidth, "bandwidth", 0, math.inf)
    steps = _steps(collective, require_integer(ranks, "ranks"))
    parts = PIECES if collective == "broadcast" else ranks
    return steps * (latency + size / parts / bandwidth)


def _steps(collective: str, ranks: int) -> int:
    """How many messages follow each other."""
    steps: dict[str, Callable[[int], int]] = {
        "all_reduce": lambda n: 2 * (n - 1),
        "reduce_scatter": lambda n: n - 1,
        "all_gather": lambda n: n - 1,
        "broadcast": lambda n: n + PIECES - 2 if n > 1 else 0,
    }
    return steps[require_choice(collective, "collective", tuple(steps))](ranks)


@torch.no_grad()
def global_norm(gradients: Iterable[Tensor], group: Group) -> Tensor:
    """The norm of a gradient, each part of which is on one rank: (), fp64, on every rank."""
    gradients = list(gradients)
    device = gradients[0].device if gradients else "cpu"
    squares = torch.zeros(1, dtype=torch.float64, device=device)
    for gradient in gradients:
        squares += gradient.double().square().sum()
    return group.all_reduce(squares)[0].sqrt()


@torch.no_grad()
def clip_by_norm(gradients: Iterable[Tensor], norm: Tensor | float, max_norm: float) -> None:
    """Scale gradients in place so that their norm, which is given, becomes at most `max_norm`.

    As torch's, a norm of NaN makes all gradients NaN.

    Example:

        >>> gradient = torch.tensor([3.0, 4.0])
        >>> clip_by_norm([gradient], norm=5.0, max_norm=1.0)
        >>> gradient
        tensor([0.6000, 0.8000])
    """
    if not require_number(max_norm, "max_norm") > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    scale = max_norm / (float(norm) + EPSILON)
    if scale >= 1:  # false for NaN
        return
    for gradient in gradients:
        gradient.mul_(scale)
