"""What does `course grade` cost for a class of a hundred, and for one of thousands?

    python book/experiments/grading_scale.py                       run what is missing of the record
    python book/experiments/grading_scale.py --students 100 1000   only classes of these sizes
    python book/experiments/grading_scale.py --confirm             after an edit: the smallest again
    python book/experiments/grading_scale.py --try 20              print two rows, record nothing

The command runs as an instructor starts it, without a cluster and with a scheduler and workers on
this machine. Seconds of the processor count, in all processes, so that other programs matter
little; counting them needs root. A class that was interrupted with Ctrl-C continues: its folder,
with the samples, stays until the row is done.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import nbformat
import psutil
from record import ROOT, main

ASSIGNMENT = "bleu"
SIZES = (20, 100, 1_000, 5_000)
WORKERS = 4  # of one thread each; also how many run at once without a cluster
EVERY_S = 2.0
SLICES = 20  # of a run, whose highest memory is kept
MB = 2**20
GROUPS = Path("/sys/fs/cgroup/cpuacct")
FOLDER = Path(tempfile.gettempdir()) / "course-grading-scale"


def plan(sizes: Sequence[int] = SIZES) -> list[dict]:
    """The rows: how many students, and on how many workers of a cluster; 0 for none."""
    return [{"students": size, "workers": count} for size in sizes for count in (0, WORKERS)]


def measure(task: None, key: dict) -> dict:
    """Seconds of the processor in all processes, time until each twentieth, memory over time."""
    root = FOLDER / f"{key['students']}-{key['workers']}"
    write_class(root, key["students"])
    samples = root / "samples.jsonl"
    with ExitStack() as stack:
        usage = stack.enter_context(counted())
        cluster, options = [], ["--jobs", str(WORKERS)]
        if key["workers"]:
            cluster, address = stack.enter_context(local_cluster(root, key["workers"]))
            options = ["--scheduler", address]
        line = [sys.executable, "-m", "course_pkg", "grade", ASSIGNMENT, *options]
        with (root / "log").open("a") as log, samples.open("a") as out:
            command = subprocess.Popen(line, cwd=root, env=environment(), stdout=log, stderr=log)
            stack.callback(command.kill)
            out.write('"start"\n')
            watch(command, cluster, root, usage, out)
            command.wait()
    if command.returncode > 1:
        raise SystemExit(f"`course grade` ended with {command.returncode}: see {root / 'log'}")
    row = summary([json.loads(line) for line in samples.read_text().splitlines()], root)
    shutil.rmtree(root)
    return row


def write_class(root: Path, students: int) -> None:
    """A class: a third each answers everything, half, and nothing; kept if it is there already."""
    if (root / "written").exists():
        return
    from course_pkg.grading.classroom.runs.sample_class import answered, named

    shutil.rmtree(root, ignore_errors=True)
    for name in ("solutions", "exercises"):
        shutil.copytree(ROOT / name / ASSIGNMENT, root / name / ASSIGNMENT)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    path = Path(ASSIGNMENT) / f"{ASSIGNMENT}.ipynb"
    solution, released = (
        nbformat.read(ROOT / name / path, as_version=4) for name in ("solutions", "exercises")
    )
    notebooks = [answered(released, solution, share) for share in (1.0, 0.5, 0.0)]
    for number in range(students):
        student = f"s{number:04}"
        into = root / "submitted" / student / path
        into.parent.mkdir(parents=True)
        nbformat.write(named(notebooks[number % 3], student), into)
    (root / "written").touch()


@contextmanager
def local_cluster(root: Path, workers: int) -> Iterator[tuple[list[psutil.Process], str]]:
    """A scheduler and workers on the loopback address; their processes, and the address."""
    file = root / "scheduler.json"
    file.unlink(missing_ok=True)
    with ExitStack() as stack, (root / "cluster.log").open("a") as log:

        def start(program: str, *arguments: str) -> psutil.Process:
            line = [sys.executable, "-m", f"distributed.cli.dask_{program}", "--no-dashboard"]
            line += ["--scheduler-file", str(file), *arguments]
            process = subprocess.Popen(line, env=environment(), stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return psutil.Process(process.pid)

        found = [start("scheduler", "--host", "127.0.0.1", "--port", "0")]
        while not file.exists() or not file.read_text().endswith("}"):
            time.sleep(0.1)
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        for _ in range(workers):
            found.append(
                start("worker", "--nthreads", "1", "--no-nanny", "--local-directory", scratch)
            )
        yield found, json.loads(file.read_text())["address"]


def environment() -> dict[str, str]:
    """The environment of every process: this course's package, and one thread."""
    searched = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": searched, "OMP_NUM_THREADS": "1"}


