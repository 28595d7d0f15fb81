"""What a worker gets and what it replies, as bytes. Imports no Dask.

A task has all that its worker needs: the submission, that submission's key, the limits, and the
checks by their hash. It has no secret of the course. Whatever comes back is untrusted: `read_reply`
reads cells with the parser for a sandbox's output, and accepts nothing that a run can't give.

Chapter: appendix/threat-model.
"""

import base64
import json
import math
import platform
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

from course_pkg import __version__

from ..contract import registry
from ..contract.display import one_line
from ..results.records import MAX_RESULTS, strict_json
from ..results.states import State
from ..results.store import code_hash
from ..runs.options import RunLimits
from ..runs.runner_output import RunResult, parsed, read_cell, values

MAX_WORDS = 1_000  # characters of a text
ENDS = {
    State.GRADED, State.CELL_TIMED_OUT, State.TIMED_OUT, State.KERNEL_DIED, State.OUT_OF_MEMORY,
    State.TOO_MUCH_OUTPUT, State.GRADING_ERROR,
}  # fmt: skip
MAX_LINES = 10_000  # of a reply: a line for each cell (a notebook has fewer), and the last one
MAX_COMMAS = 20_000  # in the last line, most of them in its texts
TEXTS = ("state", "reason", "no_verdicts", "limits", "gpu")
SECONDS = ("start_s", "run_s")
BYTES = ("peak_bytes", "gpu_peak_bytes")
TOO_LARGE = "its outputs are too large to send, so they are not shown"


@dataclass(frozen=True)
class Work:
    """What all tasks of a run have in common.

    run: a name of the run. code: `store.code_hash`. version: the same for people. checks: the hash
    of the checks, "" for a plain nbgrader assignment.
    """

    run: str
    code: str
    version: str
    assignment: str
    checks: str
    limits: RunLimits


@dataclass(frozen=True)
class Task:
    """One submission to run: as for `Executor.run_submission`."""

    work: Work
    student: str
    key: bytes
    packed: bytes


@dataclass(frozen=True)
class Preparation:
    """Asks a worker whether it can run submissions. files: of the checks, if it lacks them."""

    work: Work
    files: dict[str, str] | None = None


@dataclass(frozen=True)
class Reply:
    """What a worker says; `kind` is one of KINDS.

    why: the reason, for "unfit", "no-gpu" and "failed". room: submissions at a time, for "fit".
    """

    kind: str
    why: str = ""
    room: int = 0
    result: RunResult | None = None

    def failure(self, checked: bool) -> str:
        """Why the grader failed on a submission, as it may not on another worker; "" if not.

        checked: whether a checker judges the assignment.
        """
        if self.result is not None and self.result.state == State.GRADING_ERROR:
            return self.result.reason or self.result.state
        if self.result is not None and checked and not self.result.verdicts:
            return self.result.no_verdicts or "its checker wrote no results"
        return (self.why or "it failed") if self.kind == "failed" else ""


KINDS = ("fit", "unfit", "lacks", "no-gpu", "failed", "result")


def version() -> str:
    """The versions that `store.code_hash` covers, for people; its first digits tell them apart.

    >>> version().startswith("course_pkg ")
    True
    """
    python, code = platform.python_version(), code_hash()[:12]
    return f"course_pkg {__version__} (code {code}, Python {python})"


def work_of(assignment: str, limits: RunLimits) -> Work:
    """The work of a run that starts now."""
    checks = registry.checks_hash(assignment) if registry.has_checks(assignment) else ""
    return Work(secrets.token_hex(8), code_hash(), version(), assignment, checks, limits)


def task_bytes(task: Task) -> bytes:
    """A task as a line of JSON, then the packed submission."""
    head = {"work": asdict(task.work), "student": task.student, "key": task.key.hex()}
    return json.dumps(head).encode() + b"\n" + task.packed


def preparation_bytes(asked: Preparation) -> bytes:
    """A preparation as a line of JSON."""
    return json.dumps(asdict(asked)).encode() + b"\n"


def read_request(data: bytes) -> Task | Preparation:
    """What `task_bytes` or `preparation_bytes` wrote.

    >>> work = Work("r", "c", "v", "lora-math", "", RunLimits())
    >>> read_request(task_bytes(Task(work, "ada", b"k", b"zip"))).packed
    b'zip'
    """
    line, _, packed = data.partition(b"\n")
    head = json.loads(line)
    work = Work(**{**head["work"], "limits": RunLimits(**head["work"]["limits"])})
    if "student" not in head:
        return Preparation(work, head["files"])
    return Task(work, head["student"], bytes.fromhex(head["key"]), packed)


