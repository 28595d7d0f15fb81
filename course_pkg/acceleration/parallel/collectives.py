"""Collectives as rings: each rank sends to the next one and receives from the one before.

An all-reduce gives every rank the sum over all ranks. As a ring it takes two halves. Each rank cuts
its tensor into N chunks. In a reduce-scatter, N − 1 steps pass partial sums on, so that at the end
rank r has the whole sum of chunk r. In an all-gather, N − 1 steps pass the sums around. A rank
sends 1/N of the tensor in each step: 2(N − 1)/N of it in total, nearly independent of N.

All ranks end with the same bits, because each chunk is summed once and then copied.

The norm of a gradient that is spread over ranks is here too, because all ranks must clip by the
same number: the norm of the gradient that one process would have. Shards lie on one rank each, so
their squares are summed over the ranks. A replicated gradient lies on every rank, and would count N
times. So the caller says which tensors are which. A weight that is used twice, such as a tied
embedding, is one parameter with one gradient.

Sources: Patarasuk and Yuan 2009; the α–β model, Hockney 1994; Pascanu et al. 2013 for clipping;
`torch.nn.utils.clip_grad_norm_`; Megatron-LM's `get_grad_norm_fp32`.
Chapter: acceleration/parallelism.
"""

import itertools
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
PIECES = 8  # into which a broadcast cuts its tensor


class Group:
    """The ranks that communicate with each other, as one of them sees it.

    All ranks must call the same collectives in the same order, with tensors of one shape and dtype.
    gloo notices only a message that is too long, and then ends the process.

    Args:
        process_group: one of torch, None for all ranks.
        algorithm: "ring" is this file, and counts bytes; "torch" calls torch's collectives, which
            are faster and not counted.

    Attributes:
        rank, size: this rank's number, and how many there are.
        sent_bytes, messages: what this rank has sent by rings, `send` and `exchange`; set them to 0
            to count anew.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, algorithm: str = "ring"):
        self.process_group = process_group or dist.group.WORLD
        self.algorithm = require_choice(algorithm, "algorithm", ALGORITHMS)
        self.rank = dist.get_rank(self.process_group)
        self.size = dist.get_world_size(self.process_group)
        self.sent_bytes = 0
        self.messages = 0

    def __deepcopy__(self, memo: dict) -> "Group":
        """Itself: two copies of a model on this rank talk to the same ranks."""
        return self

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to a rank of this group, which must `receive` it."""
        self._check_other(rank)
        self._count(tensor)
        dist.send(tensor.contiguous(), group=self.process_group, group_dst=rank)

    def receive(self, into: Tensor, rank: int) -> Tensor:
        """Fill a tensor with what a rank of this group sends; return it.

        Its shape and dtype must be those of what is sent.
        """
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
        """Replace a tensor by the sum over all ranks, or by the largest, in place; return it.

        Args:
            operation: "sum" or "max". A rank sends 2(N − 1)/N of its bytes, if N divides its
                numbers.
        """
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
        """This rank's part of the sum over all ranks: rows r·n to (r + 1)·n of N·n rows.

        A rank sends (N − 1)/N of its bytes.

        Raises:
            ValueError: N doesn't divide the rows.
        """
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
            into: a contiguous tensor of that shape to fill and return; the given one may be this
                rank's rows of it. A rank sends N − 1 times its own tensor, which is (N − 1)/N of
                the result.
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
        on. Each rank but the last of the chain sends the tensor once.
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
        """One step of a ring."""
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
    """The bytes that a rank sends when `size` bytes are on each rank at the end.

    Args:
        collective: "all_reduce", "reduce_scatter" (of a tensor of `size` bytes), "all_gather" (to a
            tensor of `size` bytes) or "broadcast" (all ranks but the last of the chain).

    Example:

        >>> ring_bytes("all_reduce", ranks=4, size=1000)
        1500.0
    """
    steps = _steps(collective, require_integer(ranks, "ranks"))
    if collective == "broadcast":
        return float(size) if ranks > 1 else 0.0
    return steps * size / ranks


def ring_seconds(
    collective: str, ranks: int, size: int, *, latency: float, bandwidth: float
) -> float:
    """The α–β model: a message of n bytes takes α + n·β seconds.

    With many ranks, the bytes hardly grow, but the messages do:

    Args:
        latency: α, seconds.
        bandwidth: 1/β, bytes per second, of one link in one direction; all links of the ring work
            at the same time.
        collective, ranks, size: as in `ring_bytes`.

    Example:

        >>> small, large = (ring_seconds("all_reduce", n, 10**6, latency=1e-5, bandwidth=1e11)
        ...                 for n in (2, 64))
        >>> round(1e6 * small), round(1e6 * large)  # microseconds
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


def all_equal(tensor: Tensor, group: Group) -> bool:
    """Whether a tensor has the same bits on all ranks; each rank gets the answer."""
    every = group.all_gather(tensor.detach()[None])
    return all(torch.equal(left, right) for left, right in itertools.pairwise(every))


EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


def global_norm(
    sharded: Iterable[Tensor], group: Group, replicated: Iterable[Tensor] = ()
) -> Tensor:
    """The Euclidean norm of a gradient whose parts are on several ranks: (), fp64.

    Args:
        sharded: this rank's parts; no number is on two ranks.
        replicated: tensors that are the same on all ranks; each counts once. Every rank gets the
            same bits. A rank may hold nothing.

    Example:

        >>> from course_pkg.acceleration.parallel.launch import launch
        >>> def norm(group):
        ...     shard = torch.tensor([[2.0], [4.0]][group.rank])
        ...     return global_norm([shard], group, replicated=[torch.tensor([4.0])]).item()
        >>> launch(norm, 2)  # √(2² + 4² + 4²)
        [6.0, 6.0]
    """
    sharded = list(sharded)
    replicated = list(replicated)
    device = next((tensor.device for tensor in sharded + replicated), torch.device("cpu"))
    total = group.all_reduce(_squares(sharded, device)[None])[0]
    return (total + _squares(replicated, device)).sqrt()


@torch.no_grad()
def clip_by_norm(gradients: Iterable[Tensor], norm: Tensor | float, max_norm: float) -> None:
    """Scale gradients in place so that their norm, which is given, becomes at most `max_norm`.

    Args:
        norm: of the whole gradient, as `global_norm` returns it. If it is NaN, all gradients become
            NaN, as torch's do: also those of a rank that has none.

    Raises:
        ValueError: unless max_norm > 0.

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


def _squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """The sum of the squares: (), fp64."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for tensor in tensors:
        total += tensor.detach().double().square().sum()
    return total
