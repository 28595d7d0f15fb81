"""The state of a training run between two steps: what is trained, and the record so far.

Chapter: finetuning/sft.
"""

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from course_pkg.finetuning.callback import Callback
from course_pkg.finetuning.checkpoint import (
    load_checkpoint,
    restore_weights,
    save_checkpoint,
    saved_step,
)
from course_pkg.finetuning.config import learning_rate_at
from course_pkg.finetuning.evaluation import Batch
from course_pkg.finetuning.history import Evaluation, History, StepRecord
from course_pkg.finetuning.optimization import Optimization
from course_pkg.finetuning.stopping import out_of_patience


class Run:
    """A run that `train` takes step by step; it may continue a saved one.

    >>> from course_pkg.finetuning.config import TrainConfig
    >>> from course_pkg.lm.load import load
    >>> run = Run(Optimization(load("tiny").model, TrainConfig(steps=2)))
    >>> tokens = torch.tensor([[72, 105, 33]])
    >>> run.step([{"input_ids": tokens, "labels": tokens}]).tokens, run.finished
    (2, False)
    """

    def __init__(self, optimization: Optimization, callback: Callback | None = None) -> None:
        self.optimization, self.callback = optimization, callback
        self.model, self.config = optimization.model, optimization.config
        self.steps: list[StepRecord] = []
        self.evaluations: list[Evaluation] = []

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience is exhausted."""
        return len(self.steps) == self.config.steps or out_of_patience(
            self.evaluations, self.config
        )

    @property
    def history(self) -> History:
        """The record so far."""
        stopped = self.finished and len(self.steps) < self.config.steps
        return History(tuple(self.steps), tuple(self.evaluations), stopped)

    def step(self, batches: Sequence[Batch]) -> StepRecord:
        """Train on the batches of one optimizer step. Raises as `Optimization` does."""
        started = time.perf_counter()
        step = len(self.steps) + 1
        self.model.train()
        loss, tokens = self.optimization.accumulate(batches, step)
        if self.callback is not None:
            self.optimization.add(self.callback.extra_loss(), step)
        norm = self.optimization.update(step)
        if self.callback is not None:
            self.callback.after_step(step)
        self.optimization.clear()
        rate, seconds = learning_rate_at(step, self.config), time.perf_counter() - started
        self.steps.append(StepRecord(step, loss, rate, norm, tokens, seconds))
        return self.steps[-1]

    def evaluate(self, function: Callable[[nn.Module], float]) -> Evaluation:
        """Call a function of the model, in eval mode and without an effect on random numbers.

        Raises TypeError if it doesn't return a number.
        """
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
            value = function(self.model.eval())
        try:
            self.evaluations.append(Evaluation(len(self.steps), float(value)))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"evaluate must return a number, got {value!r:.80}") from error
        return self.evaluations[-1]

    def save(self, path: str | os.PathLike) -> None:
        """Write a checkpoint."""
        save_checkpoint(path, self.optimization, self.history, self.callback)

    def load(self, path: str | os.PathLike) -> None:
        """Continue the run that wrote a checkpoint. Raises as `load_checkpoint` does."""
        history = load_checkpoint(path, self.optimization, self.callback)
        self.steps, self.evaluations = list(history.steps), list(history.evaluations)

    def check_best(self, path: str | os.PathLike) -> None:
        """Raise an error unless the checkpoint of the best evaluation, if there is one, is here.

        After a kill, it may be of a later step than the last checkpoint. Raises as
        `load_checkpoint`, and ValueError if it is of an earlier step.
        """
        if (best := self.history.best) is None:
            return
        step = saved_step(path, self.optimization, self.callback)
        if step < best.step:
            raise ValueError(
                f"the best step of this run is {best.step}, but {os.fspath(path)} is of step "
                f"{step}: give the best_checkpoint of the same run"
            )

    def restore_best(self, path: str | os.PathLike) -> None:
        """Restore the weights of the best evaluation, if there is one, from its checkpoint."""
        if self.history.best is not None:
            restore_weights(path, self.optimization, self.callback)
