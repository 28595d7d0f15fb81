"""The engine in a thread of its own, and the event loop's side of what it generates.

An engine belongs to one thread, and a step computes for milliseconds to seconds, so the event loop
never calls it. Commands (add, abort) go to the thread through a queue, which it empties between any
two steps. Chunks of text come back with `call_soon_threadsafe`, once per step for all requests.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from course_pkg.deployment.api_errors import ApiError, invalid
from course_pkg.serving.engine import Engine
from course_pkg.serving.request import Chunk, Completion, Request
from course_pkg.serving.sampling import SamplingParams

log = logging.getLogger(__name__)


class Call:
    """What one HTTP request asks of the engine: a request for each of its prompts.

    Iterate over it for lists of the chunks that have come, which ends with the last one or raises
    an ApiError; then `close` it.
    """

    def __init__(self, prompts: list[list[int]], params: SamplingParams, adapter: str | None):
        self.prompts = prompts
        self.params = params
        self.adapter = adapter
        self.deadline = float("inf")  # of the event loop's clock
        self.requests: list[Request] = []  # the engine's, in the order of the prompts
        self.tokens = 0  # how many have come
        self.started = time.monotonic()
        self.first = 0.0  # when the first token came
        self.last = 0.0  # when the last one came
        self.error: ApiError | None = None
        self._open = len(prompts) * params.n  # samples
        self._chunks: deque[Chunk] = deque()
        self._change = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether the engine has nothing more to do for it."""
        return self.error is not None or not self._open

    def index(self, completion: Completion) -> int:
        """The sample's number over all prompts: prompt · n + sample."""
        return self.requests.index(completion.request) * self.params.n + completion.index

    def put(self, chunks: list[Chunk], backlog: int) -> None:
        """Take the chunks of a step; fail if more than `backlog` wait for the reader."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.tokens += len(chunks)
        self._open -= len([chunk for chunk in chunks if chunk.finish_reason])
        self._chunks.extend(chunks)
        if len(self._chunks) > backlog + len(chunks):
            self.fail(ApiError(408, f"the reader is more than {backlog} tokens behind"))
        self._change.set()

    def fail(self, error: ApiError) -> None:
        """End it with an error, unless it has ended; what its reader has not taken is dropped."""
        if not self.done:
            self.error = error
            self._chunks.clear()
            self._change.set()

    def __aiter__(self) -> "Call":
        return self

    async def __anext__(self) -> list[Chunk]:
        late = False
        try:
            async with asyncio.timeout_at(self.deadline):
                while not self._chunks and not self.done:
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            late = True
        if late or asyncio.get_running_loop().time() > self.deadline:
            self.fail(ApiError(504, "the answer took too long", code="timeout"))
        if self.error is not None:
            raise self.error
        if not self._chunks:
            raise StopAsyncIteration
        chunks = list(self._chunks)
        self._chunks.clear()
        return chunks


class EngineThread:
    """Runs an engine's steps while there is work. Use it from the event loop that started it."""

    def __init__(self, engine: Engine, backlog: int):
        self.engine = engine
        self.backlog = backlog
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended: ApiError | None = None  # why it takes no more calls
        self.prompt_tokens = 0  # of prompts with a first token
        self.new_tokens = 0  # generated
        self._calls: dict[int, Call] = {}  # by the id of each of its engine requests; the thread's
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
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
        call.params = _without_guide(call.params)  # the requests have it as long as they need it
        if error is not None:
            self._abort(call)
        self._tell(_settle, answer, error)

    def _abort(self, call: Call) -> None:
        for request in call.requests:
            self.engine.abort(request)
            self._calls.pop(request.id, None)
            request.params = _without_guide(request.params)

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
        chunks_of: dict[Call, list[Chunk]] = {}
        for chunk in chunks:
            completion = chunk.completion
            call = self._calls[completion.request.id]
            chunks_of.setdefault(call, []).append(chunk)
            if completion.index == 0 and len(completion.tokens) == 1:
                self.prompt_tokens += len(completion.request.prompt)
        self.new_tokens += len(chunks)
        requests = {chunk.completion.request for chunk in chunks}
        for request in requests:
            if request.done:
                del self._calls[request.id]
                request.params = _without_guide(request.params)
        if chunks_of:
            self._tell(self._deliver, chunks_of)
        failed = {call for call in self._calls.values() if any(r.error for r in call.requests)}
        error = ApiError(500, "the model gave no valid next token for this request")
        self._end(list(failed), error)

    def _end(self, calls: list[Call], error: ApiError) -> None:
        for call in calls:
            self._abort(call)
            self._tell(call.fail, error)

    def _tell(self, function: Callable, *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, chunks_of: dict[Call, list[Chunk]]) -> None:
        for call, chunks in chunks_of.items():
            if not call.done:
                call.put(chunks, self.backlog)
                if call.error is not None:
                    self.close(call)


def _without_guide(params: SamplingParams) -> SamplingParams:
    """The parameters of what is over: a guide may have 70 MB.

    A request and its completions refer to each other, so that they are there until the next
    collection of garbage; the guide must not wait for it.
    """
    return params if params.guide is None else replace(params, guide=None)


def _settle(answer: asyncio.Future, error: ApiError | None) -> None:
    if not answer.done():  # the client may have gone
        answer.set_exception(error) if error else answer.set_result(None)
