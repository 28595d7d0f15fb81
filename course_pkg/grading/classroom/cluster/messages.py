"""What a worker gets and what it replies, as bytes. Imports no Dask.

A task has no secret of the course. Whatever comes back is untrusted: `read_reply` accepts nothing
that a run can't give.
"""

import base64
import json
import platform
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from course_pkg import __version__
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.grade_key import judging_hash
from course_pkg.grading.classroom.execution.runner_output import (
    MAX_RESULTS,
    RunLimits,
    RunResult,
    State,
    most_values,
    parsed,
    read_cell,
    strict_json,
)
from course_pkg.grading.questions.display import one_line

MAX_WORDS = 1_000  # characters of a text
ENDS = (State.GRADED, State.CELL_TIMED_OUT, State.TIMED_OUT, State.KERNEL_DIED)
ENDS += (State.OUT_OF_MEMORY, State.TOO_MUCH_OUTPUT, State.GRADING_ERROR)
MAX_LINES = 10_000  # of a reply: a line for each cell (a notebook has fewer), and the last one
MAX_COMMAS = 20_000  # in the last line, most of them in its texts
TOO_LARGE = "its outputs are too large to send, so they are not shown"


@dataclass(frozen=True)
class RunWork:
    """What all tasks of a run have in common.

    Attributes:
        judging, version: `judging_hash`, and the same for people.
        checks: `checks_hash`, "" for a plain nbgrader assignment.
    """

    run: str
    judging: str
    version: str
    assignment: str
    checks: str
    limits: RunLimits


@dataclass(frozen=True)
class SubmissionTask:
    """One submission to run: as for `LocalExecutor.run_submission`."""

    work: RunWork
    student: str
    key: bytes
    packed: bytes
    called: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preparation:
    """Asks a worker whether it can run submissions; with the checks' files, if it lacks them."""

    work: RunWork
    files: dict[str, str] | None = None


@dataclass(frozen=True)
class WorkerReply:
    """What a worker says.

    Attributes:
        kind: one of `_LastLine.kind`.
        why: the reason, for "unfit", "no-gpu" and "failed".
        room: submissions at a time, for "fit".
    """

    kind: str
    why: str = ""
    room: int = 0
    result: RunResult | None = None

    def failure(self, checked: bool) -> str:
        """Why the grader failed on a submission, as it may not on another worker; "" if not.

        Args:
            checked: whether a checker judges the assignment.
        """
        if self.result is not None and self.result.state == State.GRADING_ERROR:
            return self.result.reason or self.result.state
        if self.result is not None and checked and not self.result.verdicts:
            return self.result.no_verdicts or "its checker wrote no results"
        return (self.why or "it failed") if self.kind == "failed" else ""


Words = Annotated[
    str, Field(max_length=MAX_WORDS), AfterValidator(lambda text: one_line(text, MAX_WORDS))
]
Seconds = Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, lt=2**60)] | None


class _Facts(BaseModel):
    """A result as it is sent, without the outputs of its cells; its verdicts are in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)
    state: Literal[tuple(map(str, ENDS))]
    reason: Words
    no_verdicts: Words
    limits: Words
    gpu: Words
    start_s: Seconds
    run_s: Seconds
    peak_bytes: Bytes
    gpu_peak_bytes: Bytes
    remarks: Annotated[list[Words], Field(max_length=10)]
    verdicts: str


class _LastLine(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["fit", "unfit", "lacks", "no-gpu", "failed", "result"]
    why: Words
    room: Annotated[int, Field(ge=0, le=32)]
    result: _Facts | None = None


def version() -> str:
    """The versions that `judging_hash` covers, for people; its first digits tell them apart."""
    code = judging_hash()[:12]
    return f"course_pkg {__version__} (code {code}, Python {platform.python_version()})"


def work_of(assignment: ClassAssignment, limits: RunLimits) -> RunWork:
    """The work of a run that starts now."""
    run = secrets.token_hex(8)
    return RunWork(run, judging_hash(), version(), assignment.name, assignment.hash, limits)


def task_bytes(task: SubmissionTask) -> bytes:
    """A task as a line of JSON, then the packed submission."""
    head = {"work": asdict(task.work), "student": task.student, "key": task.key.hex()}
    head["called"] = task.called
    return json.dumps(head).encode() + b"\n" + task.packed


def preparation_bytes(asked: Preparation) -> bytes:
    """A preparation as a line of JSON."""
    return json.dumps(asdict(asked)).encode() + b"\n"


def read_request(data: bytes) -> SubmissionTask | Preparation:
    """What `task_bytes` or `preparation_bytes` wrote."""
    line, _, packed = data.partition(b"\n")
    head = json.loads(line)
    work = RunWork(**{**head["work"], "limits": RunLimits(**head["work"]["limits"])})
    if "student" not in head:
        return Preparation(work, head["files"])
    called = tuple(head["called"])
    return SubmissionTask(work, head["student"], bytes.fromhex(head["key"]), packed, called)


def most_bytes(limits: RunLimits) -> int:
    """The size of the largest reply: verdicts in base64, and outputs, which JSON may lengthen."""
    return 4 * _most_outputs(limits) + 2 * MAX_RESULTS


def _most_outputs(limits: RunLimits) -> int:
    """JSON values in the outputs: at most one for each byte that a sandbox may put out."""
    return 3 * limits.output_bytes + 2**20


def reply_bytes(reply: WorkerReply, limits: RunLimits) -> bytes:
    """A reply as lines of JSON: one for each cell with outputs, and a last one for the rest."""
    lines = []
    last: dict[str, Any] = {"kind": reply.kind, "why": reply.why, "room": reply.room}
    if reply.result is not None:
        lines = _cells(reply.result)
        last["result"] = _facts(reply.result)
        if sum(map(len, lines)) + len(json.dumps(last)) > most_bytes(limits):
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
    facts = {name: getattr(result, name) for name in _Facts.model_fields}
    verdicts = base64.b64encode(result.verdicts).decode()
    return {**facts, "verdicts": verdicts, "remarks": list(result.remarks)}


def read_reply(data: bytes, limits: RunLimits) -> WorkerReply:
    """The reply in these bytes, from a worker that is not trusted. Raises ValueError."""
    if len(data) > (most := most_bytes(limits)):
        raise ValueError(f"a reply of {len(data):,} bytes; expected at most {most:,}")
    _require(data.count(b"\n") < MAX_LINES, "the number of lines")
    *cells, last = data.split(b"\n")
    short = len(last) < 2 * MAX_RESULTS and most_values(last) < MAX_COMMAS
    _require(short, "the size of the last line")
    _require(sum(map(most_values, cells)) <= _most_outputs(limits), "the number of values")
    try:
        line = _LastLine.model_validate(strict_json(last))
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"the last line: {place}: {wrong['msg']}") from None
    _require((line.kind == "result") == (line.result is not None), "the kind")
    result = None if line.result is None else _result(line.result, cells)
    return WorkerReply(line.kind, line.why, line.room, result)


def _result(facts: _Facts, cells: list[bytes]) -> RunResult:
    verdicts = base64.b64decode(facts.verdicts, validate=True)
    _require(len(verdicts) <= MAX_RESULTS, "the size of the verdicts")
    fields = facts.model_dump()
    fields |= {"verdicts": verdicts, "remarks": tuple(facts.remarks), "state": State(facts.state)}
    result = RunResult(**fields)
    for line in cells:  # as from a sandbox: what can't be read is not shown
        read_cell(result, parsed(line))
    return result


def _require(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"{what} in a worker's reply is not as expected")
