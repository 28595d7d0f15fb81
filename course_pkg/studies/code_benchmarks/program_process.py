"""The process of a program under test: define the function, and answer calls.

The program can do anything here, so nothing here decides a verdict, and it never sees a test or an
expected value. A supervisor reports how it ended, which only gives a failure its name.
"""

import json
import os
import resource
import socket
import sys
import types
from typing import Any, NoReturn

from course_pkg.sandbox.enter import PR_SET_DUMPABLE, libc
from course_pkg.studies.code_benchmarks.program_channel import (
    MessageTooLong,
    from_plain,
    receive,
    send,
    to_plain,
)

LONGEST_TEXT = 300  # characters of an error's message


def run(job: dict[str, Any], descriptors: list[int]) -> None:
    """The fork server's target. descriptors: a pipe for how it ended, the channel, the program."""
    report, channel, source = descriptors
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program can't open this process's descriptors
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.close(report)
        _run_program(job, socket.socket(fileno=channel), source)
    os.close(channel)
    os.close(source)
    _, status, used = os.wait4(child, 0)
    cpu_s = used.ru_utime + used.ru_stime
    ended = {"exit": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s}
    os.write(report, json.dumps(ended).encode())


def _run_program(job: dict[str, Any], channel: socket.socket, source: int) -> NoReturn:
    limit_cpu(job["cpu_s"])
    with os.fdopen(source, "rb") as file:
        text = file.read().decode(errors="surrogatepass")
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        code = compile(text, "<program>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        _leave(channel, {"syntax": describe(error)})
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        _leave(channel, {"raised": describe(error)})
    function = getattr(module, job["entry_point"], None)
    if not callable(function):
        _leave(channel, {"missing": True})
    send(channel, {"ready": True})
    while (call := receive(channel)) is not None:
        try:
            send(channel, _answer(function, call))
        except MessageTooLong as error:
            _leave(channel, {"too_long": describe(error)})
    os._exit(0)


def _answer(function: Any, call: dict[str, Any]) -> dict[str, Any]:
    positional = from_plain(call["positional"])
    keywords = from_plain(call["keywords"])
    try:
        value = function(*positional, **keywords)
    except BaseException as error:
        return {"raised": describe(error)}
    try:
        return {"value": to_plain(value)}
    except Exception as error:  # also of a method of the value's own class
        return {"not_plain": describe(error)}


def _leave(channel: socket.socket, last: dict[str, Any]) -> NoReturn:
    send(channel, last)
    os._exit(0)


def describe(error: BaseException) -> str:
    """An exception in one line, its type first."""
    try:
        text = str(error)
    except Exception:  # a program's own exception may have any __str__
        text = ""
    name = type(error).__name__
    return f"{name}: {text}"[:LONGEST_TEXT] if text else name


def limit_cpu(seconds: int) -> None:
    """Limit this process's own processor time: SIGXCPU, and SIGKILL one second later."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
