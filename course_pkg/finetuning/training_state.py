"""The state of a training run between two steps: weights, AdamW, record; and its checkpoints.

The position in the data and the learning rate follow from the step number, so they are not saved.
"""

import json
import math
import os
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.common.files import atomic_file, remove_unfinished
from course_pkg.finetuning.batches import Batch, on_device
from course_pkg.finetuning.config import Callback, Evaluate, FilePath, Precision, TrainConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
CHANGEABLE = ("progress", "checkpoint_every", "patience")  # settings that a resumed run may change


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step: the loss in nats per target token, before the update.

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
        numbers = [evaluation for evaluation in self.evaluations if evaluation.value < math.inf]
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
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "History":
        try:
            raw = json.loads(text)
            steps = [StepRecord(**record) for record in raw["steps"]]
            evaluations = [Evaluation(**record) for record in raw["evaluations"]]
            return cls(steps, evaluations, raw["stopped_early"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the text is not a training history: {error!r}") from error

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the training loss and the evaluations against the step; return the axes."""
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


class TrainingState:
    """What the next step depends on: parameters, AdamW, fp16's gradient scale, and the history.

    Source: Loshchilov & Hutter 2019 (AdamW).
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, callback: Callback | None = None
    ) -> None:
        self.model = model
        self.config = config
        self.callback = callback
        self.seed = config.seed
        self.history = History()
        self.parameters = trainable_parameters(model)
        if not self.parameters:
            raise ValueError("no parameter requires a gradient; inject an adapter or unfreeze some")
        self.device = next(iter(self.parameters.values())).device
        self.dtype = autocast_dtype(config.precision, self.device)
        half = any(p.dtype is torch.float16 for p in self.parameters.values())
        if self.dtype is torch.float16 and half:
            raise ValueError(
                "fp16 training needs its trainable parameters in fp32; convert them first"
            )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)
        # Weight decay is for matrices, not for vectors (biases, weights of norms).
        matrices = [p for p in self.parameters.values() if p.ndim >= 2]
        vectors = [p for p in self.parameters.values() if p.ndim < 2]
        decays = ((matrices, config.weight_decay), (vectors, 0.0))
        groups = [{"params": part, "weight_decay": decay} for part, decay in decays if part]
        self.optimizer = torch.optim.AdamW(groups)

    @property
    def finished(self) -> bool:
        exhausted = 0 < self.config.patience <= self.history.evaluations_since_best
        return exhausted or len(self.history.steps) == self.config.steps

    def backward(self, batches: Sequence[Batch], weights: Sequence[float]) -> list[float]:
        """Add the gradient of the weighted losses of a step's batches; return each weighted loss.

        A batch with weight 0 has no target, so its mean loss would be 0/0: it is left out.
        """
        losses = [0.0] * len(batches)
        for index, weight in enumerate(weights):
            if weight > 0:
                losses[index] = self.backward_batch(batches[index], weight)
        return losses

    def backward_batch(self, batch: Batch, weight: float) -> float:
        """Add the gradient of one batch's loss, times a weight; return that product."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            loss = self.model(**on_device(batch, self.device)).loss * weight
        self.scaler.scale(loss).backward()
        return loss.item()

    def clip_gradients(self) -> float:
        """Scale the gradients down to the norm `max_grad_norm`; return the norm before it."""
        self.scaler.unscale_(self.optimizer)
        return nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm).item()

    def update(self, learning_rate: float) -> None:
        """Take AdamW's step; in fp16, the scaler skips it if a gradient is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def evaluate(self, function: Evaluate) -> float:
        """The value of a function of the model in eval mode; random numbers are as before it."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
            value = function(self.model.eval())
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"evaluate must return a number, got {value!r:.80}") from error

    def finish(self) -> History:
        """The record of the run, once the model has its final weights."""
        self.history.stopped_early = len(self.history.steps) < self.config.steps
        return self.history

    def save(self, path: FilePath) -> None:
        """Write a checkpoint: whole or not at all, even if the process is killed."""
        write_checkpoint(path, self.content())

    def content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": self._settings(),
            "weights": {name: p.detach() for name, p in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            **random_states(),
            "other_ranks": [],  # the random states of other processes
            "history": self.history.to_json(),
            "callback": None if self.callback is None else self.callback.state_dict(),
        }

    def load(self, path: FilePath) -> None:
        """Restore everything that `save` wrote."""
        content = self.read(path)
        self._restore_weights(content)
        self.optimizer.load_state_dict(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        torch.set_rng_state(content["rng"])
        if len(content["cuda_rng"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(content["cuda_rng"])
        self.history = History.from_json(content["history"])

    def load_weights(self, path: FilePath) -> None:
        self._restore_weights(self.read(path))

    def check_best(self, path: FilePath) -> None:
        """Check that the file holds this run's best step, or a later one.

        A later one is left by a run that was killed before its next checkpoint.
        """
        best = self.history.best
        if best is None:
            return
        step = len(History.from_json(self.read(path)["history"]).steps)
        if step < best.step:
            raise ValueError(
                f"the best step of this run is {best.step}, but {os.fspath(path)} is of step "
                f"{step}: give the best_checkpoint of the same run"
            )

    def read(self, path: FilePath) -> dict[str, Any]:
        """The content of a checkpoint of a run with the same settings, parameters and callback."""
        content = read_checkpoint(Path(path))
        saved = content["settings"]
        changed = [
            f"{name}={saved.get(name)!r}, now {value!r}"
            for name, value in self._settings().items()
            if saved.get(name) != value
        ]
        if changed:
            raise ValueError(f"{path} is from a run with different settings: {', '.join(changed)}")
        shapes = {name: p.shape for name, p in self.parameters.items()}
        saved_shapes = {name: weight.shape for name, weight in content["weights"].items()}
        if different := {name for name, _ in shapes.items() ^ saved_shapes.items()}:
            raise ValueError(
                f"{path} is from a different model or adapter: {len(different)} trainable "
                f"parameters differ, such as {min(different)}"
            )
        if (content.get("callback") is None) is not (self.callback is None):
            had = "no callback" if self.callback is not None else "a callback"
            raise ValueError(f"{path} is from a run with {had}; resume it in the same way")
        return content

    def check_path(self, path: FilePath) -> None:
        """Make the folder of a new checkpoint; fail now, not after the steps, if that fails.

        An unfinished checkpoint that a killed run left is removed.
        """
        path = Path(path)
        if path.is_dir():
            raise IsADirectoryError(
                f"the checkpoint {path} is a folder: give a file in it, such as {path / 'run.pt'}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(
                f"the folder of the checkpoint {path} is not writable: give another"
            )
        remove_unfinished(path)

    def _restore_weights(self, content: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(content["weights"][name])
        if self.callback is not None:
            self.callback.load_state_dict(content["callback"])

    def _settings(self) -> dict[str, Any]:
        settings = asdict(self.config)
        return {name: value for name, value in settings.items() if name not in CHANGEABLE}


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The dtype of matrix products under autocast; None without autocast.

    >>> autocast_dtype("auto", torch.device("cpu")), autocast_dtype("bf16", torch.device("cpu"))
    (None, torch.bfloat16)
    """
    if precision == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def random_states() -> dict[str, Any]:
    """The states of this process's generators, with the keys of a checkpoint."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"rng": torch.get_rng_state(), "cuda_rng": cuda}


def write_checkpoint(path: FilePath, content: dict[str, Any]) -> None:
    """Write what `TrainingState.content` returned, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.cpu() for name, weight in content["weights"].items()}
    with atomic_file(path) as file:
        torch.save({**content, "weights": weights}, file)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a file that `write_checkpoint` wrote, on the CPU."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version = content["format"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.PickleError) as error:
        raise ValueError(
            f"{path} is damaged or not a checkpoint: use a file that train(checkpoint=...) wrote"
        ) from error
    if version != FORMAT:
        raise ValueError(f"{path} has format {version}, expected {FORMAT}")
    return content
