"""The attack corpus through nbgrader's own `autograde`, for the comparison in the table.

The attacks are real, so each run is confined by bubblewrap: no network, its own pid
namespace, a private copy of the course, and limits on time, memory and processes. The results are
in attacks/stock.json; `python -m tests.grading.attacks` adds those that are missing.
"""

import argparse
import copy
import datetime
import glob
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from course_pkg.classroom.release import program_path
from course_pkg.sandbox.probe import find_bubblewrap

from .canary_course import COURSE, CanaryCourse
from .corpus import ASSIGNMENT, Case, base_notebook, load, named

RECORD = Path(__file__).parent / "attacks" / "stock.json"
SECONDS, BYTES, PROCESSES = 90, 5 * 10**9, 500  # limits of one command
PACKAGES = ("nbgrader", "nbclient", "ipykernel", "jupyter_client", "torch")
ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "alternatives", "localtime", "fonts")


def confined(course: CanaryCourse, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the course, as an instructor would, but in a sandbox with limits."""
    options = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    options += ["--cap-drop", "ALL", "--new-session", "--die-with-parent"]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", *(f"/etc/{name}" for name in ETC)):
        options += ["--ro-bind-try", path, path]
    for path in {sys.prefix, sys.base_prefix}:
        options += ["--ro-bind", path, path]
    for path in (course.root, course.home):
        options += ["--bind", str(path), str(path)]
    environment = {**course.environment(), "PYTHONPATH": str(course.root)}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [str(find_bubblewrap()), *options, "--chdir", str(course.root), "--", *command],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        _watch(process)
        log.seek(0)
        return subprocess.CompletedProcess(command, process.wait(), log.read()[-200_000:])


def _watch(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process; kill it, and with it its pid namespace, above a limit."""
    end = time.monotonic() + SECONDS
    while process.poll() is None:
        tree = psutil.Process(process.pid).children(recursive=True)
        used = 0
        for child in tree:
            try:
                used += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        if time.monotonic() > end or used > BYTES or len(tree) > PROCESSES:
            process.kill()
        time.sleep(0.2)


def nbgrader(course: CanaryCourse, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One nbgrader command, confined."""
    return confined(course, sys.executable, "-m", "nbgrader", *arguments)


class Stock:
    """A course released with nbgrader; every attack gets a copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        root = folder / "course"
        self.course = CanaryCourse(root, package=True)
        shutil.rmtree(root / "exercises")
        done = nbgrader(self.course, "generate_assignment", ASSIGNMENT)
        assert done.returncode == 0, done.stdout

    def attack(self, case: Case) -> dict[str, Any]:
        """Grade one attack with nbgrader: its row of the table."""
        course = copy.copy(self.course)
        course.root = self.folder / "attacked"
        self._clear(course.root)
        shutil.copytree(self.course.root, course.root, symlinks=True)
        try:
            for base in filter(None, [case.earlier]):
                course.submit(case.id, named(base_notebook(base), case.id))
                self._autograde(course, case)
            course.write(case)
            start = time.monotonic()
            done = self._autograde(course, case)
            return self._row(course, case, done, time.monotonic() - start)
        finally:
            self._clear(course.root)

    def _autograde(self, course: CanaryCourse, case: Case) -> subprocess.CompletedProcess[str]:
        student = glob.escape(case.id)
        options = [f"--student={student}", "--force", "--ExecutePreprocessor.timeout=20"]
        return nbgrader(course, "autograde", ASSIGNMENT, *options)

    def _row(self, course: CanaryCourse, case: Case, done: Any, seconds: float) -> dict[str, Any]:
        score = _score(course, case.id)
        outputs = _outputs(course.root / "autograded" / case.id / ASSIGNMENT)
        return {
            "score": score or 0.0,
            "forged": (score or 0.0) > case.score,
            "leaked": course.found_in(outputs),
            "state": "graded" if done.returncode == 0 and score is not None else "failed",
            "seconds": round(seconds, 1),
            "sha": case.sha,
        }

    @staticmethod
    def _clear(root: Path) -> None:
        subprocess.run(["rm", "-rf", str(root)], check=True)  # rmtree stops at 300 levels


def _score(course: CanaryCourse, student: str) -> float | None:
    """The score in the gradebook; None if there is none, or the gradebook is damaged."""
    from nbgrader.api import Gradebook, MissingEntry
    from sqlalchemy.exc import SQLAlchemyError

    try:
        where = f"sqlite:///{course.root}/gradebook.db"
        with mock.patch.dict(os.environ, PATH=program_path()), Gradebook(where, COURSE) as book:
            return book.find_submission(ASSIGNMENT, student).score
    except (MissingEntry, SQLAlchemyError):
        return None


def _outputs(folder: Path) -> str:
    """All text in the outputs of the autograded notebook."""
    path = folder / f"{ASSIGNMENT}.ipynb"
    if not path.is_file() or path.is_symlink():
        return ""
    texts = []
    for cell in json.loads(path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            for part in (output.get("text", ""), *output.get("data", {}).values()):
                texts.append("".join(part) if isinstance(part, list) else str(part))
    return "\n".join(texts)


def read() -> dict[str, Any]:
    """The stored results."""
    return json.loads(RECORD.read_text()) if RECORD.is_file() else {"rows": {}}


def write(record: dict[str, Any]) -> None:
    """Store the results, with the versions and the date."""
    record["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    record["versions"] = {name: importlib.metadata.version(name) for name in PACKAGES}
    record["versions"]["python"] = platform.python_version()
    rows = record["rows"]
    record["count"] = {
        "attacks": len(rows),
        "forged": sum(row["forged"] for row in rows.values()),
        "leaked": sum(bool(row["leaked"]) for row in rows.values()),
        "failed": sum(row["state"] != "graded" for row in rows.values()),
    }
    record["rows"] = dict(sorted(rows.items()))
    temporary = RECORD.with_suffix(".new")
    temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    os.replace(temporary, RECORD)


def fill(chosen: Callable[[Case], bool]) -> None:
    """Run the selected attacks and those without an up-to-date row, and store every row at once."""
    cases = load("attacks")
    record = read()
    record["rows"] = {c.name: record["rows"][c.name] for c in cases if c.name in record["rows"]}
    todo = [c for c in cases if chosen(c) or record["rows"].get(c.name, {}).get("sha") != c.sha]
    with tempfile.TemporaryDirectory(prefix="stock-") as folder:
        stock = Stock(Path(folder)) if todo else None
        for number, case in enumerate(todo, start=1):
            row = record["rows"][case.name] = stock.attack(case)
            write(record)
            forged, leaked = "FORGED" * row["forged"], " ".join(row["leaked"])
            print(f"{number:3}/{len(todo)} {case.name:28}{row['score']:5g} of {case.score:g}  "
                  f"{row['state'][:40]:12} {forged} {leaked}", flush=True)  # fmt: skip
    write(record)
    print(record["count"])


def main() -> None:
    """The command line: names of attacks to run again; by default only those that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", nargs="*", help="run these again")
    names = parser.parse_args().attack
    fill(lambda case: case.name in names)
