"""A judge whose quality and biases are known, to see whether the statistics find them.

P(first answerer preferred) = σ(s_i - s_j + spread (z_iq - z_jq) + φ tanh(Δ/d) ± position)
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
    """All pairs of answerers on all turns of all questions, judged in both orders."""
    require_integer(questions, "questions")
    require_integer(turns, "turns")
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
    """The mean of σ(gap + √2 · spread · z) over a standard normal z; ties count half.

    >>> round(true_win_rate(1.0), 3), round(true_win_rate(1.0, spread=1.0), 3)
    (0.731, 0.675)
    """
    require_between(spread, "spread", 0, np.inf, closed=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return float(weights @ sigmoid(gap + np.sqrt(2) * spread * nodes) / weights.sum())
