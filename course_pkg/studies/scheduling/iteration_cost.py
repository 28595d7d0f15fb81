"""How long an iteration takes: a linear model, fitted to measured iterations.

It fits SmolLM2 on a processor; a GPU that becomes compute-bound needs another model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING

from course_pkg.pages.experiments import load_experiment

if TYPE_CHECKING:  # imported by the fit alone
    import numpy as np


@dataclass(frozen=True)
class Work:
    """What one iteration computes."""

    prompt: int = 0  # tokens of prompts
    pairs: int = 0  # of such a token and a key that it sees
    sequences: int = 0  # that decode one token each
    context: int = 0  # the keys that these tokens see, over all

    @classmethod
    def of(cls, prompts: Iterable[int] = (), contexts: Iterable[int] = ()) -> "Work":
        """prompts: the tokens of each. contexts: the keys that a sequence's newest token sees."""
        prompts = list(prompts)
        contexts = list(contexts)
        pairs = sum(tokens * (tokens + 1) // 2 for tokens in prompts)
        return cls(sum(prompts), pairs, len(contexts), sum(contexts))


@dataclass(frozen=True)
class CostModel:
    """Seconds of an iteration: a constant for the weights, and a rate for each count in `Work`."""

    base: float = 0.0
    prompt: float = 0.0
    pairs: float = 0.0
    sequences: float = 0.0
    context: float = 0.0

    def __post_init__(self):
        rates = astuple(self)
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
            raise ValueError(f"{self}: finite and at least 0, and one of them is positive")

    def seconds(self, work: Work) -> float:
        """The time of one iteration."""
        return (
            self.base
            + self.prompt * work.prompt
            + self.pairs * work.pairs
            + self.sequences * work.sequences
            + self.context * work.context
        )

    def first_iteration(self, prompt: int) -> float:
        """The time of a request's first iteration, alone: what a server can know beforehand."""
        return self.seconds(Work.of(prompts=[prompt]))

    def alone(self, prompt: "int | np.ndarray", output: "int | np.ndarray") -> "float | np.ndarray":
        """The time of a whole request with the server for itself.

        >>> CostModel(base=1.0, context=0.5).alone(prompt=10, output=3)  # 3 + 0.5 · (11 + 12)
        14.5
        """
        steps = output - 1
        return (
            self.base * output
            + self.prompt * prompt
            + self.pairs * (prompt * (prompt + 1) / 2)
            + self.sequences * steps
            + self.context * (steps * prompt + steps * output / 2)
        )


@dataclass(frozen=True)
class Fit:
    """A fitted model and how well it fits: `error` is the mean ``|predicted / measured − 1|``."""

    model: CostModel
    error: float
    worst: float


def profile(points: Sequence[tuple[Work, float]]) -> Fit:
    """The cost model with rates of at least 0 that fits measured iterations best.

    The sum of squared relative errors is least (non-negative least squares).
    """
    import numpy as np
    from scipy.optimize import nnls

    rates = 5
    if len(points) < rates:
        raise ValueError(f"got {len(points)} points: measure at least {rates} kinds of iterations")
    counts = np.array([(1, *astuple(work)) for work, _ in points], float)  # (points, 5)
    seconds = np.array([taken for _, taken in points], float)  # (points,)
    if not np.all((seconds > 0) & np.isfinite(seconds)):
        raise ValueError(f"times of iterations must be positive and finite, got {min(seconds)}")
    weighted = counts / seconds[:, None]  # times the rates, these shall all be 1
    scale = weighted.max(axis=0)
    if not scale.all() or np.linalg.matrix_rank(weighted / scale) < rates:
        raise ValueError(
            f"these {len(points)} points cannot tell the {rates} rates apart: vary prompts, "
            "sequences and contexts independently of each other"
        )
    best = nnls(weighted / scale, np.ones(len(points)))[0] / scale
    errors = np.abs(weighted @ best - 1)
    return Fit(CostModel(*best.tolist()), float(errors.mean()), float(errors.max()))


@cache
def recorded() -> Fit:
    """The model fitted to the record `iteration_times`: SmolLM2-135M, packed, on one thread."""
    return profile(recorded_points())


@cache
def recorded_points() -> tuple[tuple[Work, float], ...]:
    """The measured iterations of the record `iteration_times`, with their seconds."""
    return tuple(
        (Work.of(row["prompts"], [row["context"]] * row["sequences"]), row["iteration_seconds"])
        for row in load_experiment("iteration_times").rows
    )
