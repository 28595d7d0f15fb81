"""What ranks report to the process that launched them, and the one error it makes of that.

The first failure counts: those of the other ranks follow from it. A rank that died without a report
comes before all others. If the time is up, the stacks that ranks have written say where each was.

Chapter: acceleration/parallelism.
"""

import dataclasses
import pickle
import re
import signal
import time
import traceback
from pathlib import Path
from typing import Any

FRAME = re.compile(r'  File "(.+)", line (\d+) in (\S+)')
LIBRARIES = ("site-packages", "/multiprocessing/", "threading.py", "<frozen ")
OWN = {str(Path(__file__).with_name(name)) for name in ("launch.py", "rank_reports.py")}


class RankError(RuntimeError):
    """A rank failed or did not finish. `rank` is its number."""

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank

    def __reduce__(self):
        return type(self), (str(self), self.rank)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a process sends at its end. when: of the clock that all processes share."""

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


def loaded(report: bytes) -> Report:
    """The report, or one of the error that reading it raised."""
    try:
        return pickle.loads(report)
    except Exception as error:
        what = f"its result was sent, but can't be read again: {described(error)}"
        return Report(time.monotonic(), None, what, traceback.format_exc())


def raise_first_failure(
    reports: dict[int, Report], died: dict[int, int | None], folder: Path, processes: int
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
    for found in filter(None, map(FRAME.match, lines)):
        file, line, function = found.groups()
        library = any(part in file for part in LIBRARIES)
        server = (file, function) == ("<string>", "<module>")  # the one that forks
        if not library and not server and file not in OWN:
            return f" in {function} ({Path(file).name}, line {line})"
    return ""


def stacks_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its stacks when most of its time is over."""
    return folder / f"stacks-{rank}"
