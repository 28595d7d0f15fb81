"""LLM.int8(): products in 8 bits, except for the few columns of activations with outliers.

A token's scale would follow its outliers, and its other numbers would be rounded to nothing. So the
columns O in which any ``|x| ≥ 6`` are computed in the input's own precision, all others in int8::

    X Wᵀ ≈ X_O Ŵ_Oᵀ + (1 / 127²) · (a_X a_Wᵀ) ∘ (codes of X without O)(codes of W without O)ᵀ

a_X has the largest magnitude of each token, a_W that of each row of W. As in bitsandbytes 0.50,
Ŵ_O is dequantized from int8, and a token's magnitude leaves out its outliers only, not all of O.

Source: Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale",
sections 3.1 and 3.2.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.grouped import require_matrix
from course_pkg.acceleration.quantization.int8_matmul import int8_matmul
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight
from course_pkg.common.arguments import require_between

THRESHOLD = 6.0
STEP = 1 / 127
STEP_SQUARED = 1 / 127**2


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows in int8 without their outlier columns."""

    codes: Tensor  # int8, (rows, columns), 0 in outlier columns
    absmax: Tensor  # fp32, (rows,), the largest that is no outlier
    outliers: Tensor  # columns, ascending


def quantize_rows(x: Tensor, threshold: float | None = None) -> QuantizedRows:
    """Quantize each row by its largest magnitude; a column with an outlier is left out.

    Args:
        x: (rows, columns), rounded to fp16 first, as bitsandbytes does.
        threshold: from which magnitude on a number is an outlier; None, for none.
    """
    numbers = x.to(torch.float16)
    is_outlier = numbers.abs() >= (math.inf if threshold is None else threshold)
    outliers = is_outlier.any(0).nonzero().flatten()
    numbers = numbers.masked_fill(is_outlier, 0)
    absmax = numbers.abs().amax(1).float()
    scaled = numbers * (127 / absmax)[:, None]  # fp32
    codes = scaled.round().masked_fill(absmax[:, None] == 0, 0).to(torch.int8)
    codes[:, outliers] = 0
    return QuantizedRows(codes, absmax, outliers)


@dataclass(frozen=True, eq=False)
class LLMInt8(QuantizedWeight):
    """A weight in int8 whose product leaves the outlier columns of the input in its precision."""

    codes: Tensor  # int8, (out_features, in_features)
    absmax: Tensor  # fp32, (out_features,)
    dtype: torch.dtype
    threshold: float | None  # as in `quantize_rows`

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def describe(self) -> str:
        limit = "no outliers" if self.threshold is None else f"outliers from {self.threshold:g}"
        return f"LLM.int8, {limit}"

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        return (self.codes * self.absmax[:, None] * STEP).to(dtype or self.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """X Ŵᵀ by the formula above."""
        rows = x.reshape(-1, x.shape[-1])
        quantized = quantize_rows(rows, self.threshold)
        integers = int8_matmul(quantized.codes, self.codes)
        scales = quantized.absmax[:, None] * self.absmax
        result = (integers * scales * STEP_SQUARED).to(x.dtype)
        outliers = quantized.outliers
        if len(outliers):
            weight = self.codes[:, outliers] * self.absmax[:, None] * STEP  # (out_features, |O|)
            result = torch.addmm(result, rows[:, outliers], weight.to(x.dtype).T)
        return result.view(*x.shape[:-1], len(self.codes))


def llm_int8_weight(weight: Tensor, threshold: float | None = THRESHOLD) -> LLMInt8:
    """Quantize a weight, (out_features, in_features), for LLM.int8(); None: no outliers."""
    if threshold is not None:
        require_between(threshold, "threshold", 0, math.inf)
    numbers = require_matrix(weight).detach().to(torch.float16)
    if torch.isinf(numbers).any():
        raise ValueError(
            f"the weight has entries up to {weight.abs().max():g}; LLM.int8() needs them in fp16, "
            "below 65,520"
        )
    rows = quantize_rows(numbers)
    return LLMInt8(rows.codes, rows.absmax, weight.dtype, threshold)
