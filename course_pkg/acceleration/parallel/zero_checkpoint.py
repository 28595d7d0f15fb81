"""Checkpoints of a training with ZeRO: each rank writes its shards, any number of ranks reads them.

A file holds a rank's shards, and which parameters the flat tensors consist of. To read them, the
shards are put together, the padding is dropped, and each parameter is cut out by its name. The new
ranks then take from it what falls into their own shards. So the number of ranks, the stage, and the
units may all differ, and `load_unsharded` reads into an ordinary model and torch's AdamW.

Not here: random states, the position in the data, writing in the background.

Sources: DeepSpeed's universal checkpoints (Lian et al. 2024); torch.distributed.checkpoint.
Chapter: acceleration/parallelism.
"""

import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.sharded_units import FlatParameter
from course_pkg.acceleration.parallel.zero import ZeroAdamW

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state for each number
SETTINGS = ("lr", "betas", "eps", "weight_decay")


def save_checkpoint(zero: ZeroAdamW, folder: str | Path) -> None:
    """Write this rank's weights and optimizer state to a new folder; every rank must call it.

    Trained weights are written in fp32. Call it after `step`; gradients are not written. When it
    returns, all ranks have written their file.

    Raises:
        FileExistsError: on all ranks if the folder has files of a checkpoint.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    occupied = any(folder.glob("rank-*"))
    if _on_any_rank(occupied, zero):  # before any rank has written a file
        raise FileExistsError(f"{folder} has a checkpoint; give a new folder")
    settings = zero.optimizer.param_groups[0]
    content = {
        "flats": [_flat_content(zero, flat) for flat in zero.flats()],
        "buffers": dict(zero.model.named_buffers()),
        "settings": {name: settings[name] for name in SETTINGS},
    }
    path = folder / f"rank-{zero.group.rank}-of-{zero.group.size}.pt"
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)
    _on_any_rank(False, zero)  # wait for the others


def load_checkpoint(zero: ZeroAdamW, folder: str | Path) -> None:
    """Replace weights, optimizer state and AdamW's settings by those of a checkpoint.

    Every rank must call it, and reads one flat parameter of the checkpoint at a time.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: they are damaged or of several checkpoints, or the model's parameters or buffers
            are not those of the checkpoint.
    """
    files = _read_files(folder)
    _check_names(files, {name: p for flat in zero.flats() for name, p in flat.shapes.items()})
    _check_buffers(files, zero.model)
    homes = {name: flat for flat in zero.flats() for name in flat.parameters}
    zero.optimizer.state.clear()
    with torch.no_grad():
        for name, saved in _saved_parameters(files):
            flat = homes[name]
            if not flat.trained:
                flat.copy_part(name, saved["weight"], flat.shard)
                continue
            master = zero.masters[flat]
            flat.copy_part(name, saved["weight"], master)
            if "step" in saved:
                state = zero.optimizer.state[master]
                state["step"] = saved["step"].clone()
                for moment in MOMENTS:
                    room = state.setdefault(moment, torch.zeros_like(master))
                    flat.copy_part(name, saved[moment], room)
        for flat, master in zero.masters.items():
            flat.shard.copy_(master)
        if zero.stage < 3:
            for flat in zero.flats():
                flat.share_shards()
        for name, buffer in zero.model.named_buffers():
            buffer.copy_(files[0]["buffers"][name])
    zero.optimizer.param_groups[0].update(files[0]["settings"])


def load_unsharded(folder: str | Path, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """The same into a model without ZeRO and torch's AdamW over its parameters, in one process.

    An optimizer with moments in the parameters' dtype, as torch's has, is exact only in fp32.
    """
    files = _read_files(folder)
    parameters = dict(model.named_parameters())
    _check_names(files, {name: parameter.shape for name, parameter in parameters.items()})
    _check_buffers(files, model)
    optimizer.state.clear()
    with torch.no_grad():
        for name, saved in _saved_parameters(files):
            parameter = parameters[name]
            parameter.copy_(saved["weight"])
            if "step" in saved:
                state = optimizer.state[parameter]
                state["step"] = saved["step"].clone()
                for moment in MOMENTS:
                    state[moment] = saved[moment].to(parameter)
        for name, buffer in model.named_buffers():
            buffer.copy_(files[0]["buffers"][name])
    for settings in optimizer.param_groups:
        settings.update(files[0]["settings"])


def _flat_content(zero: ZeroAdamW, flat: FlatParameter) -> dict[str, Any]:
    """A flat parameter's shapes by name, and this rank's shards."""
    content: dict[str, Any] = {"shapes": {name: tuple(s) for name, s in flat.shapes.items()}}
    if not flat.trained:
        return content | {"weight": flat.shard.clone()}  # a view's whole storage would be written
    master = zero.masters[flat]
    content["weight"] = master.clone()
    return content | zero.optimizer.state.get(master, {})


def _read_files(folder: str | Path) -> list[dict[str, Any]]:
    """The content of each rank's file, by rank; tensors stay on disk until they are used."""
    paths = sorted(Path(folder).glob("rank-*-of-*.pt"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no checkpoint: no file is named rank-…-of-….pt")
    sizes = {path.stem.rpartition("-")[2] for path in paths}
    if len(sizes) > 1:
        raise ValueError(
            f"{folder} has files of {' and of '.join(sorted(sizes))} ranks: keep those of one "
            "checkpoint"
        )
    ranks = int(sizes.pop())
    paths = [Path(folder) / f"rank-{rank}-of-{ranks}.pt" for rank in range(ranks)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise FileNotFoundError(f"{folder}: the checkpoint lacks {', '.join(missing)}")
    files = [_read_file(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        if _kind(file) != _kind(files[0]):
            raise ValueError(
                f"{path} and {paths[0].name} differ in their parameters, steps or settings: they "
                "are of different checkpoints"
            )
    return files


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, EOFError, pickle.PickleError) as error:
        raise ValueError(f"{path} is damaged, or not a file of a checkpoint") from error


def _kind(file: dict[str, Any]) -> tuple:
    """What the files of all ranks have in common."""
    flats = [(flat["shapes"], float(flat.get("step", 0))) for flat in file["flats"]]
    return flats, file["settings"]


def _saved_parameters(files: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each parameter's name and whole tensors: the weight, and if it was trained the state."""
    for parts in zip(*(content["flats"] for content in files), strict=True):
        shapes = {name: torch.Size(shape) for name, shape in parts[0]["shapes"].items()}
        sizes = [shape.numel() for shape in shapes.values()]
        kinds = [kind for kind in ("weight", *MOMENTS) if kind in parts[0]]
        whole = {kind: torch.cat([part[kind] for part in parts]) for kind in kinds}
        pieces = {kind: tensor[: sum(sizes)].split(sizes) for kind, tensor in whole.items()}
        for index, (name, shape) in enumerate(shapes.items()):
            saved = {kind: pieces[kind][index].view(shape) for kind in kinds}
            if "step" in parts[0]:
                saved["step"] = parts[0]["step"]
            yield name, saved


def _check_names(files: list[dict[str, Any]], shapes: Mapping[str, torch.Size]) -> None:
    saved = {}
    for content in files[0]["flats"]:
        saved |= content["shapes"]
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    wrong = sorted(n for n in saved.keys() | wanted.keys() if saved.get(n) != wanted.get(n))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{len(wrong)} parameters differ from the checkpoint's; {name} has shape "
            f"{wanted.get(name)}, in the checkpoint {saved.get(name)}; build the same model first"
        )


def _check_buffers(files: list[dict[str, Any]], model: nn.Module) -> None:
    saved = {name: buffer.shape for name, buffer in files[0]["buffers"].items()}
    wanted = {name: buffer.shape for name, buffer in model.named_buffers()}
    wrong = sorted(n for n in wanted if saved.get(n) != wanted[n])
    if wrong:
        raise ValueError(
            f"the checkpoint has no buffers {', '.join(wrong)} of these shapes: build the same "
            "model first"
        )


def _on_any_rank(condition: bool, zero: ZeroAdamW) -> bool:
    """Whether it is true on some rank; no rank goes on before all have come here."""
    count = torch.tensor([int(condition)], device=zero.flats()[0].shard.device)
    return bool(zero.group.all_reduce(count))
