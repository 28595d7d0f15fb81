"""The process of a problem's tests, in a sandbox of its own: call the program, compare, and judge.

The tests call a stand-in, and the program's process sends plain values back. So a program can't
replace `assert`, compare equal to everything, end the tests early, or write a verdict.
"""

import json
import os
import reprlib
import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from course_pkg.studies.code_benchmarks.program_channel import (
    MessageTooLong,
    NotSendable,
    from_plain,
    receive,
    send,
    to_plain,
)
from course_pkg.studies.code_benchmarks.program_process import LONGEST_TEXT, describe, limit_cpu


class ProgramVerdict(StrEnum):
    """How a program ended."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong answer"
    EXCEPTION = "exception"
    SYNTAX_ERROR = "syntax error"
    NOT_DEFINED = "function not defined"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    PROCESS_LIMIT = "process limit"
    MESSAGE_LIMIT = "message limit"
    EXITED = "exited"
    KILLED = "killed"


@dataclass(frozen=True)
class ProgramResult:
    """A verdict on one program.

    Attributes:
        detail: one printable line: a failed test with its value, an exception, or a limit.
        calls: of the function that were answered with a value.
    """

    verdict: ProgramVerdict
    detail: str = ""
    calls: int = 0

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return self.verdict is ProgramVerdict.PASSED


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60
ENDED = "ended"  # the program's process closed its channel; how it ended, others know


class ProgramStopped(BaseException):
    """There will be no more values. Not an Exception, so that no test handles it."""

    def __init__(self, verdict: str, detail: str = "") -> None:
        super().__init__(verdict, detail)
        self.verdict = verdict
        self.detail = detail


class StandIn:
    """Called like the function under test; the program's process computes the value."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.asked = False  # whether the program was called at all
        self.calls = 0
        self.last = ""  # the last call with its value

    def wait_until_defined(self) -> None:
        """Wait until the program has defined its function."""
        answer = self._receive()
        if "syntax" in answer:
            raise ProgramStopped(ProgramVerdict.SYNTAX_ERROR, _text(answer["syntax"]))
        if "missing" in answer:
            raise ProgramStopped(ProgramVerdict.NOT_DEFINED)
        self._raise_if_raised(answer)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        call = {"positional": to_plain(list(positional)), "keywords": to_plain(keywords)}
        try:
            send(self._channel, call)
        except OSError:
            raise ProgramStopped(ENDED) from None
        self.asked = True
        answer = self._receive()
        self._raise_if_raised(answer)
        if "too_long" in answer:
            raise ProgramStopped(ProgramVerdict.MESSAGE_LIMIT, _text(answer["too_long"]))
        if "not_plain" in answer:
            raise ProgramStopped(ProgramVerdict.WRONG_ANSWER, _text(answer["not_plain"]))
        try:
            value = from_plain(answer["value"])
        except (KeyError, ValueError, RecursionError):
            raise ProgramStopped(ProgramVerdict.WRONG_ANSWER, "no value came back") from None
        self.calls += 1
        named = [f"{name}={_shown(argument)}" for name, argument in keywords.items()]
        self.last = f"({', '.join([*map(_shown, positional), *named])}) returned {_shown(value)}"
        return value

    def _receive(self) -> dict[str, Any]:
        try:
            answer = receive(self._channel)
        except MessageTooLong as error:
            raise ProgramStopped(ProgramVerdict.MESSAGE_LIMIT, str(error)) from None
        except ValueError:
            raise ProgramStopped(ProgramVerdict.WRONG_ANSWER, "no value came back") from None
        if answer is None:
            raise ProgramStopped(ENDED)
        return answer

    def _raise_if_raised(self, answer: dict[str, Any]) -> None:
        if "raised" in answer:
            detail = _text(answer["raised"])
            left = detail.partition(":")[0] == "SystemExit"
            raise ProgramStopped(
                ProgramVerdict.EXITED if left else ProgramVerdict.EXCEPTION, detail
            )


def run(job: dict[str, Any], descriptors: list[int]) -> None:
    """The fork server's target. descriptors: a pipe for the verdict, the channel, the tests."""
    limit_cpu(job["cpu_s"])
    verdict, channel, source = descriptors
    with os.fdopen(source, "rb") as file:
        tests = json.loads(file.read())
    judgment = judge(
        tests["setup"], tests["checks"], job["entry_point"], socket.socket(fileno=channel)
    )
    os.write(verdict, json.dumps(judgment).encode())


def judge(
    setup: str, checks: list[str], entry_point: str, channel: socket.socket
) -> dict[str, Any]:
    """Run the checks against the program at the other end of the channel.

    Returns `verdict`, `detail` and `calls`; if the tests themselves can't run, `broken` says why.
    """
    stand_in = StandIn(channel)
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(setup, "<setup>", "exec"), names)
        codes = [compile(check, "<tests>", "exec") for check in checks]
    except Exception as error:
        return {"broken": describe(error)}
    names |= {entry_point: stand_in, "candidate": stand_in}
    detail = ""
    verdict: str = ProgramVerdict.PASSED
    try:
        stand_in.wait_until_defined()
        for code in codes:
            exec(code, names)
        if not stand_in.asked:
            return {"broken": f"they never call {entry_point}, so every program would pass"}
    except ProgramStopped as stopped:
        verdict, detail = stopped.verdict, stopped.detail
    except MemoryError:  # the program can cause it, with a large value
        verdict, detail = ProgramVerdict.MEMORY_LIMIT, "in the tests"
    except Exception as error:  # an assertion, or a comparison with a value of another type
        if isinstance(error, NotSendable) or not stand_in.asked:
            return {"broken": describe(error)}
        verdict = ProgramVerdict.WRONG_ANSWER
        detail = f"{entry_point}{stand_in.last}"
        if not isinstance(error, AssertionError):
            detail += f", and comparing it raised {describe(error)}"
    return {"verdict": str(verdict), "detail": _one_line(detail), "calls": stand_in.calls}


def _one_line(text: str) -> str:
    """Escape what isn't printable: a terminal would obey a program's control characters."""
    start = text[:LONGEST_TEXT]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in start)[:LONGEST_TEXT]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _shown(value: Any) -> str:
    try:
        return SHORT.repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a very large integer"
