"""Flash-decoding: one query per sequence against a long cache, split over the keys.

With one query, blocks of queries give a GPU no parallel work. So the keys are split into parts, and
`merge` combines their outputs exactly, by their log-sum-exps.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_attention
from course_pkg.acceleration.attention.plain import attention
from course_pkg.common.arguments import require_integer


def decode_attention(query: Tensor, key: Tensor, value: Tensor, *, splits: int) -> Tensor:
    """Attention of the newest token to all keys, in `splits` parts: (batch, heads, 1, value_dim).

    The parts are computed in at least float32 and rounded to the query's type after `merge`.

    Args:
        query: (batch, heads, 1, head_dim), at the position of the last key.
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        splits: how many parts; those beyond the number of keys are empty.

    Source: Dao et al., "Flash-Decoding for long-context inference" (2023).
    """
    check_attention(query, key, value)
    if query.shape[2] != 1:
        raise ValueError(
            f"query has {query.shape[2]} tokens: decode_attention takes 1 per sequence; "
            "use flash_attention for more"
        )
    require_integer(splits, "splits")
    keys = key.shape[2]
    bounds = [keys * part // splits for part in range(splits + 1)]
    dtype = torch.promote_types(query.dtype, torch.float32)
    parts = []
    for start, stop in pairwise(bounds):
        k, v = (tensor[:, :, start:stop].to(dtype) for tensor in (key, value))
        parts.append(attention(query.to(dtype), k, v, return_lse=True))
    output, _ = merge(*zip(*parts, strict=True))
    return output.to(query.dtype)


def merge(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Combine attention over disjoint sets of keys into attention over their union.

    Part s has weight exp(lse_s − lse), where exp(lse) = Σ_s exp(lse_s). A part with log-sum-exp
    −inf has no keys; if all are such, the output is 0. Gradients flow through both results.

    Args:
        outputs: one or more tensors (…, queries, value_dim).
        lses: the log-sum-exp of each, (…, queries).

    Example:

        >>> output, lse = merge([torch.tensor([[4.0]]), torch.tensor([[8.0]])],
        ...                     [torch.tensor([3.0]).log(), torch.tensor([1.0]).log()])
        >>> output, lse.exp()  # (3 · 4 + 1 · 8) / 4
        (tensor([[5.]]), tensor([4.]))
    """
    if len(outputs) == 0 or len(outputs) != len(lses):
        raise ValueError(
            f"{len(outputs)} outputs and {len(lses)} lses: give as many of each, at least one"
        )
    for output, lse in zip(outputs, lses, strict=True):
        if output.shape != outputs[0].shape or lse.shape != output.shape[:-1]:
            raise ValueError(
                f"a part has output {tuple(output.shape)} and lse {tuple(lse.shape)}, the first "
                f"output is {tuple(outputs[0].shape)}: all outputs must have one shape, and an "
                "lse that of its output without the last dimension"
            )
    parts = torch.stack(tuple(outputs))
    exponents = torch.stack(tuple(lses))
    maximum = exponents.detach().amax(0)
    empty = maximum == -torch.inf
    maximum = maximum.masked_fill(empty, 0)
    weights = (exponents - maximum).exp()  # (parts, …, queries)
    total = weights.sum(0).masked_fill(empty, 1)
    merged = (parts * (weights / total)[..., None]).sum(0)
    return merged.to(parts.dtype), (maximum + total.log()).masked_fill(empty, -torch.inf)
