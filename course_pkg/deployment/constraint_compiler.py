"""Constraints to guides, in a process of its own that is killed if it takes too long.

A thread can't be stopped, and one that computes in Python holds the interpreter's lock: the event
loop and the engine's thread would wait for it, many times in each step.

The process starts with the first constraint, which takes some seconds. If one takes long, the next
process starts meanwhile. Guides are kept, and refusals for a while.
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
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from course_pkg.deployment.api_errors import ApiError, busy, invalid
from course_pkg.deployment.schemas import Constraint
from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.regex import parse
from course_pkg.serving.constrained.vocabulary import Vocabulary

MOST_STATES_KEPT = 20_000  # of all guides that are kept: about 140 MB for SmolLM2
REFUSED_SECONDS = 600.0  # for which a refusal is remembered; a busy machine may cause one
MOST_REFUSALS = 256
RETRY_SECONDS = 5
SLOW_SECONDS = 1.0  # of a constraint; then it may end the process
MODULE = "course_pkg.deployment.constraint_compiler"  # also where this file runs as a program
Key = tuple[str, str]  # a constraint's kind and text
log = logging.getLogger(__name__)


def compile_constraint(kind: str, text: str, vocabulary: Vocabulary) -> Guide:
    """The guide of a regular expression ("regex"), or of a schema's JSON text ("json")."""
    if kind == "regex":
        expression = parse(text, anchors=True)
    else:
        expression = schema_expression(json.loads(text))
    return Guide(build_automaton(expression), vocabulary)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary.

    Args:
        vocabulary: gives it, in another thread, when the first constraint comes.
        seconds: for one constraint, from the time that the process is ready for it.
        waiting: different constraints that may wait or be compiled at once.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], seconds: float, waiting: int):
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._most_waiting = waiting
        self._clock = time.monotonic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="constraints")
        self._process: _Process | None = None
        self._spare: _Process | None = None  # while a constraint takes long: it may be killed
        self._guides: dict[Key, Guide] = {}  # the oldest first
        self._refusals: dict[Key, tuple[float, str]] = {}  # until when, and why; the oldest first
        self._waiting: dict[Key, tuple[asyncio.Future[Guide], list[object]]] = {}
        self._stopping = False

    async def guide(self, constraint: Constraint) -> Guide:
        """The compiled constraint.

        Raises:
            ApiError: 400 with the reason, also if it takes too long; 429 if too many others wait;
                503 while the server stops.
        """
        self._check_running()
        key = constraint.kind, constraint.text
        if (kept := self._guides.get(key)) is not None:
            return kept
        try:
            self._check_refused(key)
            return await self._wait(key)
        except ValueError as error:
            field = constraint.field
            raise invalid(f"{field}: {error}", field, log=f"{field} is not compiled") from None

    def stop(self) -> None:
        self._stopping = True
        for process in (self._process, self._spare):
            if process is not None:
                process.popen.kill()
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    async def _wait(self, key: Key) -> Guide:
        """The guide of a constraint, which is compiled once for all who wait for it."""
        if key not in self._waiting:
            if len(self._waiting) >= self._most_waiting:
                waiting = f"{len(self._waiting)} other constraints wait to be compiled"
                raise busy(waiting, RETRY_SECONDS)
            loop = asyncio.get_running_loop()
            self._waiting[key] = loop.run_in_executor(self._thread, self._compile, key), []
        future, readers = self._waiting[key]
        reader = object()
        readers.append(reader)
        try:
            return await asyncio.shield(future)
        finally:
            readers.remove(reader)
            if not readers:
                future.cancel()  # unless it has begun
                self._waiting.pop(key, None)

    def _check_refused(self, key: Key) -> None:
        until, reason = self._refusals.get(key, (0.0, ""))
        if self._clock() < until:
            raise ValueError(reason)

    # The thread's side.

    def _compile(self, key: Key) -> Guide:
        if key in self._guides:  # it was asked for again while its last reader went
            return self._guides[key]
        self._check_refused(key)
        vocabulary = self._vocabulary()
        process = self._running(vocabulary)
        answer = self._ask(process, key, vocabulary)
        if isinstance(answer, str):
            self._refusals[key] = self._clock() + REFUSED_SECONDS, answer
            if len(self._refusals) > MOST_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            raise ValueError(answer)
        self._guides[key] = answer
        while sum(len(guide.states) for guide in self._guides.values()) > MOST_STATES_KEPT:
            del self._guides[next(iter(self._guides))]
        return answer

    def _ask(self, process: "_Process", key: Key, vocabulary: Vocabulary) -> Guide | str:
        """What the process answers, or why it was ended."""
        start = time.monotonic()
        killer = threading.Timer(self._seconds, process.popen.kill)
        preparing = threading.Timer(SLOW_SECONDS, self._prepare, [vocabulary])
        killer.start()
        preparing.start()
        try:
            return process.ask(key)
        except (EOFError, OSError, pickle.UnpicklingError):
            preparing.cancel()
            self._end()
            self._check_running()
            if time.monotonic() - start < self._seconds:
                log.exception("the compiler of constraints failed")
                raise ApiError(500, "the constraint's compiler failed") from None
            return (
                f"it takes longer than {self._seconds:g} s to compile: shorten it, or lower its "
                "counted repetitions, such as {1,1000} and maxLength"
            )
        finally:
            killer.cancel()
            preparing.cancel()

    def _running(self, vocabulary: Vocabulary) -> "_Process":
        self._check_running()
        if self._process is None or self._process.popen.poll() is not None:
            self._end()
            spare = self._spare
            self._spare = None
            is_alive = spare is not None and spare.popen.poll() is None
            self._process = spare if is_alive else _Process(vocabulary)
            if not self._process.wait_until_ready():
                self._end()
                self._check_running()
                raise ApiError(500, "the constraint's compiler does not start")
        self._check_running()  # again, because the start takes long
        return self._process

    def _prepare(self, vocabulary: Vocabulary) -> None:
        """Start the process for what comes after a constraint that may take too long."""
        if self._spare is None and not self._stopping:
            self._spare = _Process(vocabulary)
            if self._stopping:  # meanwhile
                self._spare.popen.kill()

    def _end(self) -> None:
        """End the process; if the server stops, the one that is ready too."""
        ended = [self._process]
        self._process = None
        if self._stopping:
            ended.append(self._spare)
            self._spare = None
        for process in ended:
            if process is not None:
                process.end()

    def _check_running(self) -> None:
        if self._stopping:
            raise ApiError(503, "the server stops")


