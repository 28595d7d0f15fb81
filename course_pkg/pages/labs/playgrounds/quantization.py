"""A quantized block: codes, the scale, and what comes back."""

import math

from course_pkg.acceleration.quantization.levels import LEVELS, affine_row, fp32, quantize_block
from course_pkg.pages.labs.playgrounds.markup import element, joined, number, table
from course_pkg.pages.labs.playgrounds.playground import (
    Field,
    Playground,
    WrongInput,
    row_of_numbers,
)

MOST = 16
AFFINE = "affine int4"


def numbers(text: str) -> list[float]:
    """The numbers of a row, as fp32 stores them."""
    values = row_of_numbers(text, "Numbers")
    if not 1 <= len(values) <= MOST:
        raise WrongInput(f"Numbers: expected 1 to {MOST} numbers, but {len(values)} were given")
    return [fp32(value) for value in values]


def view(row: str, book: str) -> str:
    """Each number, its code, what comes back, and the error."""
    weights = numbers(row)
    if book == AFFINE:
        block = affine_row(weights)
        stands_for = [f"{code - block.zero:+d}" for code in block.codes]
        said = f"The scale is {number(block.scale)}, and the zero point {block.zero}."
    else:
        block = quantize_block(weights, book)
        stands_for = [f"{block.levels[code]:+.4f}" for code in block.codes]
        said = f"The scale of the block is its largest absolute value, {number(block.absmax)}."
    back = block.dequantize()
    errors = [b - a for a, b in zip(weights, back, strict=True)]
    shown = [map(number, weights), block.codes, stands_for, map(number, back)]
    rows = zip(*shown, (number(error, 2) for error in errors), strict=True)
    mean = math.sqrt(math.fsum(error**2 for error in errors) / len(errors))
    means = "code − zero point" if book == AFFINE else "level"
    head = ("number", "code", means, "comes back as", "error")
    said = f"{said} Root mean square of the errors: {number(mean, 3)}."
    return joined([table(head, rows), element("p", said)])


PLAYGROUND = Playground(
    "quantization",
    "A row of numbers in 4 bits",
    (
        Field(
            "row",
            f"Numbers of one block, at most {MOST}, separated by spaces",
            "text",
            "0.12 -0.5 0.03 0.9 -1.4 0.27 -0.08 0.61",
        ),
        Field("book", "Format", "choice", "nf4", options=(*LEVELS, AFFINE)),
    ),
    view,
)
