"""The samples of a run, in a file that only grows: after kill -9 or a power failure, none is lost.

The first line says which run this is, and each further line is a sample, which counts when its
whole line is on the disk. Half a line at the end is removed. An item that failed is asked again;
its new line then counts.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course_pkg.common.files import lock, sync_folder
from course_pkg.common.json_reading import parse_json, require_form
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.samples import Sample

FILE = "samples.jsonl"


class SampleLog:
    """The open file of a run's samples. samples: those that count so far, by item."""

    def __init__(self, path: Path, samples: dict[str, Sample]):
        self.path = path
        self.samples = samples
        self._file = path.open("ab")

    def append(self, samples: Sequence[Sample]) -> None:
        """Write samples, and wait until they are on the disk."""
        lines = [_line(asdict(sample)) for sample in samples]
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.samples |= {sample.id: sample for sample in samples}

    def close(self) -> None:
        self._file.close()


@contextmanager
def open_log(folder: Path, identity: Mapping[str, Any]) -> Iterator[SampleLog]:
    """Open a run's file for more samples. Raises RunError if it is another run's, or is open."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock(folder / ".lock", wait=False):
            path = folder / FILE
            samples = _prepare(path, json.loads(json.dumps(identity)))
            with closing(SampleLog(path, samples)) as log:
                yield log
    except BlockingIOError:
        raise RunError(
            f"another process writes to {folder}: wait for it, or give another --output"
        ) from None


def read_log(path: Path) -> tuple[dict[str, Any], dict[str, Sample], int]:
    """A run's identity, its samples by item, and the bytes of its whole lines. Raises RunError."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    identity: dict[str, Any] = {}
    samples = {}
    for number, line in enumerate(lines, start=1):
        try:
            fields = parse_json(line)
            if number == 1:
                require_form(fields, {"run": dict}, "the line")
                identity = fields["run"]
            else:
                sample = Sample.read(fields)
                samples[sample.id] = sample
        except (TypeError, ValueError) as error:
            raise RunError(
                f"{path}, line {number}: not a line that a run wrote ({error}): remove the line, "
                "or give another --output"
            ) from None
    return identity, samples, whole


def _prepare(path: Path, identity: Mapping[str, Any]) -> dict[str, Sample]:
    """Write the first line, or check it; remove half a line at the end."""
    if path.exists():
        written, samples, whole = read_log(path)
        if whole:
            _check_same(path, written, identity)
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
            return samples
    with path.open("wb") as file:
        file.write(_line({"run": identity}))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return {}


def _check_same(path: Path, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    names = {**written, **wanted}
    if differ := [name for name in names if written.get(name) != wanted.get(name)]:
        name = differ[0]
        raise RunError(
            f"{path.parent} has another run, with the {name} {written.get(name)!r:.80}, now "
            f"{wanted.get(name)!r:.80}: give another --output, or remove that folder"
        )


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"  # ASCII: a server may send half a surrogate
