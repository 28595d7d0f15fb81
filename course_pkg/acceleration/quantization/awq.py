"""AWQ: scale up the weights that meet large inputs, so that rounding changes them less.

Column j of a weight is multiplied by s_j before it is rounded, and its input is divided by s_j::

    W X ≈ Q(W diag(s)) diag(s)⁻¹ X        s = mean|x|^α, over channels of x

Where s_j is above 1 and the group's scale stays the same, the error of column j is 1/s_j of what it
was. α from 0 (rounding to the nearest) to 1 is chosen by trying, with the least ‖(W − Ŵ) X‖², which
is computed from H = 2 X Xᵀ. (AutoAWQ runs the attention and the SwiGLU instead.)

The division goes into what makes the input: the RMSNorm before q, k and v, and before gate and up;
up before down; and v before o, if each query head has its own values.

Source: Lin et al. 2024, "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression
and Acceleration", section 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.grouped import (
    SCALE_DTYPE,
    Grid,
    GroupedWeight,
    require_matrix,
    store,
)
from course_pkg.acceleration.quantization.layerwise import READERS, InputStatistics, Statistics
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight
from course_pkg.common.arguments import require_bool, require_integer

SMALLEST_MEAN = 1e-4  # of the mean over channels: a channel without inputs has a scale, too
SOURCES = {  # what makes the input of each line of READERS
    READERS[0]: "input_layernorm",
    READERS[1]: "self_attn.v_proj",
    READERS[2]: "post_attention_layernorm",
    READERS[3]: "mlp.up_proj",
}
SHRINKS = tuple(1 - step / 20 for step in range(10))  # 1 … 0.55 of a group's range


@dataclass(frozen=True, eq=False)
class Choice:
    """What the search found."""

    scales: Tensor  # s, (columns,)
    alpha: float
    error: float  # ‖(W − Ŵ) X‖² per token


@dataclass(frozen=True)
class AWQ:
    """AWQ's settings, and the method for `quantize_layers`.

    Attributes:
        points: how many values of α from 0 to 1 are tried.
        clip: whether each group then gets the range, of 10 from all to 0.55 of it, with the least
            error of that group's outputs.
    """

    grid: Grid
    points: int = 20
    clip: bool = False
    calibrated = True

    def __post_init__(self) -> None:
        if not isinstance(self.grid, Grid):
            raise TypeError(f"grid must be a Grid, such as Grid(4, 64), got {self.grid!r:.80}")
        require_integer(self.points, "points")
        require_bool(self.clip, "clip")

    def quantize_block(
        self, block: nn.Module, statistics: Statistics
    ) -> dict[str, QuantizedWeight]:
        """The new weights of a block's layers, by name; the scales are folded into the block."""
        by_input = {names[0]: statistics[names[0]] for names in READERS}
        scales = {
            names: self.search(_weights(block, names), by_input[names[0]]).scales
            for names in READERS
            if foldable(block, names)
        }
        for names, values in scales.items():
            fold(block, names, values)
        quantized = {}
        for names in READERS:
            hessian = by_input[names[0]].hessian
            if names in scales:  # the layers now read x / s
                hessian = hessian / scales[names].outer(scales[names])
            for name, weight in zip(names, _weights(block, names), strict=True):
                quantized[name] = rounded(weight, self.grid, hessian if self.clip else None)
        return quantized

    def search(self, weights: Sequence[Tensor], statistics: InputStatistics) -> Choice:
        """The scales of least error for layers that read one input; of equal ones, the first."""
        W = torch.cat([require_matrix(weight).detach() for weight in weights])
        W = W.to(torch.promote_types(W.dtype, torch.float32))
        if statistics.mean_abs.shape != W.shape[1:]:
            raise ValueError(
                f"the weights have {W.shape[1]} columns, but the statistics are of "
                f"{tuple(statistics.mean_abs.shape)} channels"
            )
        best = None
        for alpha in torch.linspace(0, 1, self.points).tolist():
            scales = channel_scales(statistics.mean_abs, alpha)
            difference = W - rounded(W * scales, self.grid).dequantize() / scales
            error = output_error(difference, statistics.hessian)
            if best is None or error < best.error:
                best = Choice(scales, alpha, error)
        return best


def channel_scales(mean_abs: Tensor, alpha: float) -> Tensor:
    """s = mean|x|^α, divided by the geometric mean of its extremes, (columns,)."""
    mean = float(mean_abs.mean())
    if not mean > 0:
        raise ValueError("no calibration input reached this layer: all its inputs are 0")
    scales = mean_abs.clamp(min=SMALLEST_MEAN * mean) ** alpha
    return scales / (scales.max() * scales.min()).sqrt()


def rounded(weight: Tensor, grid: Grid, hessian: Tensor | None = None) -> GroupedWeight:
    """Round each weight to the nearest point, (rows, columns).

    Args:
        hessian: of the inputs, (columns, columns), to search each group's clipping: its scale is
            multiplied by the number in SHRINKS with which the outputs of the group's own columns
            have the least error. What is then out of range becomes the nearest end.
    """
    width = grid.width(weight.shape[1])
    W = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    W = W.unflatten(1, (-1, width))  # (rows, groups, width)
    scale, zero = (values.view(*W.shape[:2], 1) for values in grid.fit(W.flatten(0, 1)))
    codes = grid.codes(W, scale, zero)
    if hessian is not None:
        own = hessian.unflatten(1, (-1, width)).unflatten(0, (-1, width))
        own = own.diagonal(dim1=0, dim2=2).movedim(-1, 0)  # (groups, width, width)
        least = torch.full_like(scale, torch.inf)
        fitted = scale
        for shrink in SHRINKS:
            tried = (fitted * shrink).to(SCALE_DTYPE).to(W.dtype)
            new_codes = grid.codes(W, tried, zero)
            D = W - tried * (new_codes - zero)
            error = torch.einsum("rgi,gij,rgj->rg", D, own, D)[..., None]
            better = error < least
            least = torch.where(better, error, least)
            scale = torch.where(better, tried, scale)
            codes = torch.where(better, new_codes, codes)
    return store(codes.flatten(1), scale.squeeze(2), zero.squeeze(2), grid, weight.dtype)


def output_error(difference: Tensor, hessian: Tensor) -> float:
    """‖D X‖² = ½ tr(D H Dᵀ), for D = W − Ŵ, (rows, columns); per token if H is a mean."""
    return float(((difference @ hessian) * difference).sum() / 2)


def foldable(block: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether the input of these layers, a line of READERS, can be scaled at its source.

    It can't if one source channel is copied to several input channels, as a value is that several
    query heads share.
    """
    source = block.get_submodule(SOURCES[names])
    return source.weight.shape[0] == block.get_submodule(names[0]).in_features


@torch.no_grad()
def fold(block: nn.Module, names: tuple[str, ...], scales: Tensor) -> None:
    """Multiply the columns of these layers by the scales, and divide their source by them."""
    if not foldable(block, names):
        raise ValueError(
            f"{SOURCES[names]} has other channels than {names[0]} reads, because of grouped "
            "queries; its scales cannot be folded"
        )
    if not (torch.isfinite(scales) & (scales > 0)).all():
        raise ValueError("scales must be finite and above 0")
    for weight in _weights(block, names):
        weight.mul_(scales)
    source = block.get_submodule(SOURCES[names])
    source.weight.div_(scales if source.weight.dim() == 1 else scales[:, None])
    if getattr(source, "bias", None) is not None:
        source.bias.div_(scales)


def _weights(block: nn.Module, names: tuple[str, ...]) -> list[Tensor]:
    return [block.get_submodule(name).weight for name in names]
