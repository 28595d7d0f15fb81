"""`benchmarks`: its logistic regressions: of numbers, of matches, and of preferences by length.

These questions alone need numpy, which is imported where it is used.

Chapter: exercises.
"""

import math
from random import Random
from typing import Any

from course_pkg.studies.chat_benchmarks.comparisons import Match

Inputs = dict[str, Any]
MODELS = ("ash", "beech", "cedar", "fir", "larch", "maple", "oak", "pine")
LARGEST = 3.0  # of a fitted coefficient: other draws are taken again


def newton_step(inputs: Inputs) -> list[float]:
    """The step of `fit_logistic` from the given coefficients."""
    import numpy as np

    from course_pkg.studies.chat_benchmarks.logistic import sigmoid

    x, y, start = (np.array(values, float) for values in inputs.values())
    chances = sigmoid(x @ start)
    information = (x.T * (chances * (1 - chances))) @ x
    return (start + np.linalg.solve(information, x.T @ (y - chances))).tolist()


def draw_regression(rng: Random, size: int, kind: str) -> Inputs:
    """Rows with a 1 and other columns. large: two rows are so far out that they count nothing."""
    import numpy as np

    columns, rows = 2 + size // 2, 6 + size
    design = [[1.0, *(rng.randint(-8, 8) / 4 for _ in range(columns - 1))] for _ in range(rows)]
    outcomes: list[float] = [rng.randint(0, 1) for _ in design]
    if kind == "fractions":
        outcomes = [rng.choice([0, 0.2, 0.4, 0.5, 0.7, 0.9, 1]) for _ in design]
    start = [0.0] * columns
    if kind in ("weights", "large"):
        start = [rng.choice([-1, 1]) * rng.randint(2, 4) / 4 for _ in start]
    if kind == "large":  # as predicted: any other outcome of such a row would decide the step
        start[1:] = [abs(each) for each in start[1:]]
        design += [[1.0, *[sign * 6000.0] * (columns - 1)] for sign in (-1, 1)]
        outcomes += [0, 1]
    case = {"design": design, "outcomes": outcomes, "coefficients": start}
    if np.linalg.matrix_rank(np.array(design[:rows])) < columns or len(set(outcomes)) < 2:
        return draw_regression(rng, size, kind)
    return case


def strengths(inputs: Inputs) -> dict[str, float]:
    """The course's strengths."""
    from course_pkg.studies.chat_benchmarks.ratings import bradley_terry

    fit = bradley_terry([Match(*match) for match in inputs["matches"]], errors="fisher")
    return dict(zip(fit.names, fit.strengths.tolist(), strict=True))


def draw_matches(rng: Random, size: int, kind: str) -> Inputs:
    """Unevenly many matches between all pairs, with finite strengths of different sizes."""
    names = rng.sample(MODELS, 3 + size)
    verdicts = {"ties": [0, 0.5, 0.5, 1], "failed": [0, 1, 1, None]}.get(kind, [0, 1, 1])
    matches = []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            for _ in range(rng.randint(1, 5)):
                pair = [first, second] if rng.random() < 0.7 else [second, first]
                matches.append([*pair, rng.choice(verdicts)])
    if kind == "failed" and size:
        other = next(name for name in MODELS if name not in names)
        matches += [[other, names[0], None], [names[1], other, None]]
    rng.shuffle(matches)
    decided = [match for match in matches if match[2] != 0.5]  # wrong answers have a value too
    try:
        found = [strengths({"matches": these}) for these in (matches, decided)]
    except ValueError:  # somebody won all matches
        return draw_matches(rng, size, kind)
    if max(map(abs, found[0].values())) > LARGEST or not all(set(f) == set(names) for f in found):
        return draw_matches(rng, size, kind)
    return {"matches": matches}


def controlled_rate(inputs: Inputs) -> float:
    """The course's length-controlled win rate."""
    from course_pkg.studies.chat_benchmarks.length_control import length_controlled_win_rate

    preferences, lengths, baseline, hard = inputs.values()
    found = length_controlled_win_rate(preferences, lengths, baseline, difficulty=hard)
    if max(map(abs, (found.model, found.length, found.difficulty))) > LARGEST:
        raise ValueError("the coefficients are too large")
    return found.controlled.estimate


def draw_judged(rng: Random, size: int, kind: str) -> Inputs:
    """Preferences that rise with length. equal, difficulty: all differences are ±Δ.

    Then tanh and d change only the coefficient. difficulty: γ of several sizes.
    """
    count = 10 + 3 * size
    step = 10 * rng.randint(4, 20)
    gaps = [rng.choice([-step, step, step]) for _ in range(count)]
    if kind == "tanh":
        gaps = [10 * rng.randint(-15, 60) for _ in range(count)]
    baseline = [rng.randint(65, 90) * 10 for _ in range(count)]
    hard = [rng.randint(-8, 8) / 4 for _ in range(count)] if kind == "difficulty" else None
    logits = [gap / step - 0.3 + (hard[i] if hard else 0) for i, gap in enumerate(gaps)]
    judged = [round(1 / (1 + math.exp(-z - rng.gauss(0, 1))), 2) for z in logits]
    lengths = [gap + other for gap, other in zip(gaps, baseline, strict=True)]
    case = {"preferences": judged, "lengths": lengths, "baseline_lengths": baseline}
    case["difficulty"] = hard
    try:
        clear = abs(controlled_rate(case) - sum(judged) / count) > 0.02
    except ValueError:
        clear = False
    return case if clear else draw_judged(rng, size, kind)
