"""Sends submissions to the workers that suit them, and follows workers as they come and go.

It runs in the process of `gateway_main`, as all of Dask does (`dask_client`). `placement` decides
who runs what.

Chapter: appendix/threat-model.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from course_pkg.common.scheduler_address import why_open
from course_pkg.grading.classroom.cluster import frames
from course_pkg.grading.classroom.cluster.dask_client import DaskClient, Disconnected, Requests
from course_pkg.grading.classroom.cluster.gateway_guard import machine_of
from course_pkg.grading.classroom.cluster.messages import MAX_WORDS, Reply, reply_bytes
from course_pkg.grading.classroom.cluster.placement import Placement
from course_pkg.grading.questions.display import one_line

POLL_S = 0.5
AGAIN_S = 2.0  # before a submission or worker is tried again whose connection ended
NONE_LEFT_S = 10.0  # without a worker that can run anything: then it is said
NONE_LEFT = "no worker of the cluster is left that can run submissions: waiting for one"
ROOM_TO_WAIT = 64  # submissions that are told at a time that there is no GPU
NO_WORKER_HAS_ONE = "no worker of the cluster has a GPU (a Dask resource: `--resources GPU=1`)"


class Gateway:
    """One run's connection to a cluster.

    start: what `ClusterExecutor` sends first. clock: of the event loop that it runs in.
    """

    def __init__(
        self,
        dask: DaskClient,
        writer: asyncio.StreamWriter,
        start: dict[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dask = dask
        self._writer = writer
        self._clock = clock
        self._requests = Requests(dask, start)
        self._placement = Placement(start["need"])
        self._grace_s = start["grace_s"]
        self._payloads: dict[int, bytes] = {}
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._room = -1
        self._no_gpu = NO_WORKER_HAS_ONE
        self._broken = ""
        self._bad_since: float | None = None
        self._quiet_until = self._clock() + NONE_LEFT_S

    def submit(self, number: int, payload: bytes) -> None:
        """Take a submission."""
        self._payloads[number] = payload
        self._placement.add(number)
        self._place()

    async def watch(self) -> str:
        """Follow the workers as they come and go, until nothing can be run; the reason."""
        while True:
            try:
                scheduler, found = await self._dask.workers()
            except (OSError, TimeoutError) as error:
                if await self._dask.connects_again():
                    continue
                return f"the scheduler does not answer ({type(error).__name__}: {error})"
            if why := why_open(scheduler):
                return f"the scheduler is refused: {why}"
            new, lost = self._placement.update(found)
            for number in lost:
                self._attempts.pop(number).cancel()
                self._give_up(number)
            for address in new:
                if why := why_open(address):
                    self._refuse(address, why)
                elif self._placement.wants(address):
                    self._prepare(address)
            self._place()
            self._say_if_none_is_left()
            if why := self._broken or self._unusable():
                return why
            self._send(frames.Frame(frames.ALIVE))
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Cancel what runs, also in the workers."""
        for task in (*self._attempts.values(), *self._preparing.values()):
            task.cancel()
        await self._dask.close([a for a, w in self._placement.workers.items() if w.running])

    def _unusable(self) -> str:
        """Why all workers are refused, once that has lasted; sends on what needs a GPU."""
        refusals = self._placement.refusals()
        no_gpu = self._placement.no_gpu()
        if self._placement.left or not (refusals or no_gpu):
            self._bad_since = None
            return ""
        self._bad_since = self._bad_since or self._clock()
        if self._clock() - self._bad_since < self._grace_s:
            return ""
        if refusals:
            return f"no worker of the cluster can grade: {'; '.join(refusals)}"
        self._tell_room(ROOM_TO_WAIT)
        for number in self._payloads.keys() - self._attempts.keys():
            self._answer(frames.said(frames.NO_GPU, self._no_gpu, number))
        return ""

    def _say_if_none_is_left(self) -> None:
        if self._placement.room() or not self._payloads:
            self._quiet_until = self._clock() + NONE_LEFT_S
        elif self._clock() > self._quiet_until:
            self._quiet_until = math.inf  # until a worker can run submissions again
            self._send(frames.said(frames.NOTE, NONE_LEFT))

    def _give_up(self, number: int) -> None:
        """Answer for a submission that has taken down too many workers."""
        if self._placement.given_up(number):
            self._answer(frames.Frame(frames.GIVEN_UP, number))

    def _tell_room(self, room: int) -> None:
        if room != self._room:
            self._room = room
            self._send(frames.Frame(frames.ROOM, room))

    def _place(self) -> None:
        for number, address in self._placement.place():
            self._attempts[number] = self._start(self._attempt(number, address))
        if room := self._placement.room():
            self._tell_room(room + self._placement.waiting_alone())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error that nobody expects ends the run, or something would wait without end."""
        with suppress(asyncio.CancelledError):
            if (error := task.exception()) is not None:
                self._broken = f"the gateway failed ({type(error).__name__}: {error})"

    async def _attempt(self, number: int, address: str) -> None:
        """Run a submission on a worker; `watch` cancels this if the worker ends."""
        instance = self._placement.workers[address].instance
        gpu = self._placement.uses_gpu(address)
        asked = self._requests.ask(address, self._payloads[number], gpu)
        reply = None
        try:
            reply, body = await self._requests.in_time(asked, address, instance)
        except TimeoutError:
            within = self._requests.within_s
            self._refuse(address, f"it did not reply to a submission within {within:g} s")
        except Disconnected:
            await asyncio.sleep(AGAIN_S)
            if self._attempts.get(number) is asyncio.current_task():  # or `watch` placed it again
                del self._attempts[number]
                self._placement.again(number)
                self._place()
            return
        except Exception as error:
            why = one_line(f"a task failed ({type(error).__name__}: {error})", MAX_WORDS)
            reply = Reply("failed", why)
            body = reply_bytes(reply, self._requests.limits)
        if self._attempts.get(number) is not asyncio.current_task():
            return
        del self._attempts[number]
        if reply is None:
            self._placement.silent(number)
            self._give_up(number)
        elif failure := reply.failure(self._requests.checked):
            if not self._placement.failed(number, address, failure):
                self._answer(frames.Frame(frames.REPLY, number, body))
        elif reply.kind == "result":
            for blamed, why in self._placement.ran(number, address).items():
                self._refuse(blamed, why)
            self._answer(frames.Frame(frames.REPLY, number, body))
        else:
            self._not_fit(address, reply.kind, reply.why)
            self._placement.again(number)
        self._place()

    def _prepare(self, address: str) -> None:
        earlier = self._preparing.get(address)  # of another worker that had the address
        if earlier not in (None, asyncio.current_task()):
            earlier.cancel()
        self._preparing[address] = self._start(self._prepared(address))

    async def _prepared(self, address: str) -> None:
        """Ask a worker whether it can run submissions, and send it the checks if it needs them."""
        known = self._placement.workers[address]
        asked = self._requests.prepare(address, self._placement.uses_gpu(address))
        try:
            reply = await self._requests.in_time(asked, address, known.instance)
        except TimeoutError:
            self._refuse(address, f"it was not ready within {self._requests.within_s:g} s")
        except Disconnected:
            await asyncio.sleep(AGAIN_S)
            if self._placement.workers.get(address) is known:
                self._prepare(address)
        except Exception as error:
            self._refuse(address, f"it can't run the grader ({type(error).__name__}: {error})")
        else:
            if reply.kind != "fit":
                self._not_fit(address, reply.kind, reply.why)
                return
            most = max(1, int(known.gpus)) if self._placement.uses_gpu(address) else reply.room
            known.room = min(most, max(1, reply.room))
            self._place()

    def _not_fit(self, address: str, kind: str, why: str) -> None:
        """A worker can't run submissions, or can't with a GPU."""
        if address not in self._placement.workers:
            return
        if kind != "no-gpu" or not self._placement.uses_gpu(address):
            self._refuse(address, why or f"its reply was {kind!r}")
            return
        known = self._placement.workers[address]
        known.gpus = 0.0
        known.room = 0
        self._no_gpu = f"the GPU of worker {known.name} can't be used: {why}"
        self._send(frames.said(frames.NOTE, self._no_gpu, machine_of(address)))
        if self._placement.wants(address):
            self._prepare(address)

    def _refuse(self, address: str, why: str) -> None:
        known = self._placement.workers.get(address)
        if known is not None and not known.refused:
            self._placement.refuse(address, why)
            if known.gpus:
                self._no_gpu = f"worker {known.name}, which has a GPU, is refused: {why}"
            text = f"worker {known.name} at {address} is refused: {why}"
            self._send(frames.said(frames.NOTE, text, machine_of(address)))

    def _answer(self, frame: frames.Frame) -> None:
        """The last word on a submission."""
        self._placement.done(frame.number)
        del self._payloads[frame.number]
        self._send(frame)

    def _send(self, frame: frames.Frame) -> None:
        self._writer.write(frames.to_bytes(frame))
