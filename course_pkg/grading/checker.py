"""The checker: a process of its own that holds one student's seed and the references.

It inherits one end of a socket pair; the student's kernel has the other. It answers two requests,
"inputs" and "record", and says nothing about correctness. When the student's end is closed it
judges what it has and writes the results as JSON. The grader forks one for each submission from a
warm parent, into a sandbox of its own, since what it reads may be hostile.

Chapter: appendix/for-instructors.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from .contract import outlines, registry
from .contract.exam import Exam
from .contract.judge import QuestionResult
from .contract.protocol import receive, send
from .contract.registry import UnknownQuestion
from .contract.report import shorten
from .contract.values import NotPlain


def serve(sock: socket.socket, exam: Exam) -> None:
    """Answer requests until the other end closes, or sends something that is not a request."""
    with suppress(EOFError, OSError):
        while True:
            try:
                reply = _reply(receive(sock), exam)
            except NotPlain as error:  # a whole frame was read: the next one may be better
                reply = {"error": str(error)}
            send(sock, reply)


def _reply(request: Any, exam: Exam) -> dict[str, Any]:
    try:
        match request:
            case {"op": "inputs", "question": str(name)}:
                return {"inputs": exam.inputs(name)}
            case {"op": "record", "question": str(name), "outcomes": outcomes}:
                exam.record(name, outcomes)
                return {"recorded": True}
    except UnknownQuestion as error:
        return {"error": str(error)}
    return {"error": "wanted {'op': 'inputs' | 'record', 'question': …}"}


def as_json(results: list[QuestionResult]) -> str:
    """The results for the recorder: points, and what each lost mark was for, as text."""
    rows = []
    for result in results:
        row = {"question": result.question, "earned": result.earned, "points": result.max_points}
        row["properties"] = [
            {**asdict(p), "earned": p.earned, "failure": _failure_text(p.failure)}
            for p in result.properties
        ]
        rows.append(row)
    return json.dumps(rows)


def _failure_text(failure: Any) -> dict[str, Any] | None:
    if failure is None:
        return None
    shown = {k: shorten(getattr(failure, k)) for k in ("inputs", "expected", "given")}
    return {**shown, "reason": failure.reason[:500], "misconception": failure.misconception}


def run(job: dict[str, Any], descriptors: list[int]) -> None:
    """What a warm parent's child does: sit with a student, or write an assignment's outlines.

    job: assignment, and student for a sitting. descriptors: the first is written to.
    """
    if "student" in job:
        sit(job, descriptors)
        return
    with os.fdopen(descriptors[0], "w") as out:
        out.write(outlines.as_json(outlines.outlined(registry.trusted(job["assignment"]).values())))


def sit(job: dict[str, Any], descriptors: list[int]) -> None:
    """Serve one student, then write the results.

    job: assignment and student. descriptors: where the results go, the end of the socket, and
    where the key comes from: its hex digits, in a pipe, so that no argument or variable shows it.
    """
    out, end, key = descriptors
    with os.fdopen(key) as pipe:
        secret = bytes.fromhex(pipe.read().strip())
    exam = Exam(job["assignment"], job["student"], secret)
    with socket.socket(fileno=end) as sock:
        serve(sock, exam)
    with os.fdopen(out, "w") as results:
        results.write(as_json(exam.results()))
