"""Data parallelism: each rank has the whole model and a part of every batch; gradients are summed.

That equals one process if a rank divides the *sum* of its losses by the number of targets of *all*
ranks (`count_targets`). The last layers' gradients are ready first: they are collected into
buckets, and a full bucket is sent while earlier layers are still being computed. Buckets start in
one order, the same on all ranks, because collectives must match. (torch's DistributedDataParallel
averages gradients instead.)

Source: PyTorch Distributed (Li et al. 2020), section 3.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.common.arguments import require_integer

BUCKET_BYTES = 25 * 2**20  # torch's default
IGNORED = -100  # the label of a token that is no target


class DataParallel:
    """Keeps the gradients of a model's replicas equal: their sum over all ranks.

    At the start, rank 0's parameters and buffers replace those of the others. Then, each step::

        with parallel.no_sync():          # only if a step has several microbatches
            loss(first).backward()        # adds up gradients, sends nothing
        loss(last).backward()             # sends each bucket when it is full
        parallel.synchronize()            # now each rank has the sum
        optimizer.step()
        optimizer.zero_grad()             # before the next backward pass

    A rank without targets may leave out the backward pass, but must call `synchronize`.
    """

    def __init__(self, model: nn.Module, group: Group, bucket_bytes: int = BUCKET_BYTES):
        self.group = group
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("no parameter requires a gradient; there is nothing to train")
        for tensor in [*model.parameters(), *model.buffers()]:
            group.broadcast(tensor.detach())
        self.buckets = gradient_buckets(self.parameters, bucket_bytes)
        self.started = 0
        self._complete: set[Tensor] = set()  # parameters whose gradient is final
        self._sending: list[tuple[Tensor, object]] = []  # of each bucket that has started
        self._synchronizing = True
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_complete)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context add to the gradients of this rank and send nothing."""
        before = self._synchronizing
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = before

    def synchronize(self) -> None:
        """Send the buckets that are not full, wait for all, and give each rank the sums."""
        used = [parameter.grad is not None for parameter in self.parameters]
        device = self.parameters[0].device
        used_somewhere = torch.tensor(used, dtype=torch.uint8, device=device)
        while self.started < len(self.buckets):
            self._start_next_bucket()
        self.group.all_reduce(used_somewhere, "max")
        is_used = dict(zip(self.parameters, used_somewhere.tolist(), strict=True))
        for bucket, (flat, wait) in zip(self.buckets, self._sending, strict=True):
            wait()
            sizes = [parameter.numel() for parameter in bucket]
            for parameter, part in zip(bucket, flat.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter) if is_used[parameter] else None
        self.started = 0
        self._sending.clear()
        self._complete.clear()

    def _gradient_is_complete(self, parameter: Tensor) -> None:
        """The hook that runs in the backward pass when a parameter has its gradient."""
        if not self._synchronizing:
            return
        if parameter in self._complete:
            raise RuntimeError(
                "a second backward pass began before synchronize(); "
                "put all backward passes of a step but the last into no_sync()"
            )
        self._complete.add(parameter)
        while self.started < len(self.buckets) and self._complete.issuperset(
            self.buckets[self.started]
        ):
            self._start_next_bucket()

    def _start_next_bucket(self) -> None:
        """Begin the all-reduce of a bucket; a gradient that this rank lacks counts as zero."""
        bucket = self.buckets[self.started]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._sending.append((flat, self.group.start_all_reduce(flat)))
        self.started += 1


def gradient_buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters in the order in which a backward pass usually finishes them: last ones first.

    A bucket has one dtype, and is closed when it has `bucket_bytes` or more.
    """
    require_integer(bucket_bytes, "bucket_bytes")
    buckets: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        full = filled >= bucket_bytes
        if not buckets or full or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


def count_targets(labels: Tensor, group: Group) -> int:
    """How many labels of all ranks are not IGNORED; without any, ValueError on all ranks."""
    count = int(group.all_reduce((labels != IGNORED).sum()[None]))
    if count == 0:
        raise ValueError(f"no rank has a target: every label is {IGNORED}; leave this batch out")
    return count


def rank_batches(rows: int, batch_size: int, *, rank: int, ranks: int) -> Iterator[Tensor]:
    """The row numbers that a rank trains on, batch by batch: each (about batch_size / ranks,).

    All ranks get the same number of batches, and each row is in one batch of one rank; of the last
    batch a rank may get fewer rows, or none. (torch's DistributedSampler repeats or drops rows.)
    """
    require_integer(rows, "rows")
    require_integer(batch_size, "batch_size")
    if not 0 <= require_integer(rank, "rank", 0) < require_integer(ranks, "ranks"):
        raise ValueError(f"rank must be below ranks, got rank {rank} of {ranks}")
    batches = torch.arange(rows).split(batch_size)
    return (batch.tensor_split(ranks)[rank] for batch in batches)


def seed_rank(seed: int, group: Group) -> None:
    """Seed torch with seed + rank: ranks that see different rows drop different activations."""
    torch.manual_seed(require_integer(seed, "seed", 0) + group.rank)
