"""One door to the kernels that torch chooses by the CPU's instructions.

Such kernels get an address and a stride, and check little. Where a tensor has a layout that its
shape allows but nobody expects, some read memory beside it, and some compute nothing and say
nothing, so that the result is what its memory held before. Two layouts are traps because
`is_contiguous()` accepts them: the stride of a dimension of size one means nothing, so it may be
anything; and where all sizes but one are one, an expanded tensor has a stride of 0.

So a kernel of torch's is called through `run_kernel`, which gives it tensors with the layout of new
ones. Which shapes a kernel takes is for its caller to know. `torch._int_mm` is known to compute
nothing for one column (pytorch issue 195066), and `torch._weight_int8pack_mm` to read other memory
where the scale is expanded.

Chapter: acceleration/quantized-inference.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


def run_kernel(kernel: Callable[..., Result], *arguments: object) -> Result:
    """kernel(*arguments), with each tensor laid out as a new tensor of its shape is.

    >>> import torch
    >>> column = torch.arange(6).view(2, 3)[:, :1]
    >>> column.stride(), run_kernel(lambda x: x.stride(), column)
    ((3, 1), (1, 1))
    """
    return kernel(*[_as_new(each) if isinstance(each, Tensor) else each for each in arguments])


def _as_new(x: Tensor) -> Tensor:
    """x itself or a copy, with the strides of a new tensor."""
    x = x.contiguous()
    shape = x.shape
    if 1 not in shape or x.stride() == (shape[-1], 1):  # the usual row, (1, k), is as it should be
        return x
    return x.view(-1).view(shape)
