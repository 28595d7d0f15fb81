"""The loss curve of a run as an SVG picture, whose colors are those of the page around it.

Chapter: finetuning/sft.
"""

import math
from collections.abc import Callable, Sequence

from course_pkg.finetuning.training_state import History

WIDTH = 480
HEIGHT = 300
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

    Example:

        >>> from course_pkg.finetuning.training_state import Evaluation, StepRecord
        >>> steps = [StepRecord(n, 3.0 - n, 1e-3, 1.0, 9, 0.1) for n in (1, 2)]
        >>> svg = loss_chart(History(steps, [Evaluation(2, 1.5)]), 3.0, 2)
        >>> svg.count("<polyline"), svg.count("<rect")
        (5, 3)
    """
    training = [(record.step, record.loss) for record in history.steps]
    validation = [(0, before), *((e.step, e.value) for e in history.evaluations)]
    means = _moving_mean(training)
    values = [value for _, value in (*means, *validation)]
    ticks = _ticks(values)
    low = ticks[0]
    high = ticks[-1]
    last = max(1, len(training))

    def place(point: Point) -> Point:
        x = LEFT + (RIGHT - LEFT) * point[0] / last
        inside = min(max(point[1], low), high)  # a single step may be far outside
        return x, BOTTOM - (BOTTOM - TOP) * (inside - low) / (high - low)

    parts = [_grid(ticks, last, place)]
    for name, points in (("steps", training), ("train", means), ("valid", validation)):
        pairs = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        parts.append(f'<polyline class="{name}" points="{pairs}"/>')
    for x, y in map(place, validation):
        parts.append(f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>')
    for point in validation:
        if point[0] == kept:
            x, y = place(point)
            parts.append(f'<circle class="kept" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
    label = (
        f"Loss against the step, from 0 to {last}. Validation loss: "
        + ", ".join(f"{value:.2f} at step {step}" for step, value in validation)
        + f". The weights of step {kept} are kept."
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}{_legend()}</svg>"
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

    Example:

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


def _grid(ticks: Sequence[float], last: int, place: Callable[[Point], Point]) -> str:
    parts = []
    digits = max(len(f"{tick:.6f}".rstrip("0").partition(".")[2]) for tick in ticks)
    for tick in ticks:
        y = place((0, tick))[1]
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">{tick:.{digits}f}</text>'
        )
    for step in sorted({0, last // 2, last}):
        x = place((step, ticks[0]))[0]
        anchor = "end" if step == last else "middle"
        parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="{anchor}">{step}</text>')
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{BOTTOM + 40}" text-anchor="middle">step</text>')
    return "".join(parts)


def _legend() -> str:
    return (
        f'<text x="{LEFT - 40}" y="16">loss (nats per token)</text>'
        '<polyline class="train" points="196,11 226,11"/><text x="232" y="16">training</text>'
        '<polyline class="valid" points="322,11 352,11"/><rect x="333.5" y="7.5" width="7" '
        'height="7"/><text x="358" y="16">validation</text>'
    )
