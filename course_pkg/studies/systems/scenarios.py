"""Scenarios: which uses of a model an evaluation covers, and what it measures in each.

HELM describes a scenario by a task, a domain and a language, and the domain by what the texts are,
who wrote them, and when. A grid of scenarios and metrics then shows what is measured, and what is
not. HELM's core scenarios are in `course_pkg/data/evaluation/helm-core.json`, as in the
configuration of its program; "?" stands for what it doesn't say.

Not here: the scores of a model in a scenario (`statistics`, `comparison`), and how to sum them up.
Source: Liang et al. 2023, "Holistic Evaluation of Language Models" (arXiv 2211.09110), sections 2
to 4. Chapter: evaluation/systems.
"""

import json
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CORE = Path(__file__).resolve().parents[2] / "data" / "evaluation" / "helm-core.json"
CATEGORIES = (
    "accuracy",
    "calibration",
    "robustness",
    "fairness",
    "bias",
    "toxicity",
    "efficiency",
)


@dataclass(frozen=True)
class Scenario:
    """A use of a model. measured: the categories of metrics that an evaluation reports for it."""

    name: str
    task: str
    what: str
    who: str
    when: str
    language: str
    measured: tuple[str, ...] = ()


def load_helm_core() -> list[Scenario]:
    """HELM's core scenarios, in its order.

    >>> len(load_helm_core()), load_helm_core()[0].task
    (16, 'question answering')
    """
    rows = json.loads(CORE.read_text("utf-8"))
    return [Scenario(**row | {"measured": tuple(row["measured"])}) for row in rows]


def measured_grid(scenarios: Sequence[Scenario]) -> np.ndarray:
    """Which categories are measured in which scenario: booleans, (scenarios, categories).

    >>> grid = measured_grid(load_helm_core())
    >>> int(grid.sum()), grid.size
    (96, 112)
    """
    rows = [[name in scenario.measured for name in CATEGORIES] for scenario in scenarios]
    return np.array(rows, dtype=bool).reshape(len(scenarios), len(CATEGORIES))


def greedy_cover(
    candidates: Mapping[str, Set[Hashable]], preferred: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """An order of scenarios in which each adds the most that none before it covers.

    candidates: by name, what each scenario covers, such as ("task", "summarization"). preferred:
    names that win ties, the first of them first; otherwise the order of `candidates` decides. The
    list ends when nothing is left to cover; with each name is how much it added. To find the
    smallest set that covers everything is NP-hard; the greedy set has at most 1 + ln(n) times as
    many scenarios, where n is the number of things to cover (Chvátal 1979).
    Raises ValueError for a preferred name that is not a candidate.

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
    """For each item the lowest score over its variants: HELM's robustness.

    scores: (variants, items), the first variant being the original. The mean over items is at most
    the worst variant's mean. Raises ValueError if the variants have different items, or none.
    Source: Liang et al. 2023, section 4.5.

    >>> worst_case([[1, 1, 0, 1], [1, 0, 0, 1]])
    [1.0, 0.0, 0.0, 1.0]
    """
    lengths = sorted({len(row) for row in scores})
    if len(lengths) != 1 or lengths == [0]:
        raise ValueError(
            f"the variants have {lengths} items; give the scores of the same items for each variant"
        )
    return np.array(scores, dtype=float).min(axis=0).tolist()
