"""Sends submissions to the workers that suit them, and follows workers as they come and go.

It runs in the process of `gateway_main`, as all of Dask does (`dask_client`). `placement` decides
who runs what.

Chapter: appendix/threat-model.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any

from ..contract.display import one_line
from . import frames
from .address import why_open
from .dask_client import DaskClient, Disconnected
from .messages import MAX_WORDS, Reply, read_reply, read_request, reply_bytes
from .notes import machine_of
from .placement import Placement

POLL_S = 0.5
AGAIN_S = 2.0  # before a submission or worker is tried again whose connection ended
NONE_LEFT_S = 10.0  # without a worker that can run anything: then it is said
NONE_LEFT = "no worker of the cluster is left that can run submissions: waiting for one"
ROOM_TO_WAIT = 64  # submissions at a time that learn that there is no GPU
NO_WORKER_HAS_ONE = "no worker of the cluster has a GPU (a Dask resource: `--resources GPU=1`)"


class Gateway:
    """One run's connection to a cluster. start: what `ClusterExecutor` sends first."""

    def __init__(
        self, dask: DaskClient, writer: asyncio.StreamWriter, start: dict[str, Any]
    ) -> None:
        self._dask, self._writer = dask, writer
        self._asked, self._files = start["asked"].encode(), start["with_files"].encode()
        work = read_request(self._asked).work
        self._limits, self._checked = work.limits, bool(work.checks)
        self._placement, self._grace_s = Placement(start["need"]), start["grace_s"]
        self._reply_s = start["reply_s"]
        self._payloads: dict[int, bytes] = {}
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._room, self._no_gpu, self._broken = -1, NO_WORKER_HAS_ONE, ""
        self._bad_since: float | None = None
        self._able, self._said_none = time.monotonic(), False

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
        refusals, no_gpu = self._placement.refusals(), self._placement.no_gpu()
        if self._placement.left or not (refusals or no_gpu):
            self._bad_since = None
            return ""
        self._bad_since = self._bad_since or time.monotonic()
        if time.monotonic() - self._bad_since < self._grace_s:
            return ""
        if refusals:
            return f"no worker of the cluster can grade: {'; '.join(refusals)}"
        self._tell_room(ROOM_TO_WAIT)
        for number in self._payloads.keys() - self._attempts.keys():
            self._answer(frames.said(frames.NO_GPU, self._no_gpu, number))
        return ""

    def _say_if_none_is_left(self) -> None:
        if self._placement.room() or not self._payloads:
            self._able, self._said_none = time.monotonic(), False
        elif not self._said_none and time.monotonic() - self._able > NONE_LEFT_S:
            self._said_none = True
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
            task = asyncio.create_task(self._attempt(number, address))
            task.add_done_callback(self._ended)
            self._attempts[number] = task
        if room := self._placement.room():
            self._tell_room(room + self._placement.waiting_alone())

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error that nobody expects ends the run, or something would wait without end."""
        with suppress(asyncio.CancelledError):
            if (error := task.exception()) is not None:
                self._broken = f"the gateway failed ({type(error).__name__}: {error})"

    async def _attempt(self, number: int, address: str) -> None:
        """Run a submission on a worker; `watch` cancels this if the worker ends."""
        instance, reply = self._placement.workers[address].instance, None
        gpu = self._placement.uses_gpu(address)
        try:
            asked = self._dask.reply(address, self._payloads[number], gpu)
            body = await asyncio.wait_for(asked, self._reply_s)
            reply = read_reply(body, self._limits)
        except TimeoutError:
            self._refuse(address, f"it did not reply to a submission within {self._reply_s:g} s")
        except Exception as error:
            if isinstance(error, Disconnected) or await self._dask.is_gone(address, instance):
                await asyncio.sleep(AGAIN_S)  # `watch` may place it elsewhere meanwhile
                self._try_again(number)
                return
            why = one_line(f"a task failed ({type(error).__name__}: {error})", MAX_WORDS)
            reply = Reply("failed", why)
            body = reply_bytes(reply, self._limits)
        if self._attempts.get(number) is not asyncio.current_task():
            return
        failure = "" if reply is None else reply.failure(self._checked)
        del self._attempts[number]
        if reply is None:
            self._placement.silent(number)
            self._give_up(number)
        elif failure:
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

    def _try_again(self, number: int) -> None:
        """Place the submission of this task again, unless that was done already."""
        if self._attempts.get(number) is asyncio.current_task():
            del self._attempts[number]
            self._placement.again(number)
            self._place()

    def _prepare(self, address: str) -> None:
        earlier = self._preparing.get(address)  # of another worker that had the address
        if earlier not in (None, asyncio.current_task()):
            earlier.cancel()
        task = self._preparing[address] = asyncio.create_task(self._prepared(address))
        task.add_done_callback(self._ended)

    async def _prepared(self, address: str) -> None:
        """Ask a worker whether it can run submissions, and send it the checks if it needs them."""
        known = self._placement.workers[address]
        try:
            reply = await asyncio.wait_for(self._how_prepared(address), self._reply_s)
        except TimeoutError:
            self._refuse(address, f"it was not ready within {self._reply_s:g} s")
            return
        except Exception as error:
            if isinstance(error, Disconnected) or await self._dask.is_gone(address, known.instance):
                await asyncio.sleep(AGAIN_S)
                if self._placement.workers.get(address) is known:
                    self._prepare(address)
                return
            self._refuse(address, f"it can't run the grader ({type(error).__name__}: {error})")
            return
        if reply.kind == "fit":
            most = max(1, int(known.gpus)) if self._placement.uses_gpu(address) else reply.room
            known.room = min(most, max(1, reply.room))
            self._place()
        else:
            self._not_fit(address, reply.kind, reply.why)

    async def _how_prepared(self, address: str) -> Reply:
        gpu = self._placement.uses_gpu(address)
        for asked in (self._asked, self._files):
            reply = read_reply(await self._dask.reply(address, asked, gpu), self._limits)
            if reply.kind != "lacks":
                break
        return reply

    def _not_fit(self, address: str, kind: str, why: str) -> None:
        """A worker can't run submissions, or can't with a GPU."""
        if address not in self._placement.workers:
            return
        if kind != "no-gpu" or not self._placement.uses_gpu(address):
            self._refuse(address, why or f"its reply was {kind!r}")
            return
        known = self._placement.workers[address]
        known.gpus, known.room = 0.0, 0
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
