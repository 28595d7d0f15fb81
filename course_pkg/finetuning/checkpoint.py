"""Checkpoints of a training run: everything that the next step depends on, in one file.

It has only trainable parameters, so a LoRA checkpoint takes a few megabytes. The position in the
data and the learning rate follow from the step number, so they are not saved.
Chapter: adapters/lora-training.
"""

import os
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from course_pkg.files import atomic_file, remove_unfinished
from course_pkg.finetuning.callback import Callback
from course_pkg.finetuning.history import History
from course_pkg.finetuning.optimization import Optimization

FORMAT = 1
# Settings that a resumed run may change.
FREE = ("progress", "checkpoint_every", "patience", "min_improvement")


def check_path(path: str | os.PathLike) -> None:
    """Make the folder of a new checkpoint; raise OSError now, not after the steps, if that fails.

    What a killed run left of an unfinished checkpoint is removed.

    >>> check_path("/")
    Traceback (most recent call last):
    ...
    IsADirectoryError: the checkpoint / is a folder: give a file in it, such as /run.pt
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


def save_checkpoint(
    path: str | os.PathLike,
    optimization: Optimization,
    history: History,
    callback: Callback | None = None,
) -> None:
    """Write trainable weights, optimizer, gradient scale, random states and history, atomically.

    Whenever the process is killed, the file is the one before or the new one, never a part.
    """
    state = {
        "format": FORMAT,
        "settings": _settings(optimization),
        "weights": {name: p.detach().cpu() for name, p in optimization.parameters.items()},
        **optimization.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "history": history.to_json(),
        "callback": None if callback is None else callback.state_dict(),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        torch.save(state, file)


def load_checkpoint(
    path: str | os.PathLike, optimization: Optimization, callback: Callback | None = None
) -> History:
    """Restore model, optimizer, scaler, random states and callback; return the history.

    Raises FileNotFoundError if there is no file, and ValueError if it is damaged or has other
    settings, trainable parameters or callback than this run. Nothing changes in these cases.
    """
    state = _read(Path(path), optimization, callback)
    _restore(state, optimization, callback)
    optimization.load_state_dict(state)
    torch.set_rng_state(state["rng"])
    if len(state["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    return History.from_json(state["history"])


def saved_step(
    path: str | os.PathLike, optimization: Optimization, callback: Callback | None = None
) -> int:
    """The last step of the run that wrote a checkpoint. Raises as `load_checkpoint` does."""
    state = _read(Path(path), optimization, callback)
    return History.from_json(state["history"]).steps[-1].step


def restore_weights(
    path: str | os.PathLike, optimization: Optimization, callback: Callback | None = None
) -> None:
    """Restore the weights and the callback's state alone. Raises as `load_checkpoint` does."""
    _restore(_read(Path(path), optimization, callback), optimization, callback)


def _read(path: Path, optimization: Optimization, callback: Callback | None) -> dict[str, Any]:
    """The content of a checkpoint of a run with the same settings, parameters and callback."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["format"] != FORMAT:
            raise ValueError(f"{path} has format {state['format']}, expected {FORMAT}")
    except (OSError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or not a checkpoint: {error}") from error
    except pickle.PickleError as error:  # torch's message advises to load it unsafely
        raise ValueError(
            f"{path} is damaged or not a checkpoint: use a file that train(checkpoint=...) wrote"
        ) from error
    settings = _settings(optimization)
    changed = [key for key, value in settings.items() if state["settings"].get(key) != value]
    if changed:
        was = ", ".join(f"{k}={state['settings'].get(k)!r}, now {settings[k]!r}" for k in changed)
        raise ValueError(f"{path} is from a run with different settings: {was}")
    parameters, saved = optimization.parameters, state["weights"]
    different = sorted(parameters.keys() ^ saved.keys())
    different += [n for n in parameters if n in saved and parameters[n].shape != saved[n].shape]
    if different:
        raise ValueError(
            f"{path} is from a different model or adapter: {len(different)} trainable parameters "
            f"differ, such as {different[0]}"
        )
    if (state.get("callback") is None) is not (callback is None):
        had = "no callback" if callback is not None else "a callback"
        raise ValueError(f"{path} is from a run with {had}; resume it in the same way")
    return state


def _restore(state: dict[str, Any], optimization: Optimization, callback: Callback | None) -> None:
    """Restore the weights, and the callback's state."""
    with torch.no_grad():
        for name, parameter in optimization.parameters.items():
            parameter.copy_(state["weights"][name])
    if callback is not None:
        callback.load_state_dict(state["callback"])


def _settings(optimization: Optimization) -> dict[str, Any]:
    """The settings that a resumed run must share."""
    settings = asdict(optimization.config)
    return {name: value for name, value in settings.items() if name not in FREE}
