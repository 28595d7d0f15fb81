"""The engine in a thread of its own, and the event loop's side of what it generates.

An engine belongs to one thread, and a step computes for milliseconds to seconds, so the event loop
never calls it. Commands (add, abort) go to the thread through a queue, which it empties between any
two steps. Pieces of text come back with `call_soon_threadsafe`, once per step for all requests.

A Call holds the pieces that its reader has not taken. A reader that is too far behind loses its
request: one slow client must not stop the engine, nor fill the memory. Chapter: deployment/server.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from course_pkg.deployment.errors import ApiError, invalid
from course_pkg.serving.engine import Engine
from course_pkg.serving.request import LogProb, Request, SamplingParams

log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """One token of the sample with this index, and the text that became certain with it."""

    index: int
    text: str
    logprob: LogProb | None
    finish_reason: str | None


class Call:
    """What one HTTP request asks of the engine: a request for each of its prompts.

    Samples are numbered over all prompts: index = prompt · n + sample. Iterate over it for lists of
    the pieces that have come, which ends with the last one or raises an ApiError; then `close` it.
    """

    def __init__(self, prompts: list[list[int]], params: SamplingParams, adapter: str | None):
        self.prompts, self.params, self.adapter = prompts, params, adapter
        self.deadline = float("inf")  # of the event loop's clock
        self.requests: list[Request] = []  # the engine's, in the order of the prompts
        self.tokens = 0  # how many have come
        self.started = time.monotonic()
        self.first = self.last = 0.0  # when tokens came
        self.error: ApiError | None = None
        self._open = len(prompts) * params.n  # samples
        self._pieces: deque[Piece] = deque()
        self._change = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether the engine has nothing more to do for it."""
        return self.error is not None or not self._open

    def put(self, pieces: list[Piece], backlog: int) -> None:
        """Take the pieces of a step; fail if more than `backlog` wait for the reader."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.tokens += len(pieces)
        self._open -= sum(piece.finish_reason is not None for piece in pieces)
        self._pieces.extend(pieces)
        if len(self._pieces) > backlog + len(pieces):
            self.fail(ApiError(408, f"the reader is more than {backlog} tokens behind"))
        self._change.set()

    def fail(self, error: ApiError) -> None:
        """End it with an error, unless it has ended; what its reader has not taken is dropped."""
        if not self.done:
            self.error = error
            self._pieces.clear()
            self._change.set()

    def __aiter__(self) -> "Call":
        return self

    async def __anext__(self) -> list[Piece]:
        late = False
        try:
            async with asyncio.timeout_at(self.deadline):
                while not self._pieces and not self.done:
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            late = True
        if late or asyncio.get_running_loop().time() > self.deadline:
            self.fail(ApiError(504, "the answer took too long", code="timeout"))
        if self.error is not None:
            raise self.error
        if not self._pieces:
            raise StopAsyncIteration
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces


class EngineThread:
    """Runs an engine's steps while there is work. Use it from the event loop that started it."""

    def __init__(self, engine: Engine, backlog: int):
        self.engine, self.backlog = engine, backlog
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended: ApiError | None = None  # why it takes no more calls
        self.prompt_tokens = self.new_tokens = 0  # of prompts with a first token; generated
        self._calls: dict[int, Call] = {}  # by the id of each of its engine requests; the thread's
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it takes calls."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End all calls, and wait for the thread."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def submit(self, call: Call) -> None:
        """Give a call to the engine. Raises ApiError (400) if it refuses a prompt."""
        answer = self._loop.create_future()
        self._commands.put(partial(self._add, call, answer))
        try:
            await answer
        except asyncio.CancelledError:
            self.close(call)
            raise

    def close(self, call: Call) -> None:
        """Abort what is left of a call, so that its blocks are free after the next step."""
        self._commands.put(partial(self._abort, call))

    # The thread's side.

    def _run(self) -> None:
        try:
            while (command := self._next()) is not None:
                command()
            self._ended = ApiError(503, "the server stops")
        finally:
            self._finish()

    def _finish(self) -> None:
        """End all calls, and refuse those that have come meanwhile."""
        self._ended = self._ended or ApiError(500, "the engine failed")
        self._end(list(self._calls.values()), self._ended)
        while not self._commands.empty():
            if (command := self._commands.get()) is not None:
                command()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._commands.get(block=not self.engine.requests)
        except Empty:
            return self._step

    def _add(self, call: Call, answer: asyncio.Future) -> None:
        error = self._ended
        try:
            for prompt in call.prompts if error is None else ():
                request = self.engine.add(prompt, call.params, adapter=call.adapter)
                call.requests.append(request)
                self._calls[request.id] = call
        except ValueError as refusal:
            error = invalid(str(refusal), log="the engine refused the request")
        except Exception:
            log.exception("a request could not be added")
            error = ApiError(500, "the engine failed")
        if error is not None:
            self._abort(call)
        self._tell(_settle, answer, error)

    def _abort(self, call: Call) -> None:
        for request in call.requests:
            self.engine.abort(request)
            self._calls.pop(request.id, None)

    def _step(self) -> None:
        try:
            chunks = self.engine.step()
        except Exception:
            log.exception("a step failed")
            calls = set(self._calls.values())
            ended = [call for call in calls if any(request.done for request in call.requests)]
            # If none ended, the next step would fail in the same way.
            error = ApiError(500, "the engine failed while it computed this request")
            self._end(ended or list(calls), error)
            return
        news: dict[Call, list[Piece]] = {}
        for request, completion, _, text in chunks:
            call, size = self._calls[request.id], request.params.n
            index = call.requests.index(request) * size + completion.index
            logprob = completion.logprobs[-1] if completion.logprobs else None
            piece = Piece(index, text, logprob, completion.finish_reason)
            news.setdefault(call, []).append(piece)
            if completion.index == 0 and len(completion.tokens) == 1:
                self.prompt_tokens += len(request.prompt)
        self.new_tokens += len(chunks)
        for id in {chunk.request.id for chunk in chunks if chunk.request.done}:
            del self._calls[id]
        if news:
            self._tell(self._deliver, news)
        failed = {call for call in self._calls.values() if any(r.error for r in call.requests)}
        error = ApiError(500, "the model gave no valid next token for this request")
        self._end(list(failed), error)

    def _end(self, calls: list[Call], error: ApiError) -> None:
        for call in calls:
            self._abort(call)
            self._tell(call.fail, error)

    def _tell(self, function: Callable, *arguments: object) -> None:
        """Call a function in the event loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, news: dict[Call, list[Piece]]) -> None:
        for call, pieces in news.items():
            if not call.done:
                call.put(pieces, self.backlog)
                if call.error is not None:
                    self.close(call)


def _settle(answer: asyncio.Future, error: ApiError | None) -> None:
    if not answer.done():  # the client may have gone
        answer.set_exception(error) if error else answer.set_result(None)
