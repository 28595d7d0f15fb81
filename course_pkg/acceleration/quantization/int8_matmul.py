"""The product of two int8 matrices, exact in 32-bit integers, with what a CPU is fast at.

Products of codes are integers of at most 2^14, and fp32 holds every integer up to 2^24. So an fp32
product of up to 2^10 columns is exact in any order of summation; longer rows are cut into such
pieces, whose sums are added in int32. With AVX2 this is the fastest exact way; on a GPU and with
AVX-512's VNNI, `torch._int_mm` has instructions of its own. FBGEMM multiplies in int8 with AVX2
too, but adds two products in 16 bits, where 2 · 255 · 127 overflows: `Int8Kernel` uses it for
activations of 7 bits.

Zero points. With x = s_a (a − z_a) and w = s_b (b − z_b), a product of rows of length k is::

    Σ x w = s_a s_b Σ (a − z_a)(b − z_b) = s_a s_b (Σ a b − z_a Σ b − z_b Σ a + k z_a z_b)

Sources: Jacob et al. 2018, section 2.3; Khudia et al. 2021 (FBGEMM), section 5.
"""

import functools
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from course_pkg.acceleration.quantization.cpu_kernels import run_kernel

EXACT_COLUMNS = 2**10  # 2^10 products of at most 2^14: a sum of at most 2^24, exact in fp32
CONVERTED = 2**19  # numbers of the weight that are converted to fp32 at a time: 2 MB
LARGEST_SUM = 2**31 - 1  # of an int32


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ in int32, exact: int8, (..., k) and (n, k), to (..., n)."""
    _require_codes(a, b, 128 * 128)
    rows = a.reshape(-1, a.shape[-1])
    if rows.numel() and _has_int_mm(rows, b):
        return run_kernel(_int_mm, rows, b).view(*a.shape[:-1], len(b))
    return _exact_product(rows, b).view(*a.shape[:-1], len(b))


def affine_matmul(a: Tensor, zero_a: Tensor | int, b: Tensor, zero_b: Tensor | int = 0) -> Tensor:
    """Σ (a − zero_a)(b − zero_b) in int32, (..., n), exact, up to k = 33,025.

    Args:
        a: int8, (..., k).
        b: int8, (n, k). Zero points: integers in −128 … 127.
        zero_a: one, or (..., 1).
        zero_b: one, or (n, 1).
    """
    _require_codes(a, b, 255 * 255)
    zero_a = torch.as_tensor(zero_a).to(a.device, torch.int32)
    zero_b = torch.as_tensor(zero_b).to(a.device, torch.int32)
    sums_a = a.sum(-1, keepdim=True, dtype=torch.int32)  # (..., 1)
    sums_b = b.sum(-1, dtype=torch.int32)  # (n,)
    zero_b = zero_b.flatten()  # one, or (n,)
    return int8_matmul(a, b) - zero_a * sums_b - zero_b * sums_a + a.shape[-1] * zero_a * zero_b


def float_rows_matmul(x: Tensor, codes: Tensor, scale: Tensor | None = None) -> Tensor:
    """x codesᵀ in x's dtype, (..., n), without a copy of all codes, int8, (n, k), in it.

    A scale, (n, 1), multiplies the codes first: in fp16, sums without it may be too large.
    """
    if torch.amp.is_autocast_available(kind := x.device.type) and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):  # it would round sums to 16 bits
            return float_rows_matmul(x, codes, scale)
    result = x.new_empty(*x.shape[:-1], len(codes))
    step = max(1, CONVERTED // codes.shape[1])
    for start in range(0, len(codes), step):
        part = codes[start : start + step]
        if scale is not None:
            part = part * scale[start : start + step]
        result[..., start : start + step] = F.linear(x, part.to(x.dtype))
    return result


class Int8Kernel:
    """The product of activations' codes and one weight, by FBGEMM where it is exact.

    It packs the weight at its first product, and again if the weight has changed; a copy of the
    model packs its own.
    """

    def __init__(self) -> None:
        self._packed = None
        self._weight = None  # that was packed; kept, so that its address is not used again
        self._version = None

    def __call__(self, codes: Tensor, weight: Tensor, bits: int) -> Tensor:
        """codes weightᵀ as fp32, exact up to 2^24; codes are integers in fp32, weight is int8."""
        if bits == 8 or not _has_fbgemm(codes):
            return int8_matmul(codes.to(torch.int8), weight).float()
        version = None if weight.is_inference() else weight._version  # counts changes in place
        same = self._weight is not None and self._weight.data_ptr() == weight.data_ptr()
        if not same or self._version != version:
            self._packed = _pack_for_fbgemm(weight)
            self._weight = weight
            self._version = version
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        rows = codes.reshape(-1, codes.shape[-1])
        result = run_kernel(product, rows, 1.0, 2 ** (bits - 1), self._packed)
        return result.view(*codes.shape[:-1], len(weight))

    def __deepcopy__(self, memo: dict) -> "Int8Kernel":
        return Int8Kernel()

    def __reduce__(self) -> tuple:
        return (Int8Kernel, ())


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(len(a), len(b), dtype=torch.int32, device=a.device)
    for start in range(0, a.shape[1], EXACT_COLUMNS):
        columns = slice(start, start + EXACT_COLUMNS)
        total += float_rows_matmul(a[:, columns].float(), b[:, columns]).int()
    return total


def _has_int_mm(a: Tensor, b: Tensor) -> bool:
    """Whether `torch._int_mm` is fast and exact here, and takes these shapes."""
    if a.is_cuda:
        return len(a) > 16 and a.shape[1] % 8 == 0 and len(b) % 8 == 0
    if a.device.type != "cpu" or a.shape[1] == 1:  # of one column it computes nothing
        return False
    fast = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return fast and _int_mm_is_exact()


def _int_mm(a: Tensor, b: Tensor) -> Tensor:
    return torch._int_mm(a, b.T)


@functools.cache
def _int_mm_is_exact() -> bool:
    """Whether `torch._int_mm` on this CPU adds products of the largest codes without overflow."""
    ends = torch.tensor([[-128], [127]], dtype=torch.int8)
    codes = ends.repeat(1, 64)
    return torch.equal(_int_mm(codes, codes), 64 * ends.int() * ends.int().T)


def _has_fbgemm(x: Tensor) -> bool:
    known = "fbgemm" in torch.backends.quantized.supported_engines
    return known and x.device.type == "cpu" and x.numel() > 0


def _pack_for_fbgemm(weight: Tensor) -> torch.ScriptObject:
    """The weight in the order in which FBGEMM reads it."""
    scales = torch.ones(len(weight), dtype=torch.float64)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():  # that a later torch will not have these tensors
            warnings.simplefilter("ignore", UserWarning)
            make = torch._make_per_channel_quantized_tensor
            tensor = run_kernel(make, weight, scales, zeros, 0)
        return torch.ops.quantized.linear_prepack(tensor, None)
    finally:
        torch.backends.quantized.engine = before


def _require_codes(a: Tensor, b: Tensor, largest_product: int) -> None:
    for name, codes in (("a", a), ("b", b)):
        if not isinstance(codes, Tensor) or codes.dtype != torch.int8:
            kind = getattr(codes, "dtype", type(codes).__name__)
            raise TypeError(f"{name} must be an int8 tensor, got {kind}; quantize it first")
    if a.dim() < 1 or b.dim() != 2 or a.shape[-1] != b.shape[1]:
        raise ValueError(
            f"expected a of shape (..., k) and b of shape (n, k), got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if b.shape[1] * largest_product > LARGEST_SUM:
        most = LARGEST_SUM // largest_product
        raise ValueError(
            f"a sum of {b.shape[1]} products may not fit into 32 bits; cut the rows into pieces of "
            f"at most {most}"
        )
