"""Clusters of real processes on this machine, and what two ways to grade a class must agree in."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from course_pkg.common.scheduler_address import SchedulerAddress, scheduler_of
from course_pkg.grading.classroom.execution.runner_output import RunLimits, State
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.keys import secret
from tests.exercises.assignments import ROOT
from tests.grading.classroom.school import School
from tests.waiting import wait_until

ASSIGNMENT = "bleu"  # its questions need no torch, so it starts fast
PRELOAD = Path(__file__).with_name("cluster_worker.py")
LIMITS = RunLimits(cell_timeout_s=300.0, time_limit_s=600.0, output_bytes=300_000)
CHANGES = ("start_s", "run_s", "write_s", "peak_bytes", "graded_at")  # from one run to the next
CODE = {
    "dead": "import os; os._exit(3)",
    "flood": "print('x' * 10_000_000)",
    "html": "from IPython.display import HTML\nHTML('<script>alert(1)</script><b>bold</b>')",
}


class Cluster:
    """A scheduler and its workers, each a process of its own, on the loopback address.

    pem: a certificate with its key, for TLS. host: where the scheduler listens. preload: what the
    workers load.
    """

    def __init__(
        self, folder: Path, pem: Path | None = None, host: str = "", preload: Path | None = PRELOAD
    ) -> None:
        self.folder = folder
        self.workers: dict[str, subprocess.Popen] = {}
        self._added = 0
        self._preload = preload
        self._tls = []
        if pem is not None:
            self._tls = ["--tls-ca-file", str(pem), "--tls-cert", str(pem), "--tls-key", str(pem)]
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "scheduler.json"
        protocol = "tcp" if pem is None else "tls"
        where = host or f"{protocol}://127.0.0.1"
        options = ("--host", where, "--port", "0", "--no-dashboard")
        self.scheduler = self._start("scheduler", *options)
        wait_until(lambda: self.scheduler.poll() is not None or self._written(), shows=self.log)
        assert self.scheduler.poll() is None, self.log()
        address = json.loads(self._file.read_text())["address"]
        self.at = SchedulerAddress(address) if host else scheduler_of(address, pem, pem, None)

    def _written(self) -> bool:
        return self._file.exists() and self._file.read_text().endswith("}")

    def add(self, *names: str, threads: int = 1, resources: str = "", package: Path = ROOT) -> None:
        """Start workers. package: the folder of the package that they have."""
        more = ["--nthreads", str(threads), "--local-directory", str(self.folder)]
        more += ["--resources", resources] if resources else []
        more += ["--preload", str(self._preload)] if self._preload else []
        self._added += len(names)
        for name in names:
            options = ("--name", name, "--no-dashboard", "--no-nanny", *more)
            self.workers[name] = self._start("worker", *options, package=package)

    def only(self, *names: str, **options: object) -> None:
        """Let these workers run, and no others. options: as for `add`, of those that are new."""
        alive = set(self.alive())
        self.kill(*[name for name in self.workers if name not in alive.intersection(names)])
        self.add(*[name for name in names if name not in self.workers], **options)

    def wait(self) -> None:
        wait_until(lambda: self.log().count("Registered to:") >= self._added, shows=self.log)

    def kill(self, *names: str) -> None:
        for name in names:
            self.workers[name].kill()
            self.workers.pop(name).wait()

    def stop(self) -> None:
        for process in self.workers.values():
            process.terminate()
        for process in self.workers.values():
            process.wait(300)

    def alive(self) -> list[str]:
        return [name for name, process in self.workers.items() if process.poll() is None]

    def sandboxes(self) -> list[psutil.Process]:
        children = []
        for process in self.workers.values():
            children += psutil.Process(process.pid).children(recursive=True)
        return [process for process in children if process.name() == "bwrap"]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill(*list(self.workers))
        self.scheduler.kill()
        self.scheduler.wait()

    def _start(self, program: str, *arguments: str, package: Path = ROOT) -> subprocess.Popen:
        line = [sys.executable, "-m", f"distributed.cli.dask_{program}"]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                [*line, "--scheduler-file", str(self._file), *arguments, *self._tls],
                env={**os.environ, "PYTHONPATH": f"{package}:{ROOT}"},
                stdout=log,
                stderr=log,
            )


def package_without(assignment: str, folder: Path) -> Path:
    shutil.copytree(
        ROOT / "course_pkg", folder / "course_pkg", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.rmtree(folder / "course_pkg/grading/assignments" / assignment.replace("-", "_"))
    return folder


def certificate(folder: Path, name: str) -> Path:
    """A new certificate, its own authority, and its key, in one file."""
    made = folder / f"{name}.pem"
    key = folder / f"{name}.key"
    cert = folder / f"{name}.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    made.write_text(key.read_text() + cert.read_text())
    return made


def prepare(root: Path, assignment: str = ASSIGNMENT) -> Path:
    School(root, assignment)
    with CourseGradebook(root) as book:
        book.ensure_assignment(assignment)
    secret(root)
    return root


class Class(School):
    """A class in a copy of a prepared course: the same students have the same cases in each."""

    def __init__(self, prepared: Path, root: Path, assignment: str = ASSIGNMENT) -> None:
        super().__init__(root, assignment, prepared)

    def fill(self, *hostile: str) -> None:
        """Three honest students, an empty and a broken submission, and the hostile ones named."""
        self.submit("ada")
        self.submit("ben", 0.5)
        self.submit("zoe", 0.0)
        self.path("cut").write_text("{")
        for student in hostile:
            self.submit(student, code=CODE[student])

    def fill_slowly(self, count: int, seconds: int, first: int = 0) -> None:
        """So many submissions that take some seconds, numbered from the first."""
        for number in range(first, first + count):
            self.submit(f"slow-{number}", code=f"import time; time.sleep({seconds})")

    def hand_in(self) -> None:
        for path in (self.root / "submitted").glob("*/*/*.ipynb"):
            os.utime(path, (1_770_000_000, 1_770_000_000), follow_symlinks=False)

    def grade(self, at: SchedulerAddress | None = None, **options):
        self.hand_in()
        return super().grade(**{"jobs": 2, "limits": LIMITS, "scheduler": at, **options})

    def results(self, files: bool = True) -> dict[str, object]:
        """What a run writes wherever it ran; without files, nothing of the students' outputs."""
        results: dict[str, object] = {}
        for path in sorted((self.root / ".grading" / "records").rglob("*.json")):
            fields = json.loads(path.read_text())["record"]
            results[f"record {path.stem}"] = {k: v for k, v in fields.items() if k not in CHANGES}
        with self.gradebook() as book:
            for s in book.assignment_submissions(self.assignment):
                results[f"gradebook {s.student.id}"] = in_gradebook(s)
        for folder in ("autograded", "results") if files else ():
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file():
                    results[str(path.relative_to(self.root))] = _without_seconds(path)
        return results


