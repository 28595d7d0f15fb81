"""Run a function in N processes that can communicate, and return what each returned.

`torchrun` starts such processes from a shell and lets them print. `launch` returns results, or one
clear error, and leaves nothing behind. Processes are forked from a server that has imported torch
once. They meet at a file and talk over the loopback interface: no port, no network.

The first failure counts: those of the other ranks follow from it. A rank that died without a report
comes before all others.
"""

import contextlib
import dataclasses
import datetime
import faulthandler
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.common.arguments import require_between, require_integer

FRAME = re.compile(r'  File "(.+)", line (\d+) in (\S+)')
GRACE = 0.3  # seconds in which the other ranks may report their own failure
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
MOST = 64  # processes
LONGEST = 10**6  # seconds; the system's timers take few more
PRELOAD = [
    "torch",
    "torch.distributed",
    "course_pkg.acceleration.parallel.launch",
    "course_pkg.lm.decoder",
]
LIBRARIES = ("site-packages", "/multiprocessing/", "threading.py", "<frozen ")


class RankError(RuntimeError):
    """A rank failed or did not finish. `rank` is its number."""

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank

    def __reduce__(self):
        return type(self), (str(self), self.rank)


@dataclasses.dataclass(frozen=True)
class RankReport:
    """What a process sends at its end; `when` is of the clock that all processes share."""

    when: float
    result: Any = None
    error: str | None = None
    trace: str = ""


def described(error: BaseException) -> str:
    """The name and the text of an error, if it has one."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of its own __str__
        return type(error).__name__


def loaded(report: bytes) -> RankReport:
    """The report, or one of the error that reading it raised."""
    try:
        return pickle.loads(report)
    except Exception as error:
        what = f"its result was sent, but can't be read again: {described(error)}"
        return RankReport(time.monotonic(), None, what, traceback.format_exc())


def raise_first_failure(
    reports: dict[int, RankReport], died: dict[int, int | None], folder: Path, processes: int
) -> None:
    """Raise RankError for the rank that failed first, if one did; one that died comes before."""
    if died:
        rank, code = min(died.items())
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code}"
        advice = ""
        if code == -signal.SIGABRT:
            advice = ": gloo does this if one rank sends more than another one expects"
        elif not stacks_file(folder, rank).exists():
            advice = '; it did not begin: does the script have `if __name__ == "__main__":`?'
        raise RankError(f"rank {rank} of {processes} {how} before it had a result{advice}", rank)
    failed = {rank: report for rank, report in reports.items() if report.error}
    if failed:
        rank, report = min(failed.items(), key=lambda item: item[1].when)
        error = RankError(f"rank {rank} of {processes} failed: {report.error}", rank)
        error.add_note(f"On rank {rank}:\n{report.trace}")
        raise error


def raise_unfinished(ranks: list[int], folder: Path, processes: int, timeout: float) -> None:
    """Raise RankError, which says where each of the ranks was."""
    where = [f"rank {rank}{_place(folder, rank)}" for rank in ranks]
    raise RankError(
        f"{len(ranks)} of {processes} ranks had not finished after {timeout:g} s: "
        f"{'; '.join(where)}. Does every rank call the same collectives in the same order?",
        ranks[0],
    )


def _place(folder: Path, rank: int) -> str:
    """Where a rank was when most of its time was over: the innermost line outside libraries."""
    stacks = stacks_file(folder, rank)
    lines = stacks.read_text("utf8", "replace").splitlines() if stacks.exists() else []
    for frame in filter(None, map(FRAME.match, lines)):
        file, line, function = frame.groups()
        library = any(part in file for part in LIBRARIES)
        server = (file, function) == ("<string>", "<module>")  # the one that forks
        if not library and not server and file != __file__:
            return f" in {function} ({Path(file).name}, line {line})"
    return ""


def stacks_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its stacks when most of its time is over."""
    return folder / f"stacks-{rank}"


