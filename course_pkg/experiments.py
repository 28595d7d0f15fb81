"""Recorded experiments: sweeps too long to run when a page is built, kept as small JSON files.

A record holds the rows that were measured, how they were measured, and the hash of every file that
they depend on, which shows when it is out of date. The scripts in book/experiments/ write the
files; this module only reads them. Chapter: adapters/lora-rank.
"""

import ast
import hashlib
import io
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the project, or of the installed packages
FOLDER = ROOT / "course_pkg" / "data/experiments"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class ExperimentError(RuntimeError):
    """A record is missing, or stale: its code or data changed after it was measured."""


@dataclass(frozen=True)
class Experiment:
    """What an experiment measured, one dict per row, and how it was measured."""

    name: str
    command: str
    settings: dict
    machine: dict
    versions: dict
    files: dict[str, str]  # path from the project's root → hash
    rows: tuple[dict, ...]
    confirmed: dict | None = None  # the last time one row was repeated after an edit

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


def load_experiment(name: str, *, folder: Path = FOLDER, root: Path = ROOT) -> Experiment:
    """A recorded experiment, after checking that the files it depends on have not changed.

    Files that an installed package lacks (the scripts in book/) are not checked. Raises
    ExperimentError, with what to run, if the record is missing or stale.

    >>> experiment = load_experiment("lora_rank")
    >>> experiment.name, len(experiment.select(targets="all", rank=8, split="held-out"))
    ('lora_rank', 2)
    """
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise ExperimentError(f"there is no record {name!r} in {folder}; the records are: {known}")
    fields = json.loads(path.read_text("utf-8"))
    experiment = Experiment(**{**fields, "rows": tuple(fields["rows"])})
    if changed := stale_files(experiment, root):
        raise ExperimentError(
            f"the record {name!r} is stale: {', '.join(changed)} changed after it was measured. "
            f"If the results may change, run `{experiment.command} --restart`; "
            f"if they cannot, run `{experiment.command} --confirm`"
        )
    return experiment


def stale_files(experiment: Experiment, root: Path = ROOT) -> list[str]:
    """The paths of the files that an experiment depends on and that have changed since."""
    return [
        name
        for name, digest in experiment.files.items()
        if (root / name).is_file() and content_hash(root / name) != digest
    ]


def content_hash(path: Path) -> str:
    """A short hash of a file.

    In Python, comments, docstrings, blank lines and the version of the course do not count.
    """
    data = path.read_bytes()
    if path.suffix == ".py":
        data = _bare(path.read_text("utf-8")).encode()
    return hashlib.sha256(data).hexdigest()[:12]


def _bare(source: str) -> str:
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            number, column = token.start
            lines[number - 1] = lines[number - 1][:column].rstrip()
    in_string = set()
    in_docstring = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            in_string.update(range(node.lineno - 1, node.end_lineno - 1))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            in_docstring.update(range(node.body[0].lineno - 1, node.body[0].end_lineno))
    kept = {number for number, line in enumerate(lines) if line} | in_string
    kept -= {number for number, line in enumerate(lines) if line.startswith("__version__ = ")}
    return "\n".join(lines[number] for number in sorted(kept - in_docstring))
