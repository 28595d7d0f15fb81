"""Run a page's cells as the browser would, and keep those that show what the book shows."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import nbformat
import psutil
from lab_cells import LabCell, offered

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "course_pkg"
LEFT_OUT = ("cli", "grading/classroom")  # for the command line and for grading a class
KINDS = ("image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain")
# The stemmer of METEOR and ROUGE; the rest of NLTK needs other packages. Apache License 2.0. Its
# redos is a copy of re that the package regex gives a time limit.
STEMMER = ("termsec.py", "stem/api.py", "stem/porter.py")
IN_PLACE = {"__init__.py": b"", "stem/__init__.py": b"", "redos.py": b"from re import *\n"}
PROCESSOR_S = 300
WAITING_S = 300
POLL_S = 1
DISK = psutil.STATUS_DISK_SLEEP
MAIN = "import sys; sys.path.insert(0, {!r}); from course_pkg.pages.labs import trial; trial.main()"


def archive_files(root: Path = ROOT) -> Iterable[tuple[str, bytes]]:
    """Name and content of every file that the browser gets: the package, and what it imports."""
    package = root / PACKAGE
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        left_out = any(name.is_relative_to(folder) for folder in LEFT_OUT)
        if path.is_file() and "__pycache__" not in name.parts and not left_out:
            yield f"{PACKAGE}/{name.as_posix()}", path.read_bytes()
    yield from imported()


def imported() -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of lazy_loader and NLTK that the browser gets."""
    yield "lazy_loader/__init__.py", (resources.files("lazy_loader") / "__init__.py").read_bytes()
    nltk = resources.files("nltk")
    yield from ((f"nltk/{name}", (nltk / name).read_bytes()) for name in STEMMER)
    yield from ((f"nltk/{name}", content) for name, content in IN_PLACE.items())


def link(source: Path, place: Path, left_out: Iterable[Path]) -> None:
    """Make a folder at `place` with links to all in `source`, except what is left out."""
    place.mkdir()
    for inside in source.iterdir():
        if any(inside in path.parents for path in left_out):
            link(inside, place / inside.name, left_out)
        elif inside not in left_out:
            (place / inside.name).symlink_to(inside)


def course_archive(root: Path = ROOT) -> bytes:
    """A JSON object from the files' names to their texts, by gzip; the same for the same files."""
    texts = {name: content.decode() for name, content in archive_files(root)}
    return gzip.compress(json.dumps(texts, ensure_ascii=False).encode(), mtime=0)


class TrialError(Exception):
    """Why a trial gave no answer, as the second half of a sentence: "it …"."""


class Trial:
    """A process with what the browser has; see course_pkg.pages.labs.trial.

    A cell can end the process, stop its answers or never come back. Such a request raises
    TrialError, and the next one gets a new process. processor_s: processor time for one request;
    waiting_s: how long a request may do nothing at all. Both are far from what a page takes, so
    that a busy machine changes nothing.
    """

    def __init__(self, processor_s: float = PROCESSOR_S, waiting_s: int = WAITING_S) -> None:
        self.processor_s, self.waiting_s = processor_s, waiting_s
        # What a cell has left in the folder may be impossible to remove.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.place = Path(self.folder.name, "course")
        self.place.mkdir()
        package = ROOT / PACKAGE
        link(package, self.place / PACKAGE, [package / folder for folder in LEFT_OUT])
        for name, content in imported():
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_bytes(content)
        self.process: subprocess.Popen | None = None
        self.known: dict[tuple[str, str], str] = {}

    def ask(self, **request: Any) -> Any:
        """The answer to a request. Raises TrialError if there is none."""
        if self.process is None:
            self.process = self._started()
        try:
            with contextlib.suppress(BrokenPipeError):  # then the answer ends at once
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
            answer = json.loads(self._line())
            if not fits(request, answer):
                raise ValueError
            return answer
        except ValueError:
            self.end()
            raise TrialError("writes where its outputs are handed over") from None
        except TrialError:
            self.end()
            raise

    def _started(self) -> subprocess.Popen:
        work = tempfile.mkdtemp(dir=self.folder.name)
        command = [sys.executable, "-I", "-S", "-c", MAIN.format(str(self.place))]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=work, bufsize=0
        )

    def _line(self) -> bytes:
        """What the process writes, up to the end of a line."""
        seen = psutil.Process(self.process.pid)
        first = last = processor_time(seen)
        waited = 0
        parts = []
        while not parts or not parts[-1].endswith(b"\n"):
            if select.select([self.process.stdout], [], [], POLL_S)[0]:
                parts.append(os.read(self.process.stdout.fileno(), 2**16))
                if not parts[-1]:
                    raise TrialError("ends the process that it runs in")
                continue
            used = processor_time(seen)
            idle = used == last and seen.status() not in (psutil.STATUS_RUNNING, DISK)
            waited, last = (waited + 1 if idle else 0), used
            if used - first > self.processor_s:
                raise TrialError(f"computes for more than {self.processor_s:.0f} seconds")
            if waited * POLL_S > self.waiting_s:
                raise TrialError("waits for something that does not come")
        return b"".join(parts)

    def missing(self, module: str, name: str) -> str:
        """The package that is missing for `from module import name`; "" if none."""
        if (module, name) not in self.known:
            try:
                self.known[module, name] = self.ask(**{"import": [module, name]})
            except TrialError:  # the import itself can't be done
                self.known[module, name] = module.partition(".")[0]
        return self.known[module, name]

    def end(self) -> None:
        """End the process, in whatever state it is."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process = None

    def close(self) -> None:
        """End the process and remove its folder."""
        self.end()
        self.folder.cleanup()


def fits(request: dict[str, Any], answer: Any) -> bool:
    """Whether an answer has the form that the request asks for."""
    if "import" in request:
        return isinstance(answer, str)
    lists = isinstance(answer, list) and all(isinstance(each, list) for each in answer)
    return lists and len(answer) == len(request["cells"])


def processor_time(process: psutil.Process) -> float:
    """The seconds of a processor that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def in_book(output: nbformat.NotebookNode) -> tuple[str, str]:
    """Kind and text of an output of an executed notebook."""
    if output.output_type == "stream":
        return output.name, output.text
    if output.output_type == "error":
        return "error", output.ename
    return kind_and_text(output.data)


def in_browser(output: dict[str, Any]) -> tuple[str, str]:
    """The same for an output of course_pkg.pages.labs.cells."""
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
    """The cells after a trial: one that doesn't show what the book shows is not offered.

    Raises TrialError if the trial gave no answer.
    """
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
