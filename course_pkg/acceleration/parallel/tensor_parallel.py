"""Tensor parallelism: one linear layer on several ranks, each with a part of its weight.

    columns: Y = X [W1 | W2] = [X W1 | X W2]            each rank gets some features of Y
    rows:    Y = [X1 | X2] [W1; W2] = X1 W1 + X2 W2     each rank gets a part of the sum

After columns, a rank has what the rows need, so that two layers with a pointwise function between
them take one all-reduce in each pass. torch stores the transpose of W, (out_features, in_features).

Source: Shoeybi et al. 2019, "Megatron-LM", section 3. Chapter: acceleration/model-parallelism.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.acceleration.parallel.autograd_collectives import (
    all_gather,
    copy_to_group,
    gather_from_group,
    reduce_from_group,
    reduce_scatter,
)
from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.tensor_shards import COLUMNS, ROWS, Placement, own_part
from course_pkg.common.arguments import require_integer

TOKENS = 1  # the dimension of (batch, tokens, hidden)
OFFSET = 2718  # between the common seed and the first rank's own, as in Megatron


def enter(x: Tensor, group: Group, sequence_parallel: bool = False) -> Tensor:
    """The input of column-parallel layers, (batch, tokens, hidden), on all ranks.

    With sequence parallelism, x is this rank's tokens alone, (batch, tokens / N, hidden).
    """
    return all_gather(x, group, TOKENS) if sequence_parallel else copy_to_group(x, group)


def leave(x: Tensor, group: Group, sequence_parallel: bool = False) -> Tensor:
    """The sum over the ranks of what row-parallel layers computed, (batch, tokens, hidden).

    With sequence parallelism, of this rank's tokens alone, (batch, tokens / N, hidden).
    """
    return reduce_scatter(x, group, TOKENS) if sequence_parallel else reduce_from_group(x, group)


class ColumnParallelLinear(nn.Module):
    """Some of the output features of a linear layer: x W^T + b, with this rank's rows of W and b.

    Args:
        linear: the whole layer, from which the rank copies its part.
        replicas: how many neighboring ranks have the same part.
        entered: the inputs have gone through `enter`, once for several layers.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group,
        *,
        replicas: int = 1,
        gather_output: bool = False,
        entered: bool = False,
        sequence_parallel: bool = False,
    ):
        super().__init__()
        placement = Placement(COLUMNS, replicas)
        weight, bias = _tensors(linear)
        self.weight = own_part(weight, placement, group)  # (out / N, in)
        self.bias = None if bias is None else own_part(bias, placement, group)
        self.group = group
        self.gather_output = gather_output
        self.entered = entered
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, tokens, in) to (batch, tokens, out / N)."""
        if not self.entered:
            x = enter(x, self.group, self.sequence_parallel)
        y = F.linear(x, self.weight, self.bias)
        return gather_from_group(y, self.group) if self.gather_output else y


class RowParallelLinear(nn.Module):
    """Some of the input features of a linear layer; the ranks' results are summed.

    The bias is whole on each rank, and is added once, after the sum.
    """

    def __init__(self, linear: nn.Linear, group: Group, *, sequence_parallel: bool = False):
        super().__init__()
        weight, bias = _tensors(linear)
        self.weight = own_part(weight, Placement(ROWS), group)  # (out, in / N)
        self.bias = None if bias is None else own_part(bias, Placement(None), group)  # (out,)
        self.group = group
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, tokens, in / N) to (batch, tokens, out), or tokens / N of them."""
        y = leave(F.linear(x, self.weight), self.group, self.sequence_parallel)
        return y if self.bias is None else y + self.bias


def _tensors(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    if not isinstance(linear, nn.Linear) or not linear.weight.is_floating_point():
        raise TypeError(
            f"expected an nn.Linear with its own weights, got {type(linear).__name__}: divide a "
            "decoder among ranks before its layers are quantized or get adapters"
        )
    return linear.weight, linear.bias


class ForkedRandom:
    """A second state of torch's random numbers, which differs between ranks.

        torch.manual_seed(seed)
        own = ForkedRandom(seed, group.rank)
        hidden = F.dropout(hidden, 0.1)     # all ranks have hidden
        with own.fork():
            heads = F.dropout(heads, 0.1)   # each rank has its own heads, or its own tokens

    Args:
        seed: the same on all ranks. Outside of `fork`, torch's own state is used, which must be
            seeded alike on all ranks: there, dropout on what all ranks have agrees.

    Example:

        >>> first, second = (ForkedRandom(7, rank) for rank in (0, 1))
        >>> with first.fork():
        ...     x = torch.rand(3)
        >>> with second.fork():
        ...     y = torch.rand(3)
        >>> torch.equal(x, y)
        False
    """

    def __init__(self, seed: int, rank: int, device: str | torch.device = "cpu"):
        require_integer(seed, "seed", 0)
        require_integer(rank, "rank", 0)
        device = torch.device(device)
        self.generator = torch.default_generator
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self.generator = torch.cuda.default_generators[index]
        self.state = torch.Generator(device).manual_seed(seed + OFFSET + rank).get_state()

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """Inside, torch draws from this rank's own state; outside, it goes on as before."""
        common = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            yield
        finally:
            self.state = self.generator.get_state()
            self.generator.set_state(common)
