"""Tensor parallelism: one linear layer on several ranks, each with a part of its weight.

The weight is cut by columns, or by rows::

    columns: Y = X [W1 | W2] = [X W1 | X W2]            each rank gets some features of Y
    rows:    Y = [X1 | X2] [W1; W2] = X1 W1 + X2 W2     each rank gets a part of the sum

After columns, a rank has what the rows need, so that two layers with a pointwise function between
them take one all-reduce in each pass. torch stores the transpose of W, (out_features, in_features).

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.acceleration.parallel.autograd_collectives import (
    all_gather,
    copy_to_group,
    reduce_from_group,
    reduce_scatter,
)
from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.tensor_shards import COLUMNS, ROWS, Placement, own_part

TOKENS = 1  # the dimension of (batch, tokens, hidden)


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
        entered: bool = False,
        sequence_parallel: bool = False,
    ):
        super().__init__()
        placement = Placement(COLUMNS, replicas)
        weight, bias = _tensors(linear)
        self.weight = own_part(weight, placement, group)  # (out / N, in)
        self.bias = None if bias is None else own_part(bias, placement, group)
        self.group = group
        self.entered = entered
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, tokens, in) to (batch, tokens, out / N)."""
        if not self.entered:
            x = enter(x, self.group, self.sequence_parallel)
        return F.linear(x, self.weight, self.bias)


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
