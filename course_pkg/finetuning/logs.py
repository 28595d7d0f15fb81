"""Logs that TensorBoard shows while a run trains, where the package is installed.

The course doesn't need it: a History has the same numbers, and a plot.

Chapter: finetuning/sft.
"""

import os
from typing import TYPE_CHECKING

from course_pkg.finetuning.history import Evaluation, StepRecord

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def summary_writer() -> "type[SummaryWriter]":
    """The class that writes TensorBoard's files.

    Raises ModuleNotFoundError, which says how to install it, where tensorboard is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "TensorBoard logs need the package tensorboard, which the course does not install: "
            f"`pip install tensorboard`, or leave out tensorboard=... ({error})"
        ) from error
    return SummaryWriter


def scalars(record: StepRecord | Evaluation) -> dict[str, float]:
    """The numbers of a step or of an evaluation, by their names in TensorBoard.

    >>> scalars(Evaluation(20, 1.5))
    {'evaluation': 1.5}
    >>> scalars(StepRecord(1, 2.5, 1e-4, 0.7, tokens=128, seconds=0.2))["train/tokens_per_second"]
    640.0
    """
    if isinstance(record, Evaluation):
        return {"evaluation": record.value}
    return {
        "train/loss": record.loss,
        "train/learning_rate": record.learning_rate,
        "train/grad_norm": record.grad_norm,
        "train/tokens_per_second": record.tokens / record.seconds,
    }


class TensorBoardLog:
    """A run's numbers in a folder, for `tensorboard --logdir FOLDER`; close it at the end.

    first_step: the first step that will be logged. What the folder has of an earlier or interrupted
    run from this step on is no longer shown.
    Raises ModuleNotFoundError where tensorboard is missing, OSError if it can't write.
    """

    def __init__(self, folder: str | os.PathLike, first_step: int = 1) -> None:
        self.writer = summary_writer()(os.fspath(folder), purge_step=first_step)

    def add(self, record: StepRecord | Evaluation) -> None:
        """Log a step or an evaluation; an evaluation also writes to the disk what came before."""
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record.step)
        if isinstance(record, Evaluation):
            self.writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.writer.close()
