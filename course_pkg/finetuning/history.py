"""The record of a training run, step by step, with a plot and a JSON format.

Chapter: finetuning/sft.
"""

import json
import math
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
    """The value that `evaluate` returned after a step; lower is better."""

    step: int
    value: float


@dataclass
class History:
    """The steps and evaluations of a run; stopped_early: patience ran out before the last step."""

    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
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
        """The first evaluation with the lowest value; None if no value is below infinity."""
        numbers = [each for each in self.evaluations if each.value < math.inf]
        return min(numbers, key=lambda evaluation: evaluation.value, default=None)

    @property
    def evaluations_since_best(self) -> int:
        """The number of evaluations after the best one; all of them without a best one.

        Source: Prechelt 1998, "Early stopping - but when?"; counted as in PyTorch Lightning.
        """
        best = self.best
        if best is None:
            return len(self.evaluations)
        return len(self.evaluations) - 1 - self.evaluations.index(best)

    def to_json(self) -> str:
        """The whole record as one JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "History":
        """Read a record that `to_json` wrote. Raises ValueError if the text is not one."""
        try:
            raw = json.loads(text)
            steps = [StepRecord(**record) for record in raw["steps"]]
            evaluations = [Evaluation(**record) for record in raw["evaluations"]]
            return cls(steps, evaluations, raw["stopped_early"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the text is not a training history: {error!r}") from error

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the training loss and the evaluations against the step; return the axes.

        The best evaluation is marked if it isn't the last, and so is the end of a run that stopped
        early. Raises ValueError if nothing was recorded.
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
