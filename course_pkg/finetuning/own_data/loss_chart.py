"""The loss curve of a run as an SVG picture, whose colors are those of the page around it."""

import math
from collections.abc import Sequence

from course_pkg.common.html_page import html_page
from course_pkg.finetuning.training_state import History

LEFT = 46  # of the axes
RIGHT = 470
TOP = 40
BOTTOM = 256
Point = tuple[float, float]


def loss_chart(history: History, before: float, kept: int) -> str:
    """Training loss of each step and its moving mean, and validation loss, before training too.

    Args:
        before: validation loss of the base, in nats per token.
        kept: the step whose weights are kept.
    """
    training = [(record.step, record.loss) for record in history.steps]
    validation = [(0, before), *((e.step, e.value) for e in history.evaluations)]
    means = _moving_mean(training)
    ticks = _ticks([loss for _, loss in (*means, *validation)])
    last = max(1, len(training))

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / last

    def y(loss: float) -> float:
        inside = min(max(loss, ticks[0]), ticks[-1])  # a single step may be far outside
        return BOTTOM - (BOTTOM - TOP) * (inside - ticks[0]) / (ticks[-1] - ticks[0])

    def polyline(points: Sequence[Point]) -> str:
        return " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)

    digits = max(len(f"{tick:.6f}".rstrip("0").partition(".")[2]) for tick in ticks)
    values = ", ".join(f"{loss:.2f} at step {step}" for step, loss in validation)
    return html_page(
        "loss_chart.svg",
        label=f"Loss against the step, from 0 to {last}. Validation loss: {values}. The weights of "
        f"step {kept} are kept.",
        left=LEFT,
        right=RIGHT,
        bottom=BOTTOM,
        ticks=[(f"{tick:.{digits}f}", y(tick)) for tick in ticks],
        steps=[(step, x(step)) for step in sorted({0, last // 2, last})],
        lines={
            "steps": polyline(training),
            "train": polyline(means),
            "valid": polyline(validation),
        },
        validation=[(step, x(step), y(loss)) for step, loss in validation],
        kept=kept,
    )


def _moving_mean(points: Sequence[Point]) -> list[Point]:
    """Means over windows of about a sixteenth of the steps, at the middle of each."""
    size = max(1, round(len(points) / 16))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers around the values, three to seven of them.

    >>> _ticks([2.51, 4.33])
    [2.5, 3.0, 3.5, 4.0, 4.5]
    """
    low = min(values)
    high = max(values)
    size = max(high - low, 0.02) / 5
    power = 10 ** math.floor(math.log10(size))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= size)
    first = max(0, math.floor(low / step + 0.05))
    last = math.ceil(high / step - 0.05)
    return [round(number * step, 6) for number in range(first, max(last, first + 2) + 1)]
