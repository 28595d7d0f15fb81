"""How long the parts of the build take, and how much is left.

As a part ends, the log has a line such as

    PART 312 87 pages run, 2 at a time

which `tools/step` shows, as it shows the seconds that are left. These stand in the file that the
environment's STEP_LEFT names: seconds, and the time at which they were estimated. They follow from
what each page took when this machine last ran it, or else from `tools/costs.txt`, which were
measured on two quiet cores; both are scaled by how fast the pages run now.
"""

from __future__ import annotations

import heapq
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

PART = "PART"
RECORDED = "tools/costs.txt"
UNKNOWN = 5.0  # seconds of a page that nobody has run yet
STEADY = 60.0  # seconds: how much the expected speed counts beside the one that is measured
logger = logging.getLogger(__name__)


def costs(*files: Path) -> dict[str, float]:
    """Seconds by name, from files with lines "seconds name"; a later file counts more."""
    found = {}
    for file in files:
        lines = file.read_text("utf8").splitlines() if file.is_file() else ()
        for line in lines:
            if line and not line.startswith("#"):
                seconds, name = line.split()
                found[name] = float(seconds)
    return found


def last_runs(cache: Path, root: Path) -> dict[str, float]:
    """Seconds that each page took when it last ran here, from the cache of its outputs."""
    if not (cache / "global.db").is_file():
        return {}
    with closing(sqlite3.connect(cache / "global.db")) as database:
        rows = database.execute(
            "select uri, json_extract(data, '$.execution_seconds') from nbcache order by created"
        ).fetchall()
    return {
        Path(uri).relative_to(root).with_suffix("").as_posix(): seconds
        for uri, seconds in rows
        if seconds and Path(uri).is_relative_to(root)
    }


def slowness(taken: float, expected: float) -> float:
    """How many times longer than expected things take.

    >>> slowness(0, 0), slowness(600, 240)
    (1.0, 2.2)
    """
    return (taken + STEADY) / (expected + STEADY)


def until_all_end(running: Iterable[float], waiting: Iterable[float], at_once: int) -> float:
    """Seconds until every job has run; running: what is left of each; waiting: in their order.

    >>> until_all_end([30.0, 10.0], [15.0, 20.0], 2)
    45.0
    """
    ends = sorted([*running, *[0.0] * at_once])[-at_once:]
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


class Progress:
    """Estimates what is left while pages run.

    expected: seconds by page, in their order. after: seconds of what follows the last page.
    """

    def __init__(
        self,
        expected: Mapping[str, float],
        at_once: int,
        after: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.expected = dict(expected)
        self.at_once = at_once
        self.after = after
        self.clock = clock
        self.started: dict[str, float] = {}
        self.taken: dict[str, float] = {}
        self.lock = Lock()  # each page that runs has a thread

    def start(self, name: str) -> None:
        with self.lock:
            self.started[name] = self.clock()
            tell(self.left())

    def end(self, name: str) -> None:
        with self.lock:
            self.taken[name] = self.clock() - self.started[name]
            tell(self.left())

    def left(self) -> float:
        """Seconds until everything is done; never negative."""
        scale = self.slowness()
        running = []
        for name in self.started.keys() - self.taken.keys():
            elapsed = self.clock() - self.started[name]
            running.append(abs(scale * self.expected[name] - elapsed))  # late: as much again
        waiting = [scale * s for name, s in self.expected.items() if name not in self.started]
        return until_all_end(running, waiting, self.at_once) + scale * self.after

    def slowness(self) -> float:
        return slowness(sum(self.taken.values()), sum(self.expected[name] for name in self.taken))


def tell(seconds: float) -> None:
    """Leave the seconds that are left where tools/step looks."""
    if name := os.environ.get("STEP_LEFT"):
        file = Path(name)
        new = file.with_name(f"{file.name}.new")
        new.write_text(f"{seconds:.0f} {time.time():.0f}\n", "utf8")
        new.replace(file)


class Parts:
    """The parts of one build: running pages, reading and writing them.

    costs: what reading and writing all pages is expected to take.
    """

    def __init__(self, costs: Mapping[str, float]) -> None:
        self.costs = costs
        self.since = time.monotonic()
        self.to_read = 0
        self.read = 0
        self.share = 0.0  # of all pages, those that are read
        self.taken: dict[str, float] = {}

    def expected(self, part: str) -> float:
        """Seconds of "read" or "write" for the pages of this build."""
        return self.costs.get(part, 0.0) * self.share

    def done(self, part: str, what: str) -> None:
        """Say that a part has ended; nothing if there was nothing to do."""
        now = time.monotonic()
        self.taken[part] = now - self.since
        self.since = now
        if what:
            logger.info(f"{PART} {self.taken[part]:.0f} {what}")


def own_costs() -> Path | None:
    """The file with what this machine took, if tools/step builds the book."""
    return Path(os.environ["STEP_LEFT"]).with_name("costs") if "STEP_LEFT" in os.environ else None


def prepare(app: Sphinx) -> None:
    files = [Path(app.srcdir, RECORDED), own_costs()]
    app.course_parts = Parts(costs(*filter(None, files)))


def begin(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    parts = app.course_parts
    parts.to_read = len(docnames)
    parts.share = len(docnames) / max(1, len(env.found_docs))
    tell(parts.expected("read") + parts.expected("write"))


def seconds_to_run(app: Sphinx, docnames: Iterable[str]) -> dict[str, float]:
    """What each page is expected to take."""
    cache = Path(app.env.mystnb_config.execution_cache_path)
    known = {**app.course_parts.costs, **last_runs(cache, Path(app.srcdir))}
    return {name: known.get(name, UNKNOWN) for name in docnames}


def read_some(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: Any) -> None:
    """A process has read its pages: the others take as long for each of theirs."""
    parts = app.course_parts
    parts.read += len(docnames)
    taken = time.monotonic() - parts.since
    whole = taken * parts.to_read / parts.read
    tell(whole - taken + parts.expected("write") * slowness(whole, parts.expected("read")))


def end_reading(app: Sphinx, env: BuildEnvironment) -> None:
    parts = app.course_parts
    number = parts.to_read
    parts.done("read", f"{number} page{'s' * (number > 1)} read" if number else "")
    tell(parts.expected("write") * slowness(parts.taken["read"], parts.expected("read")))


def end_writing(app: Sphinx, exception: Exception | None) -> None:
    """The site is there. Keep what reading and writing all pages took, for the next estimate."""
    if exception is not None:
        return
    parts = app.course_parts
    parts.done("write", "site written")
    tell(0)
    file = own_costs()
    if file is not None and parts.share == 1:
        kept = costs(file) | {part: parts.taken[part] for part in ("read", "write")}
        lines = [f"{seconds:.0f} {name}\n" for name, seconds in kept.items()]
        file.write_text("".join(lines), "utf8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", prepare)
    app.connect("env-before-read-docs", begin, priority=100)
    app.connect("env-merge-info", read_some)
    app.connect("env-updated", end_reading, priority=900)
    app.connect("build-finished", end_writing, priority=990)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
