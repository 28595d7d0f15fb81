"""Scenarios: which uses of a model an evaluation covers, and what it measures in each.

Source: Liang et al. 2023, "Holistic Evaluation of Language Models" (arXiv 2211.09110).
"""

import json
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CORE = Path(__file__).resolve().parents[2] / "data" / "evaluation" / "helm-core.json"
CATEGORIES = ("accuracy", "calibration", "robustness", "fairness", "bias", "toxicity", "efficiency")


@dataclass(frozen=True)
class Scenario:
    """A use of a model."""

    name: str
    task: str
    what: str
    who: str
    when: str
    language: str
    measured: tuple[str, ...] = ()


def load_helm_core() -> list[Scenario]:
    """HELM's core scenarios, in its order."""
    rows = json.loads(CORE.read_text("utf-8"))
    return [Scenario(**row | {"measured": tuple(row["measured"])}) for row in rows]


def measured_grid(scenarios: Sequence[Scenario]) -> np.ndarray:
    """Which categories are measured in which scenario: booleans, (scenarios, categories)."""
    rows = [[name in scenario.measured for name in CATEGORIES] for scenario in scenarios]
    return np.array(rows, dtype=bool).reshape(len(scenarios), len(CATEGORIES))


def greedy_cover(
    candidates: Mapping[str, Set[Hashable]], preferred: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """An order of scenarios in which each adds the most that none before it covers.

    The smallest set is NP-hard to find; this has at most 1 + ln(n) times as many (Chvátal 1979).

    Args:
        candidates: by name, what each scenario covers.
        preferred: names that win ties, the first of them first.

    >>> greedy_cover({"a": {1, 2}, "b": {2, 3, 4}, "c": {1, 4}}, preferred=["c"])
    [('b', 3), ('c', 1)]
    """
    if unknown := [name for name in preferred if name not in candidates]:
        raise ValueError(f"preferred names {unknown} are not among the candidates")
    order = [*preferred, *(name for name in candidates if name not in preferred)]
    left = set().union(*candidates.values())
    chosen = []
    while left:
        best = max(order, key=lambda name: len(candidates[name] & left))  # the first of the best
        chosen.append((best, len(candidates[best] & left)))
        left -= candidates[best]
    return chosen


def worst_case(scores: Sequence[Sequence[float]]) -> list[float]:
    """For each item the lowest score over its variants, (variants, items): HELM's robustness."""
    lengths = sorted({len(row) for row in scores})
    if len(lengths) != 1 or lengths == [0]:
        raise ValueError(f"{lengths} items: give scores of the same items for each variant")
    return np.array(scores, dtype=float).min(axis=0).tolist()
