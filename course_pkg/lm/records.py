"""Recorded experiments: sweeps too long to run when a page is built, kept as small JSON files.

A record holds its rows, what they were measured with, and the hash of every file they rest on,
so that it can say when it is stale. It is written by the scripts in book/experiments/; this
module only reads. Chapter: adapters/lora.
"""

import ast
import hashlib
import io
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the project, or of the installed packages
FOLDER = ROOT / "course_pkg" / "data/experiments"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class RecordError(RuntimeError):
    """A record is missing, or stale: the code or data that it was measured with has changed."""


@dataclass(frozen=True)
class Record:
    """What one experiment measured: a dict per row, and how it came about."""

    name: str
    command: str
    settings: dict
    machine: dict
    versions: dict
    files: dict[str, str]  # path from the project's root → hash
    rows: tuple[dict, ...]
    confirmed: dict | None = None  # when one row was last run again instead of all, after an edit

    def select(self, **wanted: object) -> list[dict]:
        """The rows that have all of these values, in the order in which they were measured."""
        return [row for row in self.rows if wanted.items() <= row.items()]

    @property
    def date(self) -> str:
        """The day on which the last row was measured, as YYYY-MM-DD."""
        return max(row["finished"] for row in self.rows)[:10]

    @property
    def minutes(self) -> float:
        """How long all rows took together."""
        return sum(row["seconds"] for row in self.rows) / 60


def load_record(name: str, *, folder: Path = FOLDER, root: Path = ROOT) -> Record:
    """The record of an experiment, checked against the files that it was measured with.

    Files that an installed package lacks (the scripts in book/) are not checked there.
    Raises RecordError if there is no such record or if it is stale; the message has the mend.

    >>> record = load_record("lora_rank")
    >>> record.name, len(record.select(targets="all", rank=8, steps=30))
    ('lora_rank', 3)
    """
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise RecordError(f"there is no record {name!r} in {folder}; there are: {known}")
    fields = json.loads(path.read_text("utf-8"))
    record = Record(**{**fields, "rows": tuple(fields["rows"])})
    if changed := stale_files(record, root):
        raise RecordError(
            f"the record {name!r} is stale: {', '.join(changed)} changed after it was measured. "
            f"If results may change, run `{record.command} --anew`; "
            f"if they may not, run `{record.command} --confirm`"
        )
    return record


def stale_files(record: Record, root: Path = ROOT) -> list[str]:
    """The files that a record rests on and that are there with other content, by their paths."""
    return [
        name
        for name, digest in record.files.items()
        if (root / name).is_file() and content_hash(root / name) != digest
    ]


def content_hash(path: Path) -> str:
    """A short hash of a file; in Python, comments, docstrings and blank lines do not count."""
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
    in_string, in_docstring = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            in_string.update(range(node.lineno - 1, node.end_lineno - 1))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            in_docstring.update(range(node.body[0].lineno - 1, node.body[0].end_lineno))
    kept = {number for number, line in enumerate(lines) if line} | in_string
    return "\n".join(lines[number] for number in sorted(kept - in_docstring))