def launch(
    function: Callable[..., Any],
    processes: int,
    *arguments: Any,
    timeout: float = 60.0,
    backend: str = "gloo",
) -> list:
    """Call `function(group, *arguments)` in each of N processes; return the results by rank.

    Whatever cloudpickle can copy may go in and out, also a function from a notebook's cell. A
    script needs `if __name__ == "__main__":` around the call.

    Args:
        timeout: seconds for all together.
        backend: "gloo", or "nccl", with which rank r has GPU r.

    Raises:
        RankError: a rank fails, the first one, with its traceback as a note, or the time is up.

    Example:

        >>> launch(lambda group, x: (group.rank, group.size, x), 2, "ready")
        [(0, 2, 'ready'), (1, 2, 'ready')]
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r:.80}")
    require_integer(processes, "processes")
    if processes > MOST:
        raise ValueError(f"processes must be at most {MOST}, got {processes}")
    require_between(timeout, "timeout", 0, LONGEST)
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "launch was called inside a rank, or a worker of a pool, which can't start processes: "
            "call it outside, or make groups of the ranks with torch's init_device_mesh"
        )
    task = cloudpickle.dumps((function, arguments))
    threads = max(1, torch.get_num_threads() // processes)
    environment = dict(os.environ)
    # Where fork doesn't exist, each process imports torch itself.
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(PRELOAD)
    started: list[tuple[BaseProcess, Connection]] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        try:
            for rank in range(processes):
                ours, theirs = context.Pipe()
                setup = (rank, processes, threads, timeout, backend, folder, environment)
                process = context.Process(target=_work, args=(theirs, *setup), daemon=True)
                process.start()
                theirs.close()
                started.append((process, ours))
                ours.send_bytes(task)
            return _results(started, Path(folder), timeout)
        finally:
            _end(started)


def _work(
    pipe: Connection,
    rank: int,
    processes: int,
    threads: int,
    timeout: float,
    backend: str,
    folder: str,
    environment: dict[str, str],  # the server, which forks, has an older one
) -> None:
    """One process: meet the others, compute, report."""
    stacks = open(stacks_file(Path(folder), rank), "w")  # noqa: SIM115
    faulthandler.dump_traceback_later(0.9 * timeout, file=stacks)
    if hasattr(signal, "alarm"):  # ends the process even if nobody else does
        signal.alarm(math.ceil(timeout) + 10)
    try:
        os.environ.clear()
        os.environ |= environment
        function, arguments = pickle.loads(pipe.recv_bytes())
        _end_with_parent(pipe, folder)
        torch.set_num_threads(threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        # torch's own launcher sets these too; libraries read them
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes)}
        os.environ["LOCAL_RANK"] = str(rank)
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=processes,
            timeout=datetime.timedelta(seconds=timeout),
        )
        result = function(Group(), *arguments)
        report = cloudpickle.dumps(RankReport(time.monotonic(), result))
    except BaseException as error:
        what = described(error)
        report = cloudpickle.dumps(RankReport(time.monotonic(), None, what, traceback.format_exc()))
    pipe.send_bytes(report)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    sys.stderr.flush()
    # The other end decides when this process ends: a rank that closed its connections now would
    # make those that still read from it fail.
    threading.Event().wait()


def _end_with_parent(pipe: Connection, folder: str) -> None:
    """End this process, and remove the folder, when the parent closes its pipe, also by a crash."""

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv_bytes()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _results(started: list[tuple[BaseProcess, Connection]], folder: Path, timeout: float) -> list:
    """The results by rank, or the error that names the rank which failed first."""
    until = time.monotonic() + timeout
    reports: dict[int, RankReport] = {}
    died: dict[int, int | None] = {}
    while len(reports) + len(died) < len(started):
        left = until - time.monotonic()
        waiting = {}
        for rank, (process, pipe) in enumerate(started):
            if rank not in reports | died:
                # also the process: if it has forked another, that one keeps the pipe open
                waiting |= {pipe: rank, process.sentinel: rank}
        ready = wait(list(waiting), timeout=max(0.0, left))
        for rank in {waiting[source] for source in ready}:
            process, pipe = started[rank]
            try:
                report = pipe.recv_bytes() if pipe.poll() else None
            except (EOFError, OSError):
                report = None
            if report is None:
                process.join(1)
                died[rank] = process.exitcode
            else:
                reports[rank] = loaded(report)
        failed = died or [report for report in reports.values() if report.error]
        if failed:
            until = min(until, time.monotonic() + GRACE)
        if not ready and left <= 0:
            break
    raise_first_failure(reports, died, folder, len(started))
    if unfinished := [rank for rank in range(len(started)) if rank not in reports]:
        raise_unfinished(unfinished, folder, len(started), timeout)
    return [reports[rank].result for rank in range(len(started))]


def _end(started: list[tuple[BaseProcess, Connection]]) -> None:
    """End all processes that are still there."""
    for _, pipe in started:
        pipe.close()
    for process, _ in started:
        process.join(0.5)
    for process, _ in started:
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
