"""Write a recorded experiment: run the rows that are missing, and save each one when it is done.

A script passes its plan, a list of keys (dicts that say what to run), and a function that measures
one of them. A plan may also be a function of the rows so far, which is asked again after each
round. A run that is interrupted loses at most one row; run the script again to continue. If the
code or the data have changed since, choose: `--restart` drops the old rows; `--confirm` keeps
them if one of them, the probe, still gives the same result.

A record depends on the modules that were loaded while it was measured, here and in the processes
that were started, and of these on the code that can have run (course_pkg.common.fingerprints).
Editing this file makes no record stale, because it measures nothing.
"""

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from course_pkg.common.files import write_atomically  # noqa: E402
from course_pkg.common.fingerprints.reach import PACKAGE, WHOLE, Sources  # noqa: E402
from course_pkg.pages.experiments import (  # noqa: E402
    FOLDER,
    changed_files,
    code_hashes,
    data_hashes,
    load_experiment,
    module_of,
    script_sources,
)

TOLERANCE = 1e-3  # relative, for a probe's results: CPUs add floats in different orders
ELSEWHERE = 0.05  # on another model of CPU: what is rounded to 8 bits can then round the other way
# Endings of the names of results that depend on the machine.
TIMES = ("seconds", "finished", "peak_memory", "start_memory")
PACKAGES = ("torch", "transformers", "numpy")
Plan = Sequence[dict] | Callable[[Sequence[dict]], Sequence[dict]]
# Run by every Python that is started meanwhile; a process that it forks goes on writing.
TRACE = f"""
import os, sys

_trace = os.open(os.environ["COURSE_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def _imported(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] == {PACKAGE!r}:
        os.write(_trace, (arguments[0] + "\\n").encode())

sys.addaudithook(_imported)
"""


def main(
    script: str,
    plan: Plan,
    prepare: Callable[[], object],
    measure: Callable[[object, dict], dict],
    *,
    probe: dict,
    settings: dict,
    data: Sequence[str] = (),
    folder: Path = FOLDER,
    root: Path = ROOT,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run the missing rows of a script's plan, or confirm its record, as the command line says.

    prepare: makes the first argument of `measure`; the second is a row's key. It is called only if
    needed. probe: the key of a short row that represents the rest. data: under course_pkg/data.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--confirm", action="store_true", help="run only the probe and compare")
    parser.add_argument("--restart", action="store_true", help="drop what was measured before")
    options = parser.parse_args(arguments)
    name = Path(script).stem
    path = folder / f"{name}.json"
    old = json.loads(path.read_text("utf-8")) if path.is_file() else None
    fresh = {
        "name": name,
        "command": f"python book/experiments/{Path(script).name}",
        "settings": settings,
        "machine": machine(),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name).split("+")[0] for name in PACKAGES},
        "files": {},
        "programs": [],
        "rows": [],
    }
    if options.confirm and old is None:
        raise SystemExit(f"there is no record to confirm: run `{fresh['command']}`")
    if old is not None and not (options.restart or options.confirm):
        if changed := changed_files(load_experiment(name, folder=folder), script_sources(root)):
            raise SystemExit(
                f"{', '.join(sorted(changed))} changed after these rows were measured: add "
                "--restart to measure all rows again, or --confirm to check that one is unchanged"
            )
        fresh = old
    with traced() as loaded:
        if options.confirm:
            row = timed(prepare(), probe, measure)
            if differences := compare(row, find(old["rows"], probe), tolerance(old["machine"])):
                raise SystemExit(
                    f"not confirmed, {'; '.join(differences)}: run `{fresh['command']} --restart`"
                )
            stamp = {name: row[name] for name in ("finished", "seconds")}
            stamp["versions"] = fresh["versions"]
            confirmed = old | depends_on(name, old, loaded(), data, script_sources(root))
            write(path, confirmed | {"confirmed": stamp})
            return
        task = cache(prepare)
        rows = fresh["rows"]
        while todo := [key for key in keys(plan, rows) if find(rows, key) is None]:
            for number, key in enumerate(todo, start=1):
                row = timed(task(), key, measure)
                rows.append(row)
                fresh |= depends_on(name, fresh, loaded(), data, script_sources(root))
                write(path, fresh)
                print(f"{number} of {len(todo)}  {row['seconds']:6.1f} s  {key}", flush=True)


