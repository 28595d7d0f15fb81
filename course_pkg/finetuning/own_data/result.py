"""The output folder of a run, which one process uses at a time, and the result that it holds."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_pkg.common.files import lock, write_atomically
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import PLAIN
from course_pkg.finetuning.own_data.validation_losses import AnswerPair, Losses
from course_pkg.finetuning.training_state import History

FILE = "finetune.json"
FORMAT = 1
LOCK = ".lock"


@dataclass(frozen=True)
class DataSizes:
    """Examples on each side, and what the limit of tokens cost both files together.

    Attributes:
        cut, left_out: lines.
        tokens: of all examples.
        targets: of one pass.
        lost: tokens that are not used.
        repeated: validation answers that are nearly in the training data.
    """

    train: int
    validation: int
    pieces: int
    tokens: int
    targets: int
    lost: int
    cut: tuple[str, ...]
    left_out: tuple[str, ...]
    repeated: int = 0


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        formats: of the data and the validation file.
        kept: the step whose weights the adapter has: that of the lowest validation loss.
        trained, parameters: numbers of weights.
    """

    data: str
    validation_file: str | None
    formats: tuple[str, ...]
    settings: dict[str, Any]
    sizes: DataSizes
    history: History
    before: Losses
    after: Losses
    samples: tuple[AnswerPair, ...]
    kept: int
    trained: int
    parameters: int
    versions: dict[str, str]
    finished: str


def write_result(folder: Path, identity: dict[str, Any], result: Result | None) -> None:
    """Write what a resumed run must share, and what a run found if it is finished."""
    content = {"format": FORMAT, "identity": identity, "result": result and asdict(result)}
    write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")


def read_file(folder: Path) -> tuple[dict[str, Any], Result | None]:
    """The identity in a run's folder, and its result if it is finished."""
    try:
        content = json.loads((folder / FILE).read_text("utf-8"))
        result = content["result"]
        return content["identity"], None if result is None else _result(result)
    except FileNotFoundError:
        raise FinetuneError(
            f"there is no run to resume in {folder}: leave --resume out, or give the --output of "
            "the run"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise FinetuneError(
            f"{folder / FILE} is damaged ({error!r}): give another --output"
        ) from None


def trained_on_chats(folder: Path) -> bool:
    """Whether a folder has a finished run, on anything but plain text."""
    try:
        result = read_file(folder)[1]
    except FinetuneError:
        return False
    return result is not None and result.formats[0] != PLAIN


def _result(fields: dict[str, Any]) -> Result:
    sizes = fields["sizes"]
    sizes |= {name: tuple(sizes[name]) for name in ("cut", "left_out")}
    losses = {name: Losses(*map(tuple, fields[name].values())) for name in ("before", "after")}
    samples = tuple(AnswerPair(**sample) for sample in fields["samples"])
    history = History.from_json(json.dumps(fields["history"]))
    rest = {"sizes": DataSizes(**sizes), "samples": samples, "history": history, **losses}
    return Result(**{**fields, "formats": tuple(fields["formats"]), **rest})


@contextmanager
def open_folder(folder: Path, identity: dict[str, Any], resume: bool) -> Iterator[Result | None]:
    """Lock a run's folder, and yield the result if the run is finished.

    A new run that fails before its first checkpoint leaves no folder, so the corrected command
    works; one that is interrupted can be resumed.

    Args:
        identity: what a resumed run must share with the one that was begun there.
    """
    if resume:
        before, _ = read_file(folder)
        _require_same(before, identity, folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "add --resume to go on with its run, or " if (folder / FILE).exists() else ""
        raise FinetuneError(f"{folder} is not empty: {hint}give another --output")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock(folder / LOCK, wait=False):
            if not resume:
                write_result(folder, identity, None)
            try:
                yield read_file(folder)[1]
            except Exception:
                if not resume:
                    _forget(folder, new)
                raise
    except BlockingIOError:
        raise FinetuneError(
            f"another process trains in {folder}: wait for it, or give another --output"
        ) from None


def _forget(folder: Path, new: bool) -> None:
    """Take back what `open_folder` wrote, unless the run wrote more."""
    if {path.name for path in folder.iterdir()} <= {LOCK, FILE}:
        (folder / FILE).unlink(missing_ok=True)
        (folder / LOCK).unlink(missing_ok=True)
        if new:
            folder.rmdir()


def _require_same(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    changed = [
        f"{name} was {before.get(name)!r:.40}, now {now.get(name)!r:.40}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise FinetuneError(
            f"{folder} has a run with other settings ({'; '.join(changed)}): resume it with the "
            "same ones, or give another --output"
        )
