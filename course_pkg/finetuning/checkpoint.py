"""The state of a training run between two steps, and the checkpoints that hold all of it.

The position in the data and the learning rate follow from the step number, so they are not saved.
Chapter: finetuning/sft.
"""

import os
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.common.files import atomic_file, remove_unfinished
from course_pkg.finetuning.config import Callback, TrainConfig, autocast_dtype
from course_pkg.finetuning.history import History
from course_pkg.finetuning.ranks import Ranks
from course_pkg.finetuning.sharding import part_like, whole

FORMAT = 1
CHANGEABLE = ("progress", "checkpoint_every", "patience")  # settings that a resumed run may change


class TrainingState:
    """What the next step depends on: parameters, AdamW, fp16's gradient scale, and the history.

    ranks: the processes that train together; None means this one alone.
    Raises ValueError if there is nothing to train, or fp16 parameters with fp16 autocast.
    Source: Loshchilov & Hutter 2019 (AdamW).

    >>> from course_pkg.lm.load import load
    >>> state = TrainingState(load("tiny").model, TrainConfig(steps=1))
    >>> state.dtype, state.finished
    (None, False)
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        callback: Callback | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks(sharded=False)
        self.model = model = self.ranks.share(model)
        self.config = config
        self.callback = callback
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
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]])

    def autocast(self) -> torch.autocast:
        """A context in which matrix products have the precision of the config."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience is exhausted."""
        exhausted = 0 < self.config.patience <= self.history.evaluations_since_best
        return exhausted or len(self.history.steps) == self.config.steps

    def save(self, path: str | os.PathLike) -> None:
        """Write trainable weights, optimizer, scale, random states, history and callback.

        Whenever the process is killed, the file is the one before or the new one, never a part.
        Rank 0 writes it; weights and optimizer are whole, and the random states those of all ranks.
        """
        path = Path(path)
        keep = self.ranks.rank == 0
        weights = whole({name: p.detach() for name, p in self.parameters.items()}, keep)
        first, *others = self.ranks.gather(_random_states())
        content = {
            "format": FORMAT,
            "settings": self._settings(),
            "weights": {name: weight.cpu() for name, weight in weights.items()} if keep else {},
            "optimizer": whole(self.optimizer.state_dict(), keep),
            "scaler": self.scaler.state_dict(),
            **first,
            "other_ranks": others,
            "history": self.history.to_json(),
            "callback": None if self.callback is None else self.callback.state_dict(),
        }
        self.ranks.on_first(_write_file, path, content)

    def load(self, path: str | os.PathLike) -> None:
        """Restore everything that `save` wrote.

        Raises FileNotFoundError if there is no file, and ValueError if it is damaged or has other
        settings, trainable parameters or callback than this run. Nothing changes in these cases.
        """
        content = self._read(path)
        self._restore_weights(content)
        self._restore_optimizer(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        states = [content, *content.get("other_ranks", [])]
        if self.ranks.rank < len(states):  # a rank that the run didn't have keeps the state it has
            _restore_random_states(states[self.ranks.rank])
        self.history = History.from_json(content["history"])

    def load_weights(self, path: str | os.PathLike) -> None:
        """Restore the weights and the callback's state alone. Raises as `load` does."""
        self._restore_weights(self._read(path))

    def check_best(self, path: str | os.PathLike) -> None:
        """Check that the file holds this run's best step, or a later one.

        A later one is left by a run that was killed before its next checkpoint; a run without
        evaluations passes. Raises as `load` does, and ValueError for an earlier step.
        """
        best = self.history.best
        if best is None:
            return
        step = len(History.from_json(self._read(path)["history"]).steps)
        if step < best.step:
            raise ValueError(
                f"the best step of this run is {best.step}, but {os.fspath(path)} is of step "
                f"{step}: give the best_checkpoint of the same run"
            )

    def _read(self, path: str | os.PathLike) -> dict[str, Any]:
        """The content of a checkpoint of a run with the same settings, parameters and callback."""
        content = _read_file(Path(path))
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

    def _restore_weights(self, content: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(part_like(content["weights"][name], parameter))
        if self.callback is not None:
            self.callback.load_state_dict(content["callback"])

    def _restore_optimizer(self, content: dict[str, Any]) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        state = {
            index: {name: part_like(each, parameters[index]) for name, each in moments.items()}
            for index, moments in content["state"].items()
        }
        self.optimizer.load_state_dict({**content, "state": state})

    def give_weights(self, model: nn.Module) -> None:
        """Put the trained weights into the model that `ranks.share` made this one from."""
        if model is self.model:
            return
        with torch.no_grad():
            for name, parameter in trainable_parameters(model).items():
                parameter.copy_(whole(self.parameters[name].detach()))

    def _settings(self) -> dict[str, Any]:
        """The settings that a resumed run must share."""
        settings = asdict(self.config)
        return {name: value for name, value in settings.items() if name not in CHANGEABLE}


def _random_states() -> dict[str, Any]:
    """The states of this process's generators, with the keys of a checkpoint."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"rng": torch.get_rng_state(), "cuda_rng": cuda}


def _restore_random_states(content: dict[str, Any]) -> None:
    torch.set_rng_state(content["rng"])
    if len(content["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(content["cuda_rng"])


def _write_file(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        torch.save(content, file)


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        found = content["format"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.PickleError) as error:
        raise ValueError(
            f"{path} is damaged or not a checkpoint: use a file that train(checkpoint=...) wrote"
        ) from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, expected {FORMAT}")
    return content


def check_path(path: str | os.PathLike) -> None:
    """Make the folder of a new checkpoint; raise OSError now, not after the steps, if that fails.

    An unfinished checkpoint that a killed run left is removed.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"the checkpoint {path} is a folder: give a file in it, such as {path / 'run.pt'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder of the checkpoint {path} is not writable: give another")
    remove_unfinished(path)