class _Process:
    """A process that compiles. Its start takes seconds, and waits for nobody."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._is_ready = False
        # Ctrl-C in a terminal goes to a whole group, and this process must finish its work.
        self.popen = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._starting = threading.Thread(target=self._start, daemon=True)
        self._starting.start()

    def wait_until_ready(self) -> bool:
        self._starting.join()
        return self._is_ready

    def ask(self, key: Key) -> Guide | str:
        """The guide of a constraint, or why it has none. Raises an error if the process ends."""
        _send(self.popen.stdin, key)
        return _Unpickler(self.popen.stdout, self._vocabulary).load()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._starting.join()
        for pipe in (self.popen.stdin, self.popen.stdout):
            with suppress(OSError):  # what is left in its buffer can't be written any more
                pipe.close()

    def _start(self) -> None:
        try:
            _send(self.popen.stdin, (list(self._vocabulary.tokens), self._vocabulary.eos))
            self._is_ready = pickle.load(self.popen.stdout) == "ready"
        except (EOFError, OSError, pickle.UnpicklingError):
            log.warning("the compiler of constraints does not start")


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
            answer = compile_constraint(kind, text, vocabulary)
        except ValueError as error:
            answer = str(error)
        except RecursionError:
            answer = "it is nested too deeply"
        except Exception:  # whatever it is, the next constraint is compiled here
            traceback.print_exc()
            answer = "the compiler failed on it"
        _send(answers, answer)


if __name__ == "__main__":
    main()