def graded_in(line: str) -> list[str]:
    """The student whom a line of the command's output reports as graded in this run, if any.

    Refused and unreadable submissions are not: every run reads them.

    >>> graded_in("ada  graded  24/24  2.3 s"), graded_in("ben  graded  4/24  before")
    (['ada'], [])
    """
    student, *words = line.rstrip().split("  ")
    ran = len(words) > 2 and words[0] in set(State) - {State.REFUSED, State.UNREADABLE}
    return [student] if ran and words[2] != "before" else []


def in_gradebook(submission) -> tuple[object, ...]:
    (nb,) = submission.notebooks
    rows = [(g.name, g.auto_score, g.manual_score, g.needs_manual_grade) for g in nb.grades]
    rows += [(c.name, c.auto_comment, c.manual_comment) for c in nb.comments]
    totals = (submission.score, submission.late_submission_penalty, submission.timestamp)
    return (sorted(rows, key=repr), *totals)


def _without_seconds(path: Path) -> object:
    """The content of a file, but for what differs between any two runs."""
    text = path.read_text()
    if path.name == "grades.csv":
        rows = csv.DictReader(text.splitlines())
        return [{k: v for k, v in row.items() if k not in CHANGES} for row in rows]
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return [{k: v for k, v in cell.items() if k != "id"} for cell in cells]
    text = re.sub(r"\d+(\.\d+)? (s|[kMG]i?B)\b|20\d\d-\d\d-\d\d[T ][\d:+]+", "?", text)
    return re.sub(r"<!-- [0-9a-f]{64} -->", "", text)  # a hash of the page, with its seconds
