"""The same numbers in every layout, and memory that shows what a kernel did not write."""

from contextlib import contextmanager

import torch


@contextmanager
def filled_memory():
    """New tensors hold NaN or the largest integer, so that a kernel that writes nothing shows."""
    was = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1).isnan().all(), "new memory is not filled"
        yield
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])


def layouts(x):
    """By name, tensors of x's shape, a matrix: four with its numbers, two that repeat some.

    Where a size is one, there are also those whose stride there is 0 or odd, which changes nothing.
    """
    rows, columns = x.shape
    views = {
        "new": x.clone(),
        "transposed": x.T.contiguous().T,
        "a part of the columns": torch.cat((x, x + 1), 1)[:, :columns],
        "every second row and column": x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
        "one row, expanded": x[:1].expand(rows, columns),
        "one column, expanded": x[:, :1].expand(rows, columns),
    }
    if rows == 1:
        views["a row, stride 0"] = x.clone().as_strided(x.shape, (0, 1))
        views["a row, stride 1"] = x.clone().as_strided(x.shape, (1, 1))
    if columns == 1:
        views["a column, stride 0"] = x.clone().as_strided(x.shape, (1, 0))
        views["a column, stride 7"] = x.clone().as_strided(x.shape, (1, 7))
    return views
