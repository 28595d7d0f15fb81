"""`check` and `variant`: what an exercise notebook calls. The student's side of the contract.

For a reader, or under stock nbgrader, `check` draws the cases in this process from a public seed
and returns the points as a number that shows a report. Under the grader, the environment names an
inherited socket, the cases come from the checker, and all that `check` says is "recorded".

Chapter: exercises.
"""

import contextlib
import importlib
import io
import os
import socket
import unicodedata
import warnings
from typing import Any

from .contract import registry
from .contract.calling import outcome
from .contract.protocol import receive, send
from .contract.report import Recorded, Score
from .contract.values import as_crossing

CHECKER_FD = "COURSE_CHECKER_FD"

_students: dict[str, str] = {}
_socket: socket.socket | None = None


def variant(name: str, student: str = "") -> dict[str, Any]:
    """A student's own small case for numbers worked by hand; the documents' case for "".

    name: "assignment/variant". The same name always gives the same case; the grader uses the name
    in the submission. Raises UnknownQuestion.

    >>> case = variant("lora-math/by-hand")
    >>> case["d"], case["k"], case["rank"]
    (3072, 768, 8)
    """
    assignment, which = registry.split(name)
    if CHECKER_FD in os.environ:
        return _request({"op": "variant", "variant": which})["inputs"]
    from .contract.session import Session

    _students[assignment] = unicodedata.normalize("NFC", str(student).strip())
    return Session(assignment, _students[assignment]).variant(which)


def check(question_id: str, answer: Any) -> "Score | Recorded":
    """Check an answer: a function, a class, or a number.

    question_id: "assignment/question". Returns the points earned, a float that shows a report
    with what each property asks and the smallest input that failed. Raises UnknownQuestion.

    >>> print(check("lora-math/by-hand/parameters", 30_720).report.splitlines()[0])
    lora-math/by-hand/parameters: 1 of 1 point
    """
    assignment, name = registry.split(question_id)
    if CHECKER_FD in os.environ:
        reply = _request({"op": "inputs", "question": name})
        call = reply["call"]
        student = importlib.import_module(reply["student"]) if reply["student"] else None
        outcomes = [
            _quietly(call, answer, inputs, unchanged, student)
            for inputs, unchanged in zip(reply["inputs"], reply["unchanged"], strict=True)
        ]
        _request({"op": "record", "question": name, "outcomes": outcomes})
        return Recorded(question_id)
    from .contract.session import Session

    session = Session(assignment, _students.get(assignment, ""))
    question, student = session.answers[name], session.answers.student
    inputs, unchanged = session.inputs(name), session.unchanged(name)
    outcomes = [
        _quietly(question.call, answer, i, u, student)
        for i, u in zip(inputs, unchanged, strict=True)
    ]
    session.record(name, as_crossing(outcomes))
    return Score(question_id, session.verdict(name))


def _quietly(*arguments: Any) -> dict[str, Any]:
    """What an answer gives for one case; what it writes to stderr goes to stdout.

    A warning must not cost a point, and stock nbgrader gives zero to a cell with anything on
    stderr.
    """
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written), warnings.catch_warnings():
            return outcome(*arguments)
    finally:
        if written.getvalue():
            print(written.getvalue()[:10_000], end="")


def _request(message: dict[str, Any]) -> dict[str, Any]:
    global _socket
    if _socket is None:
        _socket = socket.socket(fileno=int(os.environ[CHECKER_FD]))
    send(_socket, message)
    reply = receive(_socket)
    if "error" in reply:
        raise registry.UnknownQuestion(reply["error"])
    return reply
