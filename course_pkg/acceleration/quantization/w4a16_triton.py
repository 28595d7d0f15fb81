"""W4A16 on a GPU: x Ŵᵀ for weights in 4 bits, which a Triton kernel dequantizes in registers.

With k running over the columns of a group g::

    y[token, row] = Σ_g scale[row, g] · Σ_k (code[row, k] − zero[row, g]) · x[token, k].

The scale multiplies sums in fp32, so the result is rounded once. Converting an integer is slow on a
GPU: a code becomes the last bits of 1024, or of 128 in bfloat16, and the zero point too, whose
difference is code − zero. Up to FEW_TOKENS, the columns are split into parts (split-K), whose sums
are added in a fixed order: a token's result does not depend on how many others there are.

With one token it reads a weight of 14336 × 4096 in about 0.8 of the time of a product in float16
(`python -m benchmarks w4a16_gpu`, on an H200), though it reads a quarter of the bytes; kernels in
CUDA get nearer (Frantar et al. (2024), "MARLIN"). Without a GPU it runs in Triton's interpreter.

Sources: Frantar et al. (2023), "GPTQ", section 4; Hoque et al. (2024), arXiv 2402.00025, split-K.
"""

import torch
from torch import Tensor

from course_pkg.common.triton_runtime import (
    INSTALLED,
    INTERPRETED,
    computed,
    require_runnable,
    tl,
    triton,
    with_adjacent_numbers,
)

TYPES = (torch.float16, torch.bfloat16)
FEW_TOKENS = 16  # up to so many, the columns are split into parts
PART_COLUMNS = 1024  # columns of a part; a multiple of LARGEST_STEP
SMALLEST_STEP, LARGEST_STEP = 16, 128  # columns that a step multiplies; a tensor core takes 16


