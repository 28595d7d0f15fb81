"""The record of a training run, step by step, with a plot and a JSON format.

Chapter: adapters/lora-training.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step: loss in nats per target token, before the step's update.

    grad_norm is the norm before clipping; tokens counts targets; seconds is wall time.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """The value that the evaluation callback returned after a step."""

    step: int
    value: float


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation with the lowest value; NaN never is. None if there is none.

    >>> best_of([Evaluation(10, 1.5), Evaluation(20, 1.2), Evaluation(30, 1.2)])
    Evaluation(step=20, value=1.2)
    """
    numbers = [evaluation for evaluation in evaluations if not math.isnan(evaluation.value)]
    return min(numbers, key=lambda evaluation: evaluation.value, default=None)


@dataclass(frozen=True)
class History:
    """The record of a training run; stopped_early: it ran out of patience before its last step.

    >>> history = History((StepRecord(1, 2.5, 1e-4, 0.7, 128, 0.2),), (Evaluation(1, 2.4),))
    >>> history.losses
    [2.5]
    >>> History.from_json(history.to_json()) == history
    True
    """

    steps: tuple[StepRecord, ...] = field(default=())
    evaluations: tuple[Evaluation, ...] = field(default=())
    stopped_early: bool = False

    @property
    def losses(self) -> list[float]:
        """The training loss of each step, in nats per target token."""
        return [record.loss for record in self.steps]

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second of wall time, over all steps; NaN before the first step."""
        if not self.steps:
            return math.nan
        return sum(r.tokens for r in self.steps) / sum(r.seconds for r in self.steps)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the lowest value, the first of them if several have it."""
        return best_of(self.evaluations)

    def to_json(self) -> str:
        """The whole record as one JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "History":
        """Read a record that `to_json` wrote. Raises ValueError if the text is not one."""
        try:
            raw = json.loads(text)
            steps = tuple(StepRecord(**record) for record in raw["steps"])
            evaluations = tuple(Evaluation(**record) for record in raw["evaluations"])
            return cls(steps, evaluations, raw.get("stopped_early", False))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the text is not a training history: {error!r}") from error

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the training loss and the evaluations against the step; return the axes.

        Marked are the best evaluation, if it isn't the last, and the end of a run stopped early.
        Raises ValueError if nothing was recorded.
        """
        if not self.steps:
            raise ValueError("the history has no steps to plot")
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(figsize=(6, 3.5), layout="constrained").add_subplot()
        ax.plot([r.step for r in self.steps], self.losses, color="#0072B2", label="training loss")
        if self.evaluations:
            points = zip(*((e.step, e.value) for e in self.evaluations), strict=True)
            ax.plot(*points, "s--", color="#D55E00", markersize=5, label="evaluation")
            if self.best not in (None, self.evaluations[-1]):
                label = f"best: step {self.best.step}"
                ax.plot(self.best.step, self.best.value, "*", color="black", ms=11, label=label)
        if self.stopped_early:
            end = self.steps[-1].step
            ax.axvline(end, color="gray", linestyle=":", label=f"stopped at step {end}")
        ax.set_xlabel("step")
        ax.set_ylabel("loss (nats per token)")
        ax.legend()
        return ax
