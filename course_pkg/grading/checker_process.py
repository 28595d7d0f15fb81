"""The checker: a process of its own that holds one submission's secret key and the answer key.

It answers the requests "variant", "inputs" and "record" of the student's kernel, and says nothing
about correctness. When the other end closes, it judges what was recorded. What it reads may be
hostile, so each submission has a checker in a sandbox of its own.
"""

import json
import math
import os
import socket
import time
from contextlib import suppress
from typing import Any

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.plain_values import NotPlain, receive, send
from course_pkg.grading.questions.question import QuestionError
from course_pkg.grading.questions.registry import UnknownQuestion
from course_pkg.grading.questions.report import failure_texts
from course_pkg.grading.questions.time_limits import OutOfTime, time_limit
from course_pkg.grading.questions.verdict import Verdict, lost

EXPLAIN_WITHIN_S = 25.0  # to recognize mistakes, in all answers together


def serve(sock: socket.socket, session: GradingSession) -> None:
    """Answer requests until the other end closes, or sends something that is not a request."""
    with suppress(EOFError, OSError):
        while True:
            try:
                reply = _reply(receive(sock), session)
            except NotPlain as error:  # a whole frame was read: the next one may be better
                reply = {"error": str(error)}
            send(sock, reply)


def _reply(request: Any, session: GradingSession) -> dict[str, Any]:
    try:
        match request:
            case {"op": "variant", "variant": str(name)}:
                typed = request.get("student")
                return {"inputs": session.variant(name, typed if isinstance(typed, str) else None)}
            case {"op": "inputs", "question": str(name)}:
                return {
                    "inputs": session.inputs(name),
                    "unchanged": session.unchanged(name),
                    "call": session.answers[name].call,
                    "callers": registry.module_name(session.answers.assignment.name, "student"),
                }
            case {"op": "record", "question": str(name), "outcomes": outcomes}:
                waited_s = request.get("waited_s")
                session.record(name, outcomes, waited_s if isinstance(waited_s, float) else 0.0)
                return {"recorded": True}
    except (UnknownQuestion, QuestionError) as error:
        return {"error": str(error)}
    return {"error": "expected {'op': 'variant' | 'inputs' | 'record', …}"}


def as_json(verdicts: list[Verdict]) -> str:
    """The failures of each question for the grader's main process, as short texts."""
    rows = []
    for verdict in verdicts:
        failures = {
            name: failure
            and {
                **failure_texts(verdict.question, failure),
                "recognized": list(failure.recognized),
                "is_form": failure.is_form,
            }
            for name, failure in verdict.failures.items()
        }
        rows.append(
            {
                "question": verdict.question.name,
                "failures": failures,
                "late_s": verdict.late_s,
                "follows": list(verdict.follows),
            }
        )
    return json.dumps(rows)


def prepare(assignment: str) -> None:
    """Load what every session with an assignment needs, and depends on no student."""
    answer_key(assignment)


def run(job: dict[str, Any], descriptors: list[int]) -> None:
    """Serve one student, then write the verdicts: what a child of the fork server does.

    Args:
        job: assignment, student, and what else the student may be called.
        descriptors: where the verdicts go, the end of the socket, and a file with the secret key as
            hex digits, so that no argument shows it.
    """
    out, end, secret_file = descriptors
    with os.fdopen(secret_file) as file:
        secret = bytes.fromhex(file.read().strip())
    called = tuple(job.get("called", ()))
    session = GradingSession(job["assignment"], job["student"], secret, called=called)
    with socket.socket(fileno=end) as sock:
        serve(sock, session)
    until = time.monotonic() + EXPLAIN_WITHIN_S
    verdicts = [safe_verdict(session, name, until) for name in session.questions]
    with os.fdopen(out, "w") as results:
        results.write(as_json(verdicts))


def safe_verdict(session: GradingSession, name: str, until: float = math.inf) -> Verdict:
    """The verdict on a question. What goes wrong costs this question only, and is its reason.

    Mistakes are recognized until the monotonic clock says `until`; an artifact is judged without.
    """
    question = session.answers[name]
    attempts = [(False, question.judging)]  # whether to explain, and the seconds for it
    if not question.artifact:
        attempts.insert(0, (True, max(0.5, min(until - time.monotonic(), EXPLAIN_WITHIN_S))))
    reason = ""
    for explain, seconds in attempts:
        try:
            with time_limit(seconds):
                verdict = session.verdict(name, explain)
                as_json([verdict])
                return verdict
        except OutOfTime:
            reason = f"your answer could not be judged within {seconds:g} s"
        except Exception as error:
            reason = f"your answer could not be judged ({type(error).__name__}: {error})"
    return lost(question, reason)
