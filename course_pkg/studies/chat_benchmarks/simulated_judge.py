"""A judge whose quality and biases are known, to see whether the statistics find them.

Answerers have known strengths s and lengths. On question q, answerer i has the strength
s_i + spread · z_iq, the same in all turns, so that the turns of a question are related. In each
order, the judge draws a verdict of its own:

    P(first answerer preferred) = σ(s_i - s_j + spread (z_iq - z_jq) + φ tanh(Δ/d) ± position)

with the plus sign if the first answerer is shown as answer A. Chapter: evaluation/chat-benchmarks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.chat_benchmarks.comparisons import Comparison
from course_pkg.studies.chat_benchmarks.length_control import length_term
from course_pkg.studies.chat_benchmarks.logistic import sigmoid

LENGTH_SPREAD = 0.4  # standard deviation of the logarithm of an answer's length
NODES = 40  # of the numerical integral


@dataclass(frozen=True)
class SimulatedJudge:
    """length: φ. position: log-odds for what is shown first. spread: of strengths by question."""

    length: float = 0.0
    position: float = 0.0
    spread: float = 0.0


def simulate_comparisons(
    strengths: Mapping[str, float],
    judge: SimulatedJudge,
    *,
    questions: int,
    turns: int = 2,
    lengths: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Comparison]:
    """All pairs of answerers on all turns of all questions, judged in both orders.

    strengths: in log-odds. lengths: the typical length of each one's answers in characters; 400 by
    default. Raises ValueError for fewer than two answerers or one question.

    >>> comparisons = simulate_comparisons({"x": 1.0, "y": 0.0}, SimulatedJudge(), questions=3)
    >>> len(comparisons), comparisons[0].as_a in (0.0, 1.0)
    (6, True)
    """
    require_integer(questions, "questions")
    require_integer(turns, "turns")
    if len(strengths) < 2:
        raise ValueError(f"strengths has {len(strengths)} answerer: give two or more")
    generator = np.random.default_rng(seed)
    own = {}
    written = {}
    for name, strength in strengths.items():
        own[name] = strength + judge.spread * generator.normal(size=questions).repeat(turns)
        typical = 400.0 if lengths is None else lengths[name]
        noise = generator.normal(0, LENGTH_SPREAD, questions * turns)
        written[name] = np.maximum(1, np.rint(typical * np.exp(noise)))
    comparisons = []
    for first, second in combinations(strengths, 2):
        logits = own[first] - own[second]
        if judge.length:
            logits = logits + judge.length * length_term(written[first], written[second])
        drawn = generator.random((2, questions * turns))
        as_a = (drawn[0] < sigmoid(logits + judge.position)).astype(float).tolist()
        as_b = (drawn[1] < sigmoid(logits - judge.position)).astype(float).tolist()
        for row in range(questions * turns):
            sides = (as_a[row], as_b[row])
            sizes = (int(written[first][row]), int(written[second][row]))
            place = (f"q{row // turns}", row % turns + 1)
            comparisons.append(Comparison(*place, first, second, *sides, *sizes))
    return comparisons


def true_win_rate(gap: float, spread: float = 0.0) -> float:
    """The probability of a win over all questions, for a gap of strengths; ties count half.

    The mean of σ(gap + √2 · spread · z) over a standard normal z: a spread pulls it toward 0.5.
    Raises ValueError for a spread below 0.

    >>> round(true_win_rate(1.0), 3), round(true_win_rate(1.0, spread=1.0), 3)
    (0.731, 0.675)
    """
    require_between(spread, "spread", 0, np.inf, closed=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return float(weights @ sigmoid(gap + np.sqrt(2) * spread * nodes) / weights.sum())
