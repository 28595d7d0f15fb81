"""The output folder of a run: new or empty, or that of a run to go on with; one process at a time.

Chapter: finetuning/sft.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course_pkg.common.files import lock
from course_pkg.finetuning.own_data.errors import FinetuneError
from course_pkg.finetuning.own_data.result import FILE, Result, read_file, start_file

LOCK = ".lock"


@contextmanager
def open_folder(folder: Path, identity: dict[str, Any], resume: bool) -> Iterator[Result | None]:
    """Lock a run's folder, and yield the result if the run is finished.

    identity: what a resumed run must share with the one that was begun there. Raises FinetuneError
    if the folder has something else, another run or, for resume, none; nothing is then changed. A
    new run that fails before its first checkpoint leaves no folder, so the corrected command works;
    one that is interrupted can be resumed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as parent, open_folder(Path(parent, "a"), {}, False) as found:
    ...     found is None
    True
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
                start_file(folder, identity)
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
