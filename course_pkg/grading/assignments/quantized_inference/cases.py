"""`quantized-inference`: the cases of its questions; right values: `acceleration.quantization`.

Numbers are drawn away from the midpoints between codes, so that no rounding decides between two.
"""

import math
from itertools import combinations
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.quantization import int8
from course_pkg.acceleration.quantization.gptq import Solution, quantize_columns
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.int8_matmul import affine_matmul
from course_pkg.acceleration.quantization.llm_int8 import LLMInt8
from course_pkg.acceleration.quantization.smoothquant import smoothing_scales
from course_pkg.grading.questions.comparators import array, row
from course_pkg.grading.questions.draws import normal_arrays
from course_pkg.grading.questions.plain_values import Array

Inputs = dict[str, Any]
CLOSE = array(rtol=1e-4)
MARGIN = 0.03  # of a step, that weights keep from a midpoint
MAX_DRAWS = 500


class SymmetricGrid(Grid):
    """Codes from -(2^(bits-1) - 1) up, the scale from the largest magnitude, no zero point."""

    def fit(self, weight: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The scale of each row, unrounded, and zeros."""
        scale = int8.symmetric_scale(weight, bits=self.bits)
        return scale, torch.zeros_like(scale)

    def codes(self, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The nearest codes, as floats."""
        return int8.quantize(weight, scale, bits=self.bits).to(weight.dtype)


def solve(W: Tensor, U: Tensor, group_size: int, bits: int) -> Solution:
    """What the course's GPTQ computes, in double precision."""
    groups = torch.arange(W.shape[1]) // group_size
    grid = SymmetricGrid(bits, group_size)
    return quantize_columns(W.double(), U.double(), grid, W.shape[1], groups)


def draw_layer(
    rng: Random, size: int, *, rows: int = 1, groups: int = 1, clamp: bool = False
) -> dict[str, Any]:
    """Rows and an upper factor, whose diagonal is 1 where the division is another property's.

    Drawn until codes are clamped as `clamp` says, and no weight is near a midpoint.
    """
    unit = clamp or groups > 1
    group_size = (5 if clamp else 3) + size
    columns = groups * group_size
    bits = 3 if clamp else 3 + rng.randrange(2)
    for _ in range(MAX_DRAWS):
        diagonal = [1.0 if unit else rng.choice([0.6, 0.75, 1.5, 2.0]) for _ in range(columns)]
        U = torch.diag(torch.tensor(diagonal))
        for i, j in combinations(range(columns), 2):
            U[i, j] = rng.choice([-1, 1]) * rng.randint(30, 90) / 100
        W = torch.from_numpy(normal_arrays(rng, W=(rows, columns))["W"])
        if clamp:  # magnitudes near the largest are the ones that an update pushes out of the range
            W = W.sign() * (1 + W.abs().clamp(max=1) / 4)
        inputs = {"W": W, "U": U, "group_size": group_size, "bits": bits}
        solution = solve(**inputs)
        steps = solution.E * U.diagonal() / solution.scale[:, solution.groups]  # W - Q, in steps
        clear = bool(((steps.abs() - 0.5).abs() > MARGIN).all())
        if clear and bool((steps.abs() > 0.5).any()) == clamp:
            return inputs
    raise ValueError(f"{MAX_DRAWS} draws gave no case with clamp = {clamp}")


def by_hand(rng: Random | None) -> Inputs:
    """A range and six numbers, two of them outside; a row of three weights; a matrix to store."""
    if rng is None:
        case = {"low": -0.94, "high": 2.06, "inputs": [0.33, -1.6, 1.46, 2.85, -0.75, 1.03]}
        case |= {"weights": [0.47, -0.2, 0.35], "step": 0.2}
        case["U"] = [[1.25, -0.5, 0.3], [0.0, 1.1, 0.4], [0.0, 0.0, 0.9]]
        return case | {"rows": 4096, "columns": 11_008, "bits": 4, "group": 128}
    scale = rng.randint(10, 40) / 100
    zero = rng.choice([-5, -4, -3, -2, 2, 3, 4])
    low = scale * (-8 - zero + rng.choice([-0.3, -0.2, 0.2, 0.3]))
    codes = [*rng.sample(range(-6, 6), 4), -10 - rng.randrange(3), 9 + rng.randrange(3)]
    rng.shuffle(codes)
    numbers = [scale * (code - zero + rng.uniform(0.1, 0.3)) for code in codes]
    step = rng.choice([0.1, 0.2, 0.25])
    weight = step * (rng.choice([-3, -2, 2, 3]) + rng.choice([-0.4, -0.3, 0.3, 0.4]))
    diagonal = [rng.choice([0.7, 0.8, 1.25, 1.4]) for _ in range(3)]
    rest = [rng.choice([-1, 1]) * rng.randint(3, 9) / 10 for _ in range(3)]
    case = {"low": round(low, 3), "high": round(low + 15 * scale, 3)}
    case["inputs"] = [round(number, 3) for number in numbers]
    others = [rng.randint(-90, 90) / 100 for _ in range(2)]
    case |= {"weights": [round(weight, 3), *others], "step": step}
    case["U"] = [[diagonal[0], *rest[:2]], [0.0, diagonal[1], rest[2]], [0.0, 0.0, diagonal[2]]]
    case |= {"rows": 512 * rng.randint(2, 20), "columns": 512 * rng.randint(2, 20)}
    return case | {"bits": rng.choice([3, 4]), "group": rng.choice([32, 64, 128])}


def by_hand_affine_expected(case: Inputs) -> tuple[float, int]:
    """The scale and the zero point of 4-bit codes, from -8 to 7."""
    return affine_expected({**case, "bits": 4})


def by_hand_codes_expected(case: Inputs, affine: tuple[float, int]) -> list[int]:
    """The 4-bit codes of the six numbers."""
    scale, zero = (torch.tensor(float(number)) for number in affine)
    return int8.quantize(torch.tensor(case["inputs"]), scale, zero, bits=4).tolist()


def by_hand_step_expected(case: Inputs) -> tuple[float, float]:
    """The first weight on the grid, and its error over the first diagonal entry."""
    numbers = case["weights"][0], case["U"][0][0], case["step"]
    weight, factor, step = (torch.tensor([[n]], dtype=torch.float64) for n in numbers)
    groups = torch.zeros(1, dtype=torch.long)
    fitted = step, torch.zeros_like(step)
    solution = quantize_columns(weight, factor, SymmetricGrid(8, None), 1, groups, fitted)
    return solution.Q.item(), solution.E.item()


def by_hand_update_expected(case: Inputs, step: tuple[float, float]) -> list[float]:
    """The other two weights, updated with the student's own error."""
    pairs = zip(case["weights"][1:], case["U"][0][1:], strict=True)
    return [weight - step[1] * factor for weight, factor in pairs]


def by_hand_storage_expected(case: Inputs) -> tuple[int, float]:
    """Bytes and bits per weight of a packed weight; rows have no part in common."""
    grid = Grid(case["bits"], case["group"])
    stored = round_to_nearest(torch.zeros(1, case["columns"]), grid)
    return case["rows"] * stored.nbytes, stored.effective_bits


def affine_expected(inputs: Inputs) -> tuple[float, int]:
    """Scale and zero point, as the course calibrates a static affine scale."""
    ends = torch.tensor([inputs["low"], inputs["high"]])
    scale, zero = int8.calibrate([ends], affine=True, bits=inputs["bits"])
    return scale.item(), int(zero)


def draw_range(rng: Random, size: int) -> Inputs:
    """A range from a little below 0, so that a slightly wrong scale has the same zero point."""
    bits = 4 + rng.randrange(2) + size
    scale = rng.uniform(0.05, 2)
    low = -scale * (rng.randint(1, 2) + rng.choice([-1, 1]) * rng.uniform(0.1, 0.3))
    return {"low": low, "high": low + scale * (2**bits - 1), "bits": bits}


def affine_one_sided(rng: Random, size: int) -> Inputs:
    """A range above 0 or below it, which has to be extended to 0."""
    sign = -1 if size % 2 else 1
    low, high = sorted([sign * rng.uniform(0.2, 0.4), sign * rng.uniform(1, 3)])
    return {"low": low, "high": high, "bits": 4 + 2 * size}


def quantize_expected(inputs: Inputs) -> Tensor:
    """The course's codes; scales and zero points broadcast."""
    return int8.quantize(inputs["x"], inputs["scale"], inputs["zero"].float(), inputs["bits"])


def draw_numbers(rng: Random, size: int, *, outside: bool = False, tokens: int = 1) -> Inputs:
    """Tokens of 4 + size numbers, each with a scale and a zero point. `outside`: out of range."""
    bits = (4, 6, 8)[size]
    half = 2 ** (bits - 1)
    scale = torch.tensor([[rng.choice([0.25, 0.5, 2.0, 4.0])] for _ in range(tokens)])
    zero = torch.tensor([[rng.choice([-3, -2, 2, 3])] for _ in range(tokens)])
    codes = [[rng.uniform(4 - half, half - 5) for _ in range(4 + size)] for _ in range(tokens)]
    if outside:
        codes[0][:3] = [half + rng.uniform(1, 3), -half - rng.uniform(2, 3), -float(half)]
        rng.shuffle(codes[0])
    nearest = torch.tensor(codes).round() + rng.choice([-0.3, 0.3])
    return {"x": scale * (nearest - zero), "scale": scale, "zero": zero, "bits": bits}


def product_expected(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The exact sums and the rescaled product."""
    total = affine_matmul(inputs["a"], inputs["a_zero"], inputs["w"])
    return total, total * inputs["a_scale"] * inputs["w_scale"].T


def _codes(rng: Random, rows: int, columns: int, low: int, high: int) -> Tensor:
    numbers = [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]
    return torch.tensor(numbers, dtype=torch.int8)


def draw_operands(
    rng: Random, size: int, *, zero: bool = False, scaled: bool = False, wide: bool = False
) -> Inputs:
    """Square products of codes so small that sums fit into 8 bits, or so large that fp32 rounds."""
    rows = 2 if wide else 2 + size
    span = (100, 127) if wide else (-3, 3)
    columns = 1_500 if wide else 4
    zeros = [[rng.choice([-3, -2, 2, 3]) if zero else 0] for _ in range(rows)]
    scales = [[rng.choice([0.25, 0.5, 2.0, 3.0]) if scaled else 1.0] for _ in range(2 * rows)]
    return {
        "a": _codes(rng, rows, columns, *span),
        "a_scale": torch.tensor(scales[:rows]),
        "a_zero": torch.tensor(zeros, dtype=torch.int32),
        "w": _codes(rng, rows, columns, *(span if wide else (-2, 2))),
        "w_scale": torch.tensor(scales[rows:]),
    }


def outliers_expected(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The mask of the outlier columns, and LLM.int8's product."""
    x, threshold = inputs["x"], inputs["threshold"]
    absmax = 127 * inputs["w_scale"].flatten()
    weight = LLMInt8(inputs["w"], absmax, torch.float32, threshold)
    return (x.abs() >= threshold).any(0), weight.matmul(x)


def draw_activations(
    rng: Random, size: int, outliers: tuple[float, ...] = (), *, empty: bool = False
) -> Inputs:
    """Tokens whose numbers are near codes; outliers, as multiples of the threshold, in some tokens.

    empty: the second of two tokens holds zeros. Numbers of x are exact in fp16.
    """
    tokens = 2 if empty else 2 + size
    columns = 5 + size
    threshold = rng.choice([4.0, 6.0])
    x = torch.zeros(tokens, columns)
    for token in x[: 1 if empty else tokens]:
        largest = rng.choice([0.25, 0.5, 1.0, 2.0])
        codes = torch.tensor([rng.randint(-100, 100) + rng.uniform(-0.3, 0.3) for _ in token])
        codes[:2] = 127.0
        token.copy_(codes * largest / 127)
    w = _codes(rng, 3, columns, -127, 127)
    for column, factor in zip(rng.sample(range(2, columns), len(outliers)), outliers, strict=True):
        x[rng.randrange(tokens), column] = factor * threshold
        w[:, column] //= 16  # so that y shows what the outlier does to the other numbers
    w_scale = torch.tensor([[rng.choice([0.125, 0.25, 0.5])] for _ in range(3)])
    return {"x": x.half().float(), "w": w, "w_scale": w_scale, "threshold": threshold}


def smooth_expected(inputs: Inputs) -> tuple[Tensor, Tensor, list[Tensor]]:
    """SmoothQuant's factors from the maxima, and both sides with them."""
    x, weights = inputs["x"], inputs["weights"]
    maxima = torch.cat(weights).abs().amax(0)
    f = smoothing_scales(x.abs().amax(0), maxima, inputs["alpha"]).float()
    return f, x / f, [weight * f for weight in weights]


def moved(expected: Any, given: Any) -> str | None:
    """Whether x is divided by the student's own factors, and each weight multiplied by them."""
    shape = array(atol=math.inf)
    every = row({"f": shape, "x": shape, "weights": row(each=shape)})
    if (reason := every(expected, given)) is not None:
        return reason
    own = given[0].numpy()
    if (own <= 0).any() or (own == 1).all():
        return "f: expected factors above 0 that are not all 1"
    return row({"x times f": CLOSE, "weights over f": row(each=CLOSE)})(
        _without_factors(expected), _without_factors(given)
    )


def _without_factors(value: Any) -> list[Any]:
    """x times f, and the weights over f: the arguments again, if f was moved."""
    f, x, weights = value
    factor = f.numpy().astype("float64")
    return [Array.of(x.numpy() * factor), [Array.of(w.numpy() / factor) for w in weights]]


def draw_features(
    rng: Random, size: int, *, weights: int = 1, zeros: bool = False, half: bool = True
) -> Inputs:
    """Features that differ in size, and their weights. half: alpha is 0.5, so both powers agree."""
    n = 3 + size
    shapes = {f"w{i}": (n, n) for i in range(weights)}
    arrays = normal_arrays(rng, x=(n, n), **shapes)
    arrays["x"] *= [rng.choice([0.1, 1.0, 8.0, 20.0]) for _ in range(n)]
    for i in range(weights):
        arrays[f"w{i}"] *= [rng.choice([0.2, 0.5, 2.0, 3.0]) for _ in range(n)]
    if zeros:
        unread, silent = rng.sample(range(n), 2)
        arrays["x"][:, silent] = 0
        arrays["w0"][:, unread] = 0
    alpha = 0.5 if half else rng.choice([0.2, 0.25, 0.3, 0.7, 0.75, 0.8])
    return {"x": arrays.pop("x"), "weights": list(arrays.values()), "alpha": alpha}


def gptq_expected(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The codes and the scales, (rows, groups)."""
    solution = solve(**inputs)
    return solution.codes, solution.scale
