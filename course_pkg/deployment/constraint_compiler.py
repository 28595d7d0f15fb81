"""Constraints to guides, in a process of its own that is killed if it takes too long.

A thread would not do. It can't be stopped, so that one request could keep a core busy for minutes.
And a thread that computes in Python holds the interpreter's lock: the event loop and the engine's
thread would wait for it, many times in each step.

The process starts with the first constraint, which takes some seconds. It has one constraint at a
time; others wait. Guides are kept, so that a constraint is compiled once for all requests.
Chapter: deployment/server.
"""

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from course_pkg.constrained.automaton import build_automaton
from course_pkg.constrained.guide import Guide
from course_pkg.constrained.json_schema import schema_expression
from course_pkg.constrained.regex import parse
from course_pkg.constrained.vocabulary import Vocabulary
from course_pkg.deployment.api_errors import ApiError, invalid
from course_pkg.deployment.output_format import Constraint

MOST_STATES_KEPT = 20_000  # of all guides that are kept: about 140 MB for SmolLM2
MODULE = "course_pkg.deployment.constraint_compiler"  # also where this file runs as a program
log = logging.getLogger(__name__)


def compile_constraint(kind: str, text: str, vocabulary: Vocabulary) -> Guide:
    """The guide of a constraint: a regular expression, or the JSON text of a schema.

    kind: "regex" or "json". Raises ValueError for a constraint that is wrong, not supported or
    impossible, RecursionError for one that is nested too deeply.

    >>> guide = compile_constraint("json", "true", Vocabulary([b"null", b"</s>"], eos=[1]))
    >>> guide.allowed(guide.start)
    [0]
    """
    expression = parse(text) if kind == "regex" else schema_expression(json.loads(text))
    return Guide(build_automaton(expression), vocabulary)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary.

    vocabulary: gives it, in another thread, when the first constraint comes. seconds: for one
    constraint, from the time that the process is ready for it.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], seconds: float):
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="constraints")
        self._process: subprocess.Popen | None = None
        self._guides: dict[tuple[str, str], Guide] = {}  # by kind and text, the oldest first
        self._stopping = False

    async def guide(self, constraint: Constraint) -> Guide:
        """The compiled constraint. Raises ApiError: 400 with the reason, also if it takes too long;
        503 while the server stops."""
        self._check_running()
        key = constraint.kind, constraint.text
        if (kept := self._guides.get(key)) is not None:
            return kept
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._compile, key)
        except ValueError as error:
            field = constraint.field
            raise invalid(f"{field}: {error}", field, log=f"{field} is not compiled") from None

    def stop(self) -> None:
        """End the process."""
        self._stopping = True
        process = self._process
        if process is not None:
            process.kill()
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    # The thread's side.

    def _compile(self, key: tuple[str, str]) -> Guide:
        if key in self._guides:  # another request has had the same constraint
            return self._guides[key]
        vocabulary = self._vocabulary()
        process = self._running(vocabulary)
        start = time.monotonic()
        killer = threading.Timer(self._seconds, process.kill)
        killer.start()
        try:
            _send(process.stdin, key)
            found = _Unpickler(process.stdout, vocabulary).load()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._end()
            self._check_running()
            if time.monotonic() - start < self._seconds:
                log.exception("the compiler of constraints failed")
                raise ApiError(500, "the constraint's compiler failed") from None
            raise ValueError(
                f"it takes longer than {self._seconds:g} s to compile: shorten it, or lower its "
                "counted repetitions, such as {1,1000} and maxLength"
            ) from None
        finally:
            killer.cancel()
        if isinstance(found, str):
            raise ValueError(found)
        self._keep(key, found)
        return found

    def _running(self, vocabulary: Vocabulary) -> subprocess.Popen:
        """The process, started if there is none, ready for a constraint."""
        self._check_running()
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-m", MODULE]
            # Ctrl-C in a terminal goes to a whole group, and this process must finish its work.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            try:
                _send(self._process.stdin, (list(vocabulary.tokens), vocabulary.eos))
                pickle.load(self._process.stdout)
            except (EOFError, OSError):
                self._end()
                self._check_running()
                log.exception("the compiler of constraints does not start")
                raise ApiError(500, "the constraint's compiler does not start") from None
        self._check_running()  # again, because the start takes long
        return self._process

    def _keep(self, key: tuple[str, str], guide: Guide) -> None:
        self._guides[key] = guide
        while sum(len(each.states) for each in self._guides.values()) > MOST_STATES_KEPT:
            del self._guides[next(iter(self._guides))]

    def _end(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what is left in its buffer can't be written any more
                    pipe.close()

    def _check_running(self) -> None:
        if self._stopping:
            raise ApiError(503, "the server stops")


class _Pickler(pickle.Pickler):
    """Leaves the vocabulary out, which both sides have."""

    def persistent_id(self, value: Any) -> str | None:
        return "vocabulary" if isinstance(value, Vocabulary) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: BinaryIO, vocabulary: Vocabulary):
        super().__init__(source)
        self._vocabulary = vocabulary

    def persistent_load(self, name: str) -> Vocabulary:
        return self._vocabulary


def _send(pipe: BinaryIO, value: Any) -> None:
    _Pickler(pipe, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    pipe.flush()


def main() -> None:
    """Compile what comes on standard input until it ends: the program of the process."""
    os.nice(10)  # those who wait for tokens come first
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # a library that prints must not come between the answers
    vocabulary = Vocabulary(*pickle.load(sys.stdin.buffer))
    _ = vocabulary.trie  # computed now, outside the time limit
    _send(answers, "ready")
    while True:
        try:
            kind, text = pickle.load(sys.stdin.buffer)
        except EOFError:
            return  # the server has ended
        try:
            found = compile_constraint(kind, text, vocabulary)
        except ValueError as error:
            found = str(error)
        except RecursionError:
            found = "it is nested too deeply"
        _send(answers, found)


if __name__ == "__main__":
    main()
