"""`check` and `variant`: what an exercise notebook calls. The student's side of the contract.

Alone, or under stock nbgrader, `check` draws the cases in this process from a public seed and
returns the points as a number that shows a report. Under the grader, the environment names an
inherited socket, the cases come from the checker, and all that `check` says is "recorded".

Chapter: exercises.
"""

import contextlib
import io
import os
import socket
import sysconfig
import traceback
import unicodedata
import warnings
from typing import Any

from .contract import registry
from .contract.exam import Exam, variant_rng
from .contract.protocol import receive, send
from .contract.report import Recorded, Score
from .contract.values import NotPlain, as_crossing

CHECKER_FD = "COURSE_CHECKER_FD"
_UNANSWERED = (None, ..., NotImplemented)

_students: dict[str, str] = {}
_socket: socket.socket | None = None


def variant(name: str, student: str = "") -> dict[str, Any]:
    """A student's own small case for numbers worked by hand; the documents' case for "".

    name: "assignment/variant". The same name always gives the same case. Raises UnknownQuestion.

    >>> case = variant("lora-math/by-hand")
    >>> case["d"], case["k"], case["rank"]
    (3072, 768, 8)
    """
    assignment, which = registry.split(name)
    make = registry.find(registry.ask(assignment).VARIANTS, which, f"variant of {assignment}")
    student = unicodedata.normalize("NFC", str(student).strip())
    _students[assignment] = student
    return make(variant_rng(student, assignment, which) if student else None)


def check(question_id: str, answer: Any) -> "Score | Recorded":
    """Check an answer: a function, a class, a number, or the path of what it produced.

    question_id: "assignment/question". Returns the points earned, a float that shows a report
    with what each property asks and the smallest input that failed. Raises UnknownQuestion.

    >>> print(check("lora-math/by-hand/parameters", 30_720).report.splitlines()[0])
    lora-math/by-hand/parameters: 1 of 1 point
    """
    assignment, name = registry.split(question_id)
    call = registry.find(registry.ask(assignment).CALLS, name, f"question of {assignment}")
    if CHECKER_FD in os.environ:
        reply = _request({"op": "inputs", "question": name})
        outcomes = [_outcome(call, answer, inputs) for inputs in reply["inputs"]]
        _request({"op": "record", "question": name, "outcomes": outcomes})
        return Recorded(question_id)
    exam = Exam(assignment, _students.get(assignment, ""))
    inputs = as_crossing(exam.inputs(name))
    exam.record(name, as_crossing([_outcome(call, answer, i) for i in inputs]))
    return Score(question_id, exam.result(name))


def _outcome(call: Any, answer: Any, inputs: Any) -> dict[str, Any]:
    """What an answer gives for one case, as a plain value; its errors are outcomes too.

    What the answer writes to stderr goes to stdout: a warning must not cost a mark, and stock
    nbgrader gives zero to a cell with anything on stderr.
    """
    if any(answer is nothing for nothing in _UNANSWERED):
        return {"unanswered": True}
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written), warnings.catch_warnings():
            # As it is now, and as it will cross: what can't is this answer's error, and no other's.
            return {"value": as_crossing(call(answer, inputs))}
    except NotImplementedError:
        return {"unanswered": True}
    except NotPlain as error:
        return {"error": f"your answer gave {error}"}
    except Exception as error:
        return {"error": _describe(error)}
    finally:
        if written.getvalue():
            print(written.getvalue()[:10_000], end="")


def _describe(error: Exception) -> str:
    """The error and the line of the student's that raised it, in one line."""
    libraries = (os.path.dirname(__file__), *set(sysconfig.get_paths().values()))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries)
    ]
    where = f" (at `{frames[0].line}`)" if frames and frames[0].line else ""
    text = f"{type(error).__name__}: {error}"[:400] + where[:200]
    return text.encode("utf-8", "replace").decode()


def _request(message: dict[str, Any]) -> dict[str, Any]:
    global _socket
    if _socket is None:
        _socket = socket.socket(fileno=int(os.environ[CHECKER_FD]))
    send(_socket, message)
    reply = receive(_socket)
    if "error" in reply:
        raise registry.UnknownQuestion(reply["error"])
    return reply