@contextmanager
def traced() -> Iterator[Callable[[], set[str]]]:
    """A function that gives the modules loaded so far, here and by the processes started inside."""
    before = {name: os.environ.get(name) for name in ("COURSE_TRACE", "PYTHONPATH")}
    with tempfile.TemporaryDirectory(prefix="course-trace-") as folder:
        Path(folder, "sitecustomize.py").write_text(TRACE)
        trace = Path(folder, "modules.txt")
        trace.touch()
        searched = [folder, before["PYTHONPATH"]]
        os.environ["COURSE_TRACE"] = str(trace)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, searched))
        try:
            yield lambda: {*sys.modules, *trace.read_text().split()}
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def depends_on(
    script: str, record: dict, loaded: Iterable[str], data: Sequence[str], sources: Sources
) -> dict:
    """The fields `files` and `programs` of a record, after more of it was measured.

    loaded: the names of the modules that were loaded meanwhile. What the script can't reach by
    itself, but was loaded, ran in a process of its own, and counts whole.
    """
    own = Sources(sources.root, sources.beside).reach(("record", WHOLE)).modules
    loaded = {*loaded, *map(module_of, record["files"]), script}
    known = [(name, WHOLE) for name in record.get("programs", ())]
    reached = sources.reach((script, WHOLE), *known).modules
    strangers = [name for name in loaded if sources.module(name) is not None]
    strangers = {name for name in strangers if name not in reached and name not in own}
    programs = sorted(strangers.union(record.get("programs", ())))
    kept = loaded.union(sources.reach(*((name, WHOLE) for name in programs)).modules)
    code = code_hashes(script, programs, sources)
    code = {path: digest for path, digest in code.items() if module_of(path) in kept}
    paths = [f"{PACKAGE}/data/{name}" for name in data]
    return {"files": code | data_hashes(paths, sources.root), "programs": programs}


def keys(plan: Plan, rows: Sequence[dict]) -> Sequence[dict]:
    """The keys of a plan, as far as the measured rows tell."""
    return plan(rows) if callable(plan) else plan


def timed(task: object, key: dict, measure: Callable[[object, dict], dict]) -> dict:
    """One row: its key, its results, how long it took and when it was finished."""
    started = time.perf_counter()
    results = measure(task, key)
    seconds = round(time.perf_counter() - started, 1)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {**key, **tidy(results), "seconds": seconds, "finished": finished}


def tidy(value: object) -> object:
    """The value with its floats cut to six significant digits."""
    if isinstance(value, dict):
        return {name: tidy(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def find(rows: Sequence[dict], key: dict) -> dict | None:
    """The row that was measured for a key, or None if there is none."""
    return next((row for row in rows if key.items() <= row.items()), None)


def compare(row: dict, recorded: dict | None, tolerance: float = TOLERANCE) -> list[str]:
    """What differs between a row and the recorded one, except for times."""
    if recorded is None:
        return ["the record has no such row"]
    names = [name for name in row if not name.endswith(TIMES)]
    return [
        f"{name} was {recorded.get(name)} and is {row[name]}"
        for name in names
        if not close(row[name], recorded.get(name), tolerance)
    ]


def tolerance(recorded_on: dict) -> float:
    """How far from its recorded results a probe may be. recorded_on: the record's machine."""
    here = machine()
    same = all(recorded_on.get(name) == here[name] for name in ("cpu", "instructions"))
    return TOLERANCE if same else ELSEWHERE


def close(ours: object, theirs: object, tolerance: float) -> bool:
    """Whether two results are equal, their numbers within the tolerance."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=tolerance)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return all(close(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return all(close(ours[name], theirs[name], tolerance) for name in ours)
    return ours == theirs


def machine() -> dict:
    """The machine: processor, number of cores, and what torch uses of them.

    A virtual machine may hide the processor's model, so the instructions that torch uses count too.
    """
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text().splitlines()
        cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }


def write(path: Path, record: dict) -> None:
    """Replace the file in one step; it has one line per row, so that a diff is readable."""
    head = {name: value for name, value in record.items() if name != "rows"}
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in record["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{text},\n "rows": [\n{rows}\n ]\n}}\n')
