"""Recorded experiments: sweeps too long to run when a page is built, kept as small JSON files.

A record has a hash of every file whose code or data it comes from. The scripts in book/experiments
write it; this module reads it, and finds out what has changed since.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course_pkg.common.fingerprints.reach import DIGITS, PACKAGE, WHOLE, Sources

ROOT = Path(__file__).resolve().parents[2]  # of the project, or of the installed packages
FOLDER = ROOT / "course_pkg" / "data/experiments"
SCRIPTS = "book/experiments"


class ExperimentError(RuntimeError):
    """There is no such record."""


@dataclass(frozen=True)
class Experiment:
    """What an experiment measured, one dict per row, and how it was measured.

    Attributes:
        files: hashes by path, of the code that can have run and of the data.
        programs: the modules that ran in processes of their own.
        confirmed: the last time that one row was repeated after an edit.
    """

    name: str
    command: str
    settings: dict
    machine: dict
    versions: dict
    files: dict[str, str]
    rows: tuple[dict, ...]
    programs: tuple[str, ...] = ()
    confirmed: dict | None = None

    def select(self, **values: object) -> list[dict]:
        """The rows that have all of these values, in the order in which they were measured."""
        return [row for row in self.rows if values.items() <= row.items()]

    @property
    def date(self) -> str:
        """The day on which the last row was measured, as YYYY-MM-DD."""
        return max(row["finished"] for row in self.rows)[:10]

    @property
    def minutes(self) -> float:
        """How long all rows took, in minutes."""
        return sum(row["seconds"] for row in self.rows) / 60


def load_experiment(name: str, *, folder: Path = FOLDER) -> Experiment:
    """A recorded experiment."""
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise ExperimentError(f"there is no record {name!r} in {folder}; the records are: {known}")
    fields = json.loads(path.read_text("utf-8"))
    return Experiment(**{**fields, "rows": tuple(fields["rows"])})


def script_sources(root: Path = ROOT) -> Sources:
    """The project's code and the experiments' scripts, but `record`, which measures nothing."""
    return Sources(root, beside=root / SCRIPTS, leave_out=("record",))


def changed_files(experiment: Experiment, sources: Sources) -> list[str]:
    """The paths of an experiment's files whose code or data has changed since it was recorded."""
    if sources.module(experiment.name) is None:
        return []
    now = current_hashes(experiment, sources)
    return [path for path, digest in experiment.files.items() if now[path] != digest]


def current_hashes(experiment: Experiment, sources: Sources) -> dict[str, str | None]:
    """The hashes, today, of an experiment's files; None for one that it can't use any more."""
    now = code_hashes(experiment.name, experiment.programs, sources)
    data = [path for path in experiment.files if not path.endswith(".py")]
    now |= data_hashes(data, sources.root)
    return {path: now.get(path) for path in experiment.files}


def code_hashes(script: str, programs: Iterable[str], sources: Sources) -> dict[str, str]:
    """The hashes of what a script, and the programs that it starts, can run; by path."""
    programs = [(program, WHOLE) for program in programs]
    return sources.hashes(sources.reach((script, WHOLE), *programs))


def data_hashes(paths: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """The hashes of the contents of data files; by path. A missing one is left out."""
    return {
        path: hashlib.sha256((root / path).read_bytes()).hexdigest()[:DIGITS]
        for path in paths
        if (root / path).is_file()
    }


def module_of(path: str) -> str:
    """The module's name for a path: dotted in the package, plain for a script.

    >>> module_of("course_pkg/adapters/__init__.py"), module_of("book/experiments/lora_rank.py")
    ('course_pkg.adapters', 'lora_rank')
    """
    if not path.startswith(f"{PACKAGE}/"):
        return Path(path).stem
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