def watch(
    command: subprocess.Popen, cluster: list[psutil.Process], root: Path, usage: Path, out: TextIO
) -> None:
    """Write a sample every few seconds until the command ends."""
    began, before = time.monotonic(), int(usage.read_text())
    while command.poll() is None:
        time.sleep(EVERY_S)
        try:
            parts = [psutil.Process(command.pid), *cluster]
            rss = [part.memory_info().rss / MB for part in parts[:2]]
        except psutil.Error:  # it has just ended
            return
        sample = {
            "s": time.monotonic() - began,
            "cpu_s": (int(usage.read_text()) - before) / 1e9,
            "command": rss[0],
            "scheduler": rss[1] if cluster else None,
            "records": sum(1 for _ in (root / ".grading").glob(f"records/{ASSIGNMENT}/*.json")),
        }
        out.write(json.dumps(sample) + "\n")
        out.flush()


@contextmanager
def counted() -> Iterator[Path]:
    """A control group for this process and those that it starts; the file with its nanoseconds.

    What a process has waited for is not enough: nobody waits for the kernels of submissions.
    """
    group = GROUPS / f"course-grading-scale-{os.getpid()}"
    try:
        group.mkdir()
        (group / "tasks").write_text(str(os.getpid()))
    except OSError as error:
        raise SystemExit(f"run this as root, with control groups of version 1 ({error})") from None
    try:
        yield group / "cpuacct.usage"
    finally:
        (GROUPS / "tasks").write_text(str(os.getpid()))
        with suppress(OSError):  # something that it started is still ending
            group.rmdir()


def summary(lines: list, root: Path) -> dict:
    """A row, from the samples of all runs over a class."""
    runs: list[list[dict]] = []
    for line in lines:
        if line == "start":
            runs.append([])
        else:
            runs[-1].append(line)
    runs = [run for run in runs if run]
    points, wall, cpu = [], 0.0, 0.0
    for run in runs:
        points += [{**one, "s": wall + one["s"], "cpu_s": cpu + one["cpu_s"]} for one in run]
        wall, cpu = points[-1]["s"], points[-1]["cpu_s"]
    paths = sorted((root / ".grading" / "records" / ASSIGNMENT).glob("*.json"))
    records = [json.loads(path.read_text())["record"] for path in paths]
    total = len(records)
    after = [
        next(one["s"] for one in [*points, {"s": wall, "records": total}] if one["records"] >= part)
        for part in (total * i // SLICES for i in range(1, SLICES + 1))
    ]
    slices = [points[len(points) * i // SLICES : len(points) * (i + 1) // SLICES] or points[-1:]
              for i in range(SLICES)]  # fmt: skip
    memory = [
        [max(one[name] for one in part) if part[0][name] is not None else None for part in slices]
        for name in ("command", "scheduler")
    ]
    return {
        "states": dict(Counter(record["state"] for record in records)),
        "runs_finished": len(runs),
        "wall_seconds": wall,
        "processor_seconds": cpu,
        "twentieths_seconds": after,
        "command_mb_by_seconds": memory[0],
        "scheduler_mb_by_seconds": memory[1],
        "submission_peak_mb_by_seconds": max(record["peak_bytes"] or 0 for record in records) / MB,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--students", type=int, nargs="+", default=SIZES)
    parser.add_argument("--try", type=int, dest="trial")
    own, sys.argv[1:] = parser.parse_known_args()
    if own.trial:
        for row_key in plan([own.trial]):
            print(row_key, json.dumps(measure(None, row_key), indent=1), flush=True)
        raise SystemExit
    settings = {"assignment": ASSIGNMENT, "workers": WORKERS}
    main(__file__, plan(own.students), lambda: None, measure, probe=plan()[0], settings=settings)
