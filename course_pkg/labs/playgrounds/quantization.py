"""The playground of a quantized block: codes, the scale, and what comes back.

Chapter: adapters/qlora.
"""

from __future__ import annotations

import math

from course_pkg.labs.playgrounds.markup import element, joined, number, table
from course_pkg.labs.playgrounds.playground import Field, Playground, WrongInput
from course_pkg.quantization.levels import quantize_block

MOST, LARGEST = 16, 1e6


def numbers(text: str) -> list[float]:
    """The numbers of a row, separated by spaces or commas."""
    parts = text.replace(",", " ").replace("−", "-").split()
    if not 1 <= len(parts) <= MOST:
        raise WrongInput(f"Numbers: expected 1 to {MOST} numbers, but {len(parts)} were given")
    found = []
    for part in parts:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not abs(value) <= LARGEST:
            raise WrongInput(
                f"Numbers: expected numbers from −{LARGEST:,.0f} to {LARGEST:,.0f}, "
                f"but {part[:20]!r} was given"
            )
        found.append(value)
    return found


def view(row: str, book: str) -> str:
    """Each number, its code, its level, what comes back, and the error."""
    given = numbers(row)
    block = quantize_block(given, book)
    back = block.dequantize()
    rows = [
        (
            number(value),
            code,
            f"{block.levels[code]:+.4f}",
            number(restored),
            number(restored - value, 2),
        )
        for value, code, restored in zip(given, block.codes, back, strict=True)
    ]
    errors = [b - a for a, b in zip(given, back, strict=True)]
    mean = math.sqrt(math.fsum(error**2 for error in errors) / len(errors))
    said = (
        f"The scale of the block is its largest absolute value, {number(block.absmax)}. Root mean "
        f"square of the errors: {number(mean, 3)}."
    )
    head = ("number", "code", "level", "comes back as", "error")
    return joined([table(head, rows), element("p", said)])


PLAYGROUND = Playground(
    "quantization",
    "Eight numbers in 4 bits",
    (
        Field("row", "Numbers of one block", "text", "0.12 -0.5 0.03 0.9 -1.4 0.27 -0.08 0.61"),
        Field("book", "Code book", "choice", "nf4", options=("nf4", "fp4", "int4")),
    ),
    view,
)
