"""`check` and `variant`: what an exercise notebook calls. The student's side.

For a reader, or under stock nbgrader, `check` draws the cases here from a public seed and returns
the points. Under the grader, the cases come from the checker, and it says only "recorded".
"""

import contextlib
import importlib
import io
import os
import unicodedata
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.calling import NOT_RUN, is_stub, outcome
from course_pkg.grading.questions.display import first_lines
from course_pkg.grading.questions.plain_values import as_plain, receive, send
from course_pkg.grading.questions.report import Recorded, Score
from course_pkg.grading.questions.time_limits import FairClock, OutOfTime, time_limit
from course_pkg.grading.questions.verdict import lost

if TYPE_CHECKING:  # imported where the checker is asked, since a browser has no sockets
    import socket

CHECKER_FD = "COURSE_CHECKER_FD"
CASE_S = 20.0  # seconds that an answer may take for one input
TOO_LONG = f"stopped after {CASE_S:g} s on this input: is there a loop that never ends?"
INTERRUPTED = "interrupted on this input, because the cell took too long"
EXAMPLE = (
    "You see the example case. Type your name in STUDENT and run the cell below it to get yours."
)
PRINTED = 10_000  # characters that an answer prints and that are kept
CUT = f"\n[… the rest is cut: more than {PRINTED:,} characters]"

_students: dict[str, str] = {}
_by_hand: dict[tuple[str, str], dict[str, Any]] = {}  # outcomes, by assignment and student
_socket: "socket.socket | None" = None
_unread = 0  # replies of the checker that were not read, because an interrupt came first


def variant(name: str, student: str = "") -> dict[str, Any]:
    """A student's own small case for numbers worked by hand; the example case for "".

    The same name always gives the same case, whatever its capitals and the space around it; the
    grader uses the name of the submission.

    Args:
        name: "assignment/variant".

    Raises:
        UnknownQuestion: there is no such assignment or variant.

    Example:

        >>> case = variant("lora-math/by-hand")
        >>> case["d"], case["k"], case["rank"]
        (3072, 768, 8)
    """
    assignment, which = registry.split(name)
    name_typed = unicodedata.normalize("NFC", str(student or "").strip())
    name_typed = name_typed.encode("utf-8", "replace").decode()
    if CHECKER_FD in os.environ:
        request = {"op": "variant", "variant": which, "student": name_typed}
        return _request(request)["inputs"]
    from course_pkg.grading.questions.grading_session import GradingSession

    _students[assignment] = name_typed
    return GradingSession(assignment, name_typed).variant(which)


def check(question_id: str, answer: Any) -> "Score | Recorded":
    """Check an answer: a function, a class, or a number.

    Args:
        question_id: "assignment/question".

    Returns:
        The points earned, a float that shows a report with what each property asks and the smallest
        input that failed.

    Raises:
        UnknownQuestion: there is no such assignment or question.

    Example:

        >>> print(check("lora-math/by-hand/parameters", 30_720).report.splitlines()[0])
        lora-math/by-hand/parameters: 1 of 1 point
    """
    assignment, name = registry.split(question_id)
    if CHECKER_FD in os.environ:
        return _recorded(question_id, name, answer)
    questions = registry.load(assignment).questions
    question = registry.find(questions, name, f"question of {assignment}")
    note = EXAMPLE if question.variant and not _students.get(assignment) else ""
    student = _students.get(assignment, "")
    earlier = _by_hand.setdefault((assignment, student), {}) if question.variant else None
    if is_stub(answer):  # nothing is drawn, and no model is loaded
        if earlier is not None:
            earlier.pop(name, None)
        return Score(question_id, lost(question), note=note)
    from course_pkg.grading.questions.grading_session import GradingSession

    session = GradingSession(assignment, student, recorded=earlier)
    calls = _Calls(question.call, answer, session.answers.callers)
    outcomes = calls.outcomes(session.inputs(name), session.unchanged(name))
    session.record(name, as_plain(outcomes))
    return Score(question_id, session.verdict(name), calls.printed.getvalue(), note)


def forget() -> None:
    """Forget the names and the numbers worked by hand that earlier calls were given."""
    _students.clear()
    _by_hand.clear()


def _recorded(question_id: str, name: str, answer: Any) -> Recorded:
    """Answer a question of the checker; an unanswered one is not asked for."""
    if not is_stub(answer):
        reply = _request({"op": "inputs", "question": name})
        callers = importlib.import_module(reply["callers"]) if reply["callers"] else None
        calls = _Calls(reply["call"], answer, callers)
        clock = FairClock()
        outcomes = calls.outcomes(reply["inputs"], reply["unchanged"])
        said = {"op": "record", "question": name, "outcomes": outcomes}
        _request({**said, "waited_s": clock.waited()})
    return Recorded(question_id)


class _Calls:
    """Calls of one answer. printed: what it wrote to stdout and stderr, up to a limit.

    Stock nbgrader gives zero to a cell with anything on stderr, so both are printed to stdout.
    """

    def __init__(
        self, call: tuple[str, ...] | str, answer: Any, callers: ModuleType | None
    ) -> None:
        self.call = call
        self.answer = answer
        self.callers = callers
        self.printed = _Printed()
        self.late = False  # whether an input took too long

    def outcomes(self, inputs: list[Any], unchanged: list[bool]) -> list[dict[str, Any]]:
        """What the answer gives for each case. After one that takes too long, none is run."""
        results: list[dict[str, Any]] = []
        for case, same in zip(inputs, unchanged, strict=True):
            results.append({"error": NOT_RUN} if self.late else self._outcome(case, same))
        if text := first_lines(self.printed.getvalue()):
            print(text)
        return results

    def _outcome(self, inputs: Any, unchanged: bool) -> dict[str, Any]:
        to = self.printed
        with contextlib.redirect_stdout(to), contextlib.redirect_stderr(to):
            try:
                with warnings.catch_warnings(), time_limit(CASE_S):
                    return outcome(self.call, self.answer, inputs, unchanged, self.callers)
            except OutOfTime:
                self.late = True
                return {"error": TOO_LONG}
            except KeyboardInterrupt:
                if CHECKER_FD not in os.environ:  # the reader's own
                    raise
                self.late = True
                return {"error": INTERRUPTED}  # so that the other inputs' values are recorded


class _Printed(io.StringIO):
    """A text stream that keeps the first characters written to it."""

    def write(self, text: str) -> int:
        room = PRINTED - self.tell()
        if room >= 0:
            super().write(text[:room] + CUT if len(text) > room else text)
        return len(text)


def _request(message: dict[str, Any]) -> dict[str, Any]:
    """The checker's reply. If an earlier request was interrupted, its reply is dropped first."""
    global _socket, _unread
    if _socket is None:
        import socket

        _socket = socket.socket(fileno=int(os.environ[CHECKER_FD]))
    while _unread:
        _reply(_socket)
    with _uninterrupted():
        send(_socket, message)
        _unread += 1
    reply = _reply(_socket)
    if "error" in reply:
        raise registry.UnknownQuestion(reply["error"])
    return reply


def _reply(sock: "socket.socket") -> dict[str, Any]:
    """The next reply. Only waiting for it can be interrupted, not reading it."""
    global _unread
    import select

    select.select([sock], [], [])
    with _uninterrupted():
        _unread -= 1
        return receive(sock)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay an interrupt until the end of the body, so that it can't cut a message in two."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
        if came:
            signal.raise_signal(signal.SIGINT)
