"""Run a page's cells as the browser would, and keep those that show what the book shows."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import nbformat
from lab_cells import LabCell, offered

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "course_pkg"
LEFT_OUT = ("classroom", "cli")  # for the command line and for grading a class
KINDS = ("image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain")
# The stemmer of METEOR and ROUGE; the rest of NLTK needs other packages. Apache License 2.0. Its
# redos is a copy of re that the package regex gives a time limit.
STEMMER = ("termsec.py", "stem/api.py", "stem/porter.py")
IN_PLACE = {"__init__.py": b"", "stem/__init__.py": b"", "redos.py": b"from re import *\n"}
MAIN = "import sys; sys.path.insert(0, {!r}); from course_pkg.labs import trial; trial.main()"


def archive_files(root: Path = ROOT) -> Iterable[tuple[str, bytes]]:
    """Name and content of every file that the browser gets: the course's package, the stemmer."""
    for path in sorted((root / PACKAGE).rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and "__pycache__" not in parts and parts[1] not in LEFT_OUT:
            yield "/".join(parts), path.read_bytes()
    yield from stemmer()


def stemmer() -> Iterator[tuple[str, bytes]]:
    """Name and content of NLTK's files that the browser gets."""
    nltk = resources.files("nltk")
    yield from ((f"nltk/{name}", (nltk / name).read_bytes()) for name in STEMMER)
    yield from ((f"nltk/{name}", content) for name, content in IN_PLACE.items())


def course_archive(root: Path = ROOT) -> bytes:
    """A JSON object from the files' names to their texts, by gzip; the same for the same files."""
    texts = {name: content.decode() for name, content in archive_files(root)}
    return gzip.compress(json.dumps(texts, ensure_ascii=False).encode(), mtime=0)


class Trial:
    """A process with what the browser has; see course_pkg.labs.trial."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        place = Path(self.folder.name, "course")
        (place / "nltk" / "stem").mkdir(parents=True)
        (place / PACKAGE).mkdir()
        for inside in (ROOT / PACKAGE).iterdir():
            if inside.name not in LEFT_OUT:
                (place / PACKAGE / inside.name).symlink_to(inside)
        for name, content in stemmer():
            (place / name).write_bytes(content)
        work = Path(self.folder.name, "work")
        work.mkdir()
        command = [sys.executable, "-I", "-S", "-c", MAIN.format(str(place))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": work}
        self.process = subprocess.Popen(command, **pipes)
        self.known: dict[tuple[str, str], str] = {}

    def ask(self, **request: Any) -> Any:
        """The answer to a request. Raises RuntimeError if the process ended."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the trial of cells for the browser ended at {request}"[:500])
        return json.loads(answer)

    def missing(self, module: str, name: str) -> str:
        """The package that is missing for `from module import name`; "" if none."""
        if (module, name) not in self.known:
            self.known[module, name] = self.ask(**{"import": [module, name]})
        return self.known[module, name]

    def close(self) -> None:
        """End the process and remove its folder."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


def in_book(output: nbformat.NotebookNode) -> tuple[str, str]:
    """Kind and text of an output of an executed notebook."""
    if output.output_type == "stream":
        return output.name, output.text
    if output.output_type == "error":
        return "error", output.ename
    return kind_and_text(output.data)


def in_browser(output: dict[str, Any]) -> tuple[str, str]:
    """The same for an output of course_pkg.labs.cells."""
    if "stream" in output:
        return output["stream"], output["text"]
    if "error" in output:
        return "error", error_name(output["error"])
    return kind_and_text(output["data"])


def error_name(traceback: str) -> str:
    """The class of the error at the end of a traceback.

    >>> error_name("Traceback (most recent call last):\\n  …\\nKeyError: 'x'\\n")
    'KeyError'
    """
    last = [line for line in traceback.splitlines() if line and not line.startswith(" ")][-1]
    return last.partition(":")[0].rpartition(".")[2]


def kind_and_text(data: dict[str, Any]) -> tuple[str, str]:
    """The first of the kinds that a page shows, and its text."""
    kind = next(kind for kind in KINDS if kind in data)
    return kind, "".join(data[kind])


def merged(outputs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbors of the same stream as one; without empty ones, and without space at the end.

    >>> merged([("stdout", "a\\n"), ("stdout", "b\\n"), ("text/plain", "3")])
    [('stdout', 'a\\nb'), ('text/plain', '3')]
    """
    found: list[tuple[str, str]] = []
    for kind, text in outputs:
        if found and kind == found[-1][0] and kind in ("stdout", "stderr"):
            found[-1] = (kind, found[-1][1] + text)
        else:
            found.append((kind, text))
    return [(kind, text.rstrip()) for kind, text in found if text.strip()]


def tried(cells: list[LabCell], notebook: nbformat.NotebookNode, trial: Trial) -> list[LabCell]:
    """The cells after a trial: one that doesn't show what the book shows is not offered."""
    rows = [{"code": cell.code, "name": cell.name} for cell in cells]
    kept = []
    if not offered(cells):
        return cells
    for cell, outputs in zip(cells, trial.ask(cells=rows), strict=True):
        if cell.shown and not cell.missing:
            wanted = merged(map(in_book, notebook.cells[cell.index].outputs))
            if merged(map(in_browser, outputs)) != wanted:
                cell = replace(cell, missing=(reason(outputs),))
        kept.append(cell)
    return kept


def reason(outputs: list[dict[str, Any]]) -> str:
    """What a cell that can't run needs: a package if its error names one."""
    last = outputs[-1].get("error", "") if outputs else ""
    _, found, package = last.strip().rpartition("No module named '")
    return package.rstrip("'").partition(".")[0] if found else "Jupyter"
