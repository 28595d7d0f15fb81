"""The command `course export`: an adapter or a model as files that other programs run.

Files appear whole, under their names, or not at all. Nothing is overwritten unless `force` says so,
and no folder that has a file of somebody else.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_pkg.common.files import disk_is_full, readable_size, write_atomically
from course_pkg.deployment.export.gguf_model import FILE_TYPES, write_gguf_model
from course_pkg.deployment.export.merged import load_merged
from course_pkg.deployment.export.ollama import modelfile
from course_pkg.lm.load import LoadedModel, stored_dtype
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.smollm2 import quiet

FORMATS = ("gguf", "hf", "onnx")
TYPES = tuple(name.lower() for name in FILE_TYPES)
DEFAULT_TYPE = "f16"
WRITTEN = "course-export.json"  # in an exported folder: its files, which --force may delete


@dataclass(frozen=True)
class ExportedModel:
    """What was written, and how to run it, line by line."""

    path: Path
    nbytes: int
    next_steps: tuple[str, ...]


def export(
    source: str,
    *,
    base: str | None = None,
    format: str = "gguf",
    type: str | None = None,
    output: Path | None = None,
    force: bool = False,
) -> ExportedModel:
    """Write a model, with its adapter merged, in another program's format.

    Args:
        source, base: as in `load_merged`.
        format: "gguf", a file; "hf" or "onnx", a folder.
        type: of a GGUF file's matrices, one of TYPES.
        output: where to; by default in the current folder, named after the source.

    Raises:
        ModelError: the model can't be exported as asked.
        ValueError: for rows that are not whole blocks.
    """
    if format not in FORMATS:
        raise ModelError(f"--format {format}: expected {', '.join(FORMATS)}")
    if type is not None and format != "gguf":
        raise ModelError(f"--type {type}: only for --format gguf; leave it out")
    if type is not None and type not in TYPES:
        raise ModelError(f"--type {type}: expected {', '.join(TYPES)}")
    kind = type or DEFAULT_TYPE
    name = export_name(source)
    suffix = f"-{kind}.gguf" if format == "gguf" else f"-{format}"
    path = Path(output).expanduser() if output else Path(name + suffix)
    _check_output(path, format, force)
    loaded = load_merged(source, base)
    if format == "gguf":
        return _export_gguf(loaded, path, kind, name)
    if format == "hf":
        _write_folder(path, lambda folder: _save_pretrained(loaded, folder))
        steps = (f"serve it: course serve --model {path}",)
    else:
        from course_pkg.deployment.export.onnx_model import export_onnx

        _write_folder(path, lambda folder: export_onnx(*loaded, folder))
        steps = (f"run it with course_pkg.deployment.export.OnnxDecoder({str(path)!r})",)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return ExportedModel(path, size, steps)


def export_name(source: str) -> str:
    """The name of a model or an adapter's folder, in letters that Ollama allows."""
    name = Path(source).expanduser().resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"


def _check_output(path: Path, format: str, force: bool) -> None:
    """Raise ModelError if the output can't go there; before the model is loaded."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ModelError(f"--output {path}: there is no folder {parent}; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ModelError(f"--output {path}: the folder {parent} can't be written; choose another")
    if format != "gguf":
        targets = [path]
    elif path.is_dir():
        raise ModelError(f"--output {path} is a folder: give a file's name, such as model.gguf")
    else:
        targets = [path, _modelfile_path(path)]
    taken = [target for target in targets if target.exists()]
    if taken and not force:
        raise ModelError(f"{taken[0]} exists: give --force to replace it, or another --output")
    if taken and format != "gguf" and (other := _not_exported(path)):
        raise ModelError(
            f"{path} is not an exported model: {other} is not of `course export`; give another "
            "--output"
        )


def _not_exported(path: Path) -> str | None:
    """What forbids `--force` to delete a folder: what this command did not write there."""
    if path.is_symlink() or not path.is_dir():
        return "it"
    try:
        written = json.loads((path / WRITTEN).read_text("utf-8"))
        own = {WRITTEN: None} | written["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        own = {}
    for entry in sorted(path.iterdir()):
        size = entry.stat().st_size if entry.is_file() else -1
        if entry.name not in own or own[entry.name] not in (None, size):
            return entry.name
    return None


def _export_gguf(loaded: LoadedModel, path: Path, kind: str, name: str) -> ExportedModel:
    write_gguf_model(*loaded, path, kind.upper(), name)
    chat = modelfile(loaded.tokenizer, path.name)
    steps = [f"llama.cpp: llama-cli -m {path}"]
    if chat is None:
        steps.append(
            "Ollama: write a Modelfile with FROM and TEMPLATE; the chat template needs you"
        )
    else:
        write_atomically(_modelfile_path(path), chat)
        steps.append(f"Ollama: ollama create {name} -f {_modelfile_path(path)}; ollama run {name}")
    steps.append(f"LM Studio: lms import {path}")
    return ExportedModel(path, path.stat().st_size, tuple(steps))


def _modelfile_path(path: Path) -> Path:
    return path.with_suffix(".Modelfile")


def _save_pretrained(loaded: LoadedModel, folder: Path) -> None:
    """In the type of the model's own files, not in that of the merge, which has twice the bytes."""
    model = loaded.model.to(stored_dtype(loaded.model.config.name_or_path or "tiny"))
    for name, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise ModelError(f"{name} has numbers that are not finite in {weight.dtype}")
    with quiet():
        model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)


def _write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Make a folder under a temporary name beside `path`, and rename it when it is whole."""
    path = path.absolute()
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    old = temporary.with_suffix(".old")
    try:
        temporary.mkdir()
        write(temporary)
        sizes = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        (temporary / WRITTEN).write_text(json.dumps({"bytes": sizes}, indent=1) + "\n", "utf-8")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        if disk_is_full(error) and not isinstance(error, OSError):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
    shutil.rmtree(old, ignore_errors=True)


def lines(exported: ExportedModel) -> list[str]:
    """What the command prints."""
    first = f"{exported.path}: {readable_size(exported.nbytes)}"
    return [first, *(f"  {step}" for step in exported.next_steps)]