def w4a16_matmul(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """x Ŵᵀ, (..., rows), in the type of x, with Ŵ = scale · (code − zero).

    The last three are the tensors of a `GroupedWeight` of 4 bits without `order`.

    Args:
        x: (..., columns), float16 or bfloat16; float32 also in the interpreter.
        codes: two in a byte, the first in its lower half, uint8, (rows, columns / 2).
        scale, zero: float16 and uint8, (rows, groups); a group has a multiple of 16 columns.
    """
    _check(x, codes, scale, zero)
    rows, groups = scale.shape
    columns = x.shape[-1]
    if x.numel() == 0:  # a grid may not be empty
        return x.new_zeros(*x.shape[:-1], rows)
    matrix = with_adjacent_numbers(computed(x).reshape(-1, columns))
    tokens = len(matrix)
    part_columns = PART_COLUMNS if tokens <= FEW_TOKENS else columns
    parts = triton.cdiv(columns, part_columns)
    dtype = matrix.dtype if parts == 1 else torch.float32
    sums = torch.empty(parts, tokens, rows, dtype=dtype, device=x.device)
    tile = _tile(tokens)
    grid = triton.cdiv(rows, tile["ROWS"]), triton.cdiv(tokens, tile["TOKENS"]), parts
    with torch.cuda.device_of(x):  # kernels start on the current GPU, or on none
        w4a16_kernel[grid](
            matrix,
            matrix.stride(0),
            *(tensor.contiguous() for tensor in (codes, scale, zero)),
            sums,
            tokens,
            rows,
            columns,
            columns // groups,
            part_columns,
            STEP=step_columns(columns // groups),
            **tile,
        )
    result = sums[0] if parts == 1 else sums.sum(0)
    return result.to(x.dtype).view(*x.shape[:-1], rows)


def runs_kernel(x: Tensor, group_size: int) -> bool:
    """Whether the kernel is compiled for x and takes groups of this size, and nothing is lost.

    It computes no gradient: a product that autograd records must be another one.
    """
    recorded = torch.is_grad_enabled() and x.requires_grad
    taken = x.is_cuda and x.dtype in TYPES and group_size % SMALLEST_STEP == 0
    return INSTALLED and not INTERPRETED and taken and not recorded


def step_columns(group_size: int) -> int:
    """The largest power of two that divides a group, at most LARGEST_STEP."""
    return min(group_size & -group_size, LARGEST_STEP)


@triton.jit
def _as_float(code, dtype: tl.constexpr):
    """A constant + code: 4 bits as the last ones of 1024 (float16), 128 (bfloat16) or 0."""
    if dtype == tl.float16:
        return (code.to(tl.uint16) | 0x6400).to(dtype, bitcast=True)
    elif dtype == tl.bfloat16:
        return (code.to(tl.uint16) | 0x4300).to(dtype, bitcast=True)
    else:
        return code.to(dtype)


@triton.jit(do_not_specialize=["tokens"])
def w4a16_kernel(
    x,
    x_row,
    codes,
    scale,
    zero,
    output,
    tokens,
    rows,
    columns,
    group_size,
    part_columns,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One tile of rows of the weight and of tokens, and one part of the columns.

    Grid: (tiles of rows, tiles of tokens, parts). x_row: the distance of rows in x. output: (parts,
    tokens, rows).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    part = tl.program_id(2)
    in_rows = row < rows
    in_tokens = (token < tokens)[None, :]
    groups = columns // group_size
    bytes_of_rows = codes + row[:, None] * (columns // 2) + tl.arange(0, STEP // 2)[None, :]
    x_columns = x + token[None, :] * x_row + tl.arange(0, STEP)[:, None]  # xᵀ: (STEP, TOKENS)

    start = part * part_columns
    end = tl.minimum(start + part_columns, columns)
    total = tl.full((ROWS, TOKENS), 0.0, tl.float32)
    for first in tl.range(start, end, STEP):
        pairs = tl.load(bytes_of_rows + first // 2, mask=in_rows[:, None], other=0)
        code = tl.reshape(tl.join(pairs & 15, pairs >> 4), (ROWS, STEP))
        group = row * groups + first // group_size
        z = tl.load(zero + group, mask=in_rows, other=0)
        s = tl.load(scale + group, mask=in_rows, other=0.0).to(tl.float32)
        xt = tl.load(x_columns + first, mask=in_tokens, other=0.0)
        number = _as_float(code, xt.dtype) - _as_float(z, xt.dtype)[:, None]
        total += tl.dot(number, xt, input_precision="ieee") * s[:, None]

    result = output + (part * tokens + token[None, :]) * rows + row[:, None]
    total = total.to(output.dtype.element_ty)
    tl.store(result, total, mask=in_rows[:, None] & in_tokens)


def _tile(tokens: int) -> dict[str, int]:
    if INTERPRETED:
        return {"ROWS": 16, "TOKENS": 16}
    if tokens <= FEW_TOKENS:
        return {"ROWS": 64, "TOKENS": 16, "num_warps": 4, "num_stages": 3}
    most = min(128, triton.next_power_of_2(tokens))
    return {"ROWS": 64, "TOKENS": most, "num_warps": 4, "num_stages": 3}


def _check(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> None:
    instead = "use F.linear with GroupedWeight.dequantize"
    if x.dtype not in (*TYPES, *([torch.float32] if INTERPRETED else [])):
        raise TypeError(
            f"x has type {x.dtype}: the kernel takes float16 or bfloat16, and float32 in the "
            f"interpreter; convert it, or {instead}"
        )
    types = codes.dtype, scale.dtype, zero.dtype
    if types != (torch.uint8, torch.float16, torch.uint8):
        raise TypeError(
            "codes, scale and zero must be uint8, float16 and uint8, as in a GroupedWeight, got "
            f"{', '.join(map(str, types))}"
        )
    columns = x.shape[-1] if x.dim() else 0
    rows, groups = scale.shape if scale.dim() == 2 else (0, 0)
    if 0 in (rows, groups) or zero.shape != scale.shape or codes.shape != (rows, columns // 2):
        raise ValueError(
            f"x {tuple(x.shape)}, codes {tuple(codes.shape)}, scale {tuple(scale.shape)}, zero "
            f"{tuple(zero.shape)}: expected (..., columns), (rows, columns / 2), twice (rows, "
            "groups); two codes of 4 bits share a byte"
        )
    if columns % groups or columns // groups % SMALLEST_STEP:
        raise ValueError(
            f"{groups} groups of {columns} columns: the kernel takes equal groups whose size is a "
            f"multiple of {SMALLEST_STEP}; {instead}"
        )
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "x requires a gradient, which the kernel doesn't compute: use QuantizedLinear, or "
            "torch.no_grad()"
        )
    devices = {tensor.device for tensor in (x, codes, scale, zero)}
    if len(devices) > 1:
        raise ValueError(
            f"x is on {x.device}, codes, scale and zero on {codes.device}, {scale.device}, "
            f"{zero.device}: move them to one device"
        )
    require_runnable(x, "x")