def most_bytes(limits: RunLimits) -> int:
    """The size of the largest reply: verdicts in base64, and outputs, which JSON may lengthen."""
    return 4 * most_values(limits) + 2 * MAX_RESULTS


def most_values(limits: RunLimits) -> int:
    """The most JSON values in the outputs: one for each byte that a sandbox may put out."""
    return 3 * limits.output_bytes + 2**20


def reply_bytes(reply: Reply, limits: RunLimits) -> bytes:
    """A reply as lines of JSON: one for each cell with outputs, and a last one for the rest."""
    lines, most = [], most_bytes(limits)
    last: dict[str, Any] = {"kind": reply.kind, "why": reply.why, "room": reply.room}
    if reply.result is not None:
        lines = _cells(reply.result)
        last["result"] = _facts(reply.result)
        if sum(map(len, lines)) + len(json.dumps(last)) > most:
            last["result"] = _facts(replace(reply.result, remarks=(TOO_LARGE,)))
            lines = []
    return b"\n".join([*lines, json.dumps(last).encode()])


def _cells(result: RunResult) -> list[bytes]:
    lines = []
    for index, outputs in result.outputs.items():
        if index >= MAX_LINES - 1:  # no notebook has such a cell
            continue
        line = {"cell": index, "outputs": outputs, "ended": index not in result.unfinished}
        try:
            lines.append(json.dumps(line).encode())
        except (RecursionError, ValueError):  # nothing of it can be shown, and it passes no test
            lines.append(json.dumps({**line, "outputs": [None]}).encode())
    return lines


def _facts(result: RunResult) -> dict[str, Any]:
    facts = {name: getattr(result, name) for name in (*TEXTS, *SECONDS, *BYTES)}
    verdicts = base64.b64encode(result.verdicts).decode()
    return {**facts, "verdicts": verdicts, "remarks": list(result.remarks)}


def read_reply(data: bytes, limits: RunLimits) -> Reply:
    """The reply in these bytes, from a worker that is not trusted. Raises ValueError.

    >>> read_reply(b'{"kind": "fit", "why": "", "room": 4}', RunLimits()).room
    4
    """
    if len(data) > (most := most_bytes(limits)):
        raise ValueError(f"a reply of {len(data):,} bytes; expected at most {most:,}")
    _require(data.count(b"\n") < MAX_LINES, "the number of lines")
    *cells, last = data.split(b"\n")
    short = len(last) < 2 * MAX_RESULTS and values(last) < MAX_COMMAS
    _require(short, "the size of the last line")
    _require(sum(map(values, cells)) <= most_values(limits), "the number of values")
    row = strict_json(last)
    _require(isinstance(row, dict) and {"kind", "why", "room"} <= row.keys(), "the last line")
    _require(row.keys() <= {"kind", "why", "room", "result"}, "the last line")
    _require(row["kind"] in KINDS and (row["kind"] == "result") == ("result" in row), "the kind")
    _require(type(row["room"]) is int and 0 <= row["room"] <= 32, "the room")
    result = _result(row["result"], cells) if "result" in row else None
    return Reply(row["kind"], words(row["why"]), row["room"], result)


def words(text: Any) -> str:
    """A text from a worker on one line. Raises ValueError for anything else, or a long one."""
    _require(isinstance(text, str) and len(text) <= MAX_WORDS, "a text")
    return one_line(text, MAX_WORDS)


def _result(facts: Any, cells: list[bytes]) -> RunResult:
    names = {*TEXTS, *SECONDS, *BYTES, "verdicts", "remarks"}
    _require(isinstance(facts, dict) and facts.keys() == names, "the result")
    _require(isinstance(facts["state"], str) and facts["state"] in ENDS, "the state")
    for name in SECONDS:
        seconds = facts[name]
        good = type(seconds) in (int, float) and math.isfinite(seconds) and abs(seconds) < 1e6
        _require(good, name)
    for name in BYTES:
        _require(
            facts[name] is None or (type(facts[name]) is int and 0 <= facts[name] < 2**60), name
        )
    remarks = facts["remarks"]
    _require(isinstance(remarks, list) and len(remarks) <= 10, "the remarks")
    _require(isinstance(facts["verdicts"], str), "the verdicts")
    verdicts = base64.b64decode(facts["verdicts"], validate=True)
    _require(len(verdicts) <= MAX_RESULTS, "the size of the verdicts")
    result = RunResult(
        **{name: words(facts[name]) for name in TEXTS},
        **{name: facts[name] for name in (*SECONDS, *BYTES)},
        verdicts=verdicts,
        remarks=tuple(map(words, remarks)),
    )
    result.state = State(result.state)
    for line in cells:  # as from a sandbox: what can't be read is not shown
        read_cell(result, parsed(line))
    return result


def _require(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"{what} in a worker's reply is not as expected")
