"""The gateway: the process between the command and a cluster's workers, where all of Dask runs.

Dask's messages may hold pickles, which can do anything in the process that reads them. So this
process reads them, which has no secret and can't see the course, and gives the command bytes.
"""

import asyncio
import json
import math
import socket
import ssl
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from distributed import Client
from distributed.client import FutureCancelledError

from course_pkg.common.scheduler_address import SchedulerAddress, why_open
from course_pkg.grading.classroom.cluster import messages, placement, worker
from course_pkg.grading.classroom.cluster.gateway_process import (
    Frame,
    FrameKind,
    confine,
    machine_of,
    next_frame,
    said,
    to_bytes,
)
from course_pkg.grading.classroom.cluster.messages import WorkerReply
from course_pkg.grading.questions.display import one_line

ANSWER_S = 30.0  # for the scheduler
RECONNECT_S = 5.0
POLL_S = 0.5
AGAIN_S = 2.0  # before a submission or worker is tried again whose connection ended
NONE_LEFT_S = 10.0  # without a worker that can run anything: then it is said
NONE_LEFT = "no worker of the cluster is left that can run submissions: waiting for one"
ROOM_TO_WAIT = 64  # submissions that are told at a time that there is no GPU
NO_WORKER_HAS_ONE = "no worker of the cluster has a GPU (a Dask resource: `--resources GPU=1`)"
END_S = 5.0
CERTIFICATES = "--tls-ca is the authority's, --tls-cert and --tls-key are yours and its key"


class Disconnected(Exception):
    """The connection to the scheduler ended while a worker ran a request; it may be there again."""


class DaskClient:
    """The requests of one run, named `run`, over an asynchronous client that is connected."""

    def __init__(self, client: Client, run: str) -> None:
        self._client = client
        self._run = run
        self._keys = 0

    async def workers(self) -> tuple[str, dict[str, placement.ListedWorker]]:
        """The address of the scheduler, and the workers that it lists, by address.

        Raises:
            OSError, TimeoutError: it does not answer.
        """
        if self._client.status != "running":
            raise OSError("the connection to it is lost")
        answer = await asyncio.wait_for(self._client.scheduler.identity(n_workers=-1), ANSWER_S)
        listed = {
            address: placement.ListedWorker(
                name=str(one["name"]),
                gpus=placement.gpus_in(one["resources"]),
                instance=str(one["local_directory"]),
                running=one["status"] == "running",
            )
            for address, one in answer["workers"].items()
        }
        return answer["address"], listed

    async def connects_again(self) -> bool:
        lost = self._client.status != "running"
        until = time.monotonic() + RECONNECT_S
        while self._client.status != "running" and time.monotonic() < until:
            await asyncio.sleep(0.2)
        return lost and self._client.status == "running"

    async def is_gone(self, address: str, instance: str) -> bool:
        """Whether the scheduler no longer lists this worker at its address, or can't be asked."""
        with suppress(Exception):
            _, listed = await self.workers()
            return address not in listed or listed[address].instance != instance
        return True

    async def reply(self, address: str, payload: bytes, gpu: bool) -> bytes:
        """What a worker replies; waits without end if it is gone.

        Raises Disconnected, TypeError for anything but bytes, and whatever the worker raised.
        """
        self._keys += 1
        future = self._client.submit(
            worker.handle,
            payload,
            gpu,
            key=f"course-{self._run}-{self._keys}",
            workers=[address],
            allow_other_workers=False,
            pure=False,
            resources={"GPU": 1} if gpu else None,
        )
        try:
            body = await future
        except FutureCancelledError as error:
            raise Disconnected(str(error)) from None
        finally:
            if not future.done():
                with suppress(Exception):
                    await self._client.cancel([future], force=True)
            future.release()
        if not isinstance(body, bytes):
            raise TypeError(f"the reply is of type {type(body).__name__}")
        return body

    async def close(self, busy: list[str]) -> None:
        """End the run's submissions on the busy workers, named by address, and the connection."""
        with suppress(Exception):
            if busy:
                await self._client.run(worker.stop, self._run, workers=busy, on_error="ignore")
        with suppress(Exception):
            await self._client.close(timeout=2)


class Gateway:
    """One run's connection to a cluster; `start` is what `ClusterExecutor` sends first."""

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
        self._asked = start["asked"].encode()
        self._with_files = start["with_files"].encode()
        self._work = messages.read_request(self._asked).work
        self._within_s: float = start["reply_s"]
        self._placement = placement.SubmissionPlacement(start["need"])
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
        self._payloads[number] = payload
        self._placement.add(number)
        self._place()

    async def watch(self) -> str:
        """Follow the workers as they come and go, until nothing can be run; the reason."""
        while True:
            try:
                scheduler, listed = await self._dask.workers()
            except (OSError, TimeoutError) as error:
                if await self._dask.connects_again():
                    continue
                return f"the scheduler does not answer ({type(error).__name__}: {error})"
            if why := why_open(scheduler):
                return f"the scheduler is refused: {why}"
            new, lost = self._placement.update(listed)
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
            self._send(Frame(FrameKind.ALIVE))
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        for task in (*self._attempts.values(), *self._preparing.values()):
            task.cancel()
        await self._dask.close([a for a, w in self._placement.workers.items() if w.running])

    def _unusable(self) -> str:
        """Why all workers are refused, once that has lasted; answers what waits for a GPU."""
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
            self._answer(said(FrameKind.NO_GPU, self._no_gpu, number))
        return ""

    def _say_if_none_is_left(self) -> None:
        if self._placement.room() or not self._payloads:
            self._quiet_until = self._clock() + NONE_LEFT_S
        elif self._clock() > self._quiet_until:
            self._quiet_until = math.inf  # until a worker can run submissions again
            self._send(said(FrameKind.NOTE, NONE_LEFT))

    def _give_up(self, number: int) -> None:
        if self._placement.given_up(number):
            self._answer(Frame(FrameKind.GIVEN_UP, number))

    def _tell_room(self, room: int) -> None:
        if room != self._room:
            self._room = room
            self._send(Frame(FrameKind.ROOM, room))

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
        instance = self._placement.workers[address].instance
        gpu = self._placement.uses_gpu(address)
        asked = self._ask(address, self._payloads[number], gpu)
        reply = None
        try:
            reply, body = await self._in_time(asked, address, instance)
        except TimeoutError:
            self._refuse(address, f"it did not reply to a submission within {self._within_s:g} s")
        except Disconnected:
            await asyncio.sleep(AGAIN_S)
            if self._attempts.get(number) is asyncio.current_task():  # or `watch` placed it again
                del self._attempts[number]
                self._placement.again(number)
                self._place()
            return
        except Exception as error:
            why = one_line(f"a task failed ({type(error).__name__}: {error})", messages.MAX_WORDS)
            reply = WorkerReply("failed", why)
            body = messages.reply_bytes(reply, self._work.limits)
        if self._attempts.get(number) is not asyncio.current_task():
            return
        del self._attempts[number]
        if reply is None:
            self._placement.silent(number)
            self._give_up(number)
        elif failure := reply.failure(bool(self._work.checks)):
            if not self._placement.failed(number, address, failure):
                self._answer(Frame(FrameKind.REPLY, number, body))
        elif reply.kind == "result":
            for blamed, why in self._placement.ran(number, address).items():
                self._refuse(blamed, why)
            self._answer(Frame(FrameKind.REPLY, number, body))
        else:
            self._not_fit(address, reply.kind, reply.why)
            self._placement.again(number)
        self._place()

    async def _fitness(self, address: str, gpu: bool) -> WorkerReply:
        """How a worker can run submissions; it is sent the checks if it lacks them."""
        reply, _ = await self._ask(address, self._asked, gpu)
        if reply.kind == "lacks":
            reply, _ = await self._ask(address, self._with_files, gpu)
        return reply

    async def _ask(self, address: str, payload: bytes, gpu: bool) -> tuple[WorkerReply, bytes]:
        body = await self._dask.reply(address, payload, gpu)
        return messages.read_reply(body, self._work.limits), body

    async def _in_time(self, asked: Awaitable[Any], address: str, instance: str) -> Any:
        try:
            return await asyncio.wait_for(asked, self._within_s)
        except (TimeoutError, Disconnected):
            raise
        except Exception:
            if await self._dask.is_gone(address, instance):
                raise Disconnected from None
            raise

    def _prepare(self, address: str) -> None:
        earlier = self._preparing.get(address)  # of another worker that had the address
        if earlier not in (None, asyncio.current_task()):
            earlier.cancel()
        self._preparing[address] = self._start(self._prepared(address))

    async def _prepared(self, address: str) -> None:
        known = self._placement.workers[address]
        asked = self._fitness(address, self._placement.uses_gpu(address))
        try:
            reply = await self._in_time(asked, address, known.instance)
        except TimeoutError:
            self._refuse(address, f"it was not ready within {self._within_s:g} s")
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
        if address not in self._placement.workers:
            return
        if kind != "no-gpu" or not self._placement.uses_gpu(address):
            self._refuse(address, why or f"its reply was {kind!r}")
            return
        known = self._placement.workers[address]
        known.gpus = 0.0
        known.room = 0
        self._no_gpu = f"the GPU of worker {known.name} can't be used: {why}"
        self._send(said(FrameKind.NOTE, self._no_gpu, machine_of(address)))
        if self._placement.wants(address):
            self._prepare(address)

    def _refuse(self, address: str, why: str) -> None:
        known = self._placement.workers.get(address)
        if known is not None and not known.refused:
            self._placement.refuse(address, why)
            if known.gpus:
                self._no_gpu = f"worker {known.name}, which has a GPU, is refused: {why}"
            text = f"worker {known.name} at {address} is refused: {why}"
            self._send(said(FrameKind.NOTE, text, machine_of(address)))

    def _answer(self, frame: Frame) -> None:
        """The last word on a submission."""
        self._placement.done(frame.number)
        del self._payloads[frame.number]
        self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._writer.write(to_bytes(frame))


async def _serve(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    start = json.loads((await next_frame(reader))[1])
    options = {"asynchronous": True, "set_as_default": False, "timeout": start["connect_s"]}
    at = SchedulerAddress(*(start[name] for name in ("address", "ca", "certificate", "key")))
    first = asyncio.create_task(next_frame(reader))
    try:
        client = Client(at.address, security=at.security, **options)
    except ssl.SSLError as error:
        await _say_lost(writer, f"the certificates can't be used ({error}): {CERTIFICATES}")
        return
    connecting = asyncio.ensure_future(client)
    await asyncio.wait({first, connecting}, return_when="FIRST_COMPLETED")
    if not connecting.done():  # the command has ended
        return
    if error := connecting.exception():
        how = "with certificates of the same authority" if at.ca else "without TLS"
        why = f"no scheduler answers ({type(error).__name__}: {error}); is one there, {how}?"
        await _say_lost(writer, why)
        return
    gateway = Gateway(DaskClient(client, start["run"]), writer, start)
    watching = asyncio.create_task(gateway.watch())
    reading = asyncio.create_task(_read(reader, first, gateway))
    await asyncio.wait({watching, reading}, return_when="FIRST_COMPLETED")
    if watching.done():
        error = watching.exception()
        why = watching.result() if error is None else f"{type(error).__name__}: {error}"
        await _say_lost(writer, why)
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await gateway.close()


async def _say_lost(writer: asyncio.StreamWriter, why: str) -> None:
    writer.write(to_bytes(said(FrameKind.LOST, why)))
    with suppress(OSError):
        await writer.drain()


async def _read(reader: asyncio.StreamReader, first: Any, gateway: Gateway) -> None:
    with suppress(asyncio.IncompleteReadError, OSError):
        number, payload = await first
        while True:
            gateway.submit(number, payload)
            number, payload = await next_frame(reader)


def main(descriptor: int) -> None:
    """The gateway's process, with its end of the socket to the command."""
    warnings.simplefilter("ignore")  # such as of large tasks
    confine()
    with socket.socket(fileno=descriptor) as sock:
        asyncio.run(_serve(sock))


if __name__ == "__main__":
    main(int(sys.argv[1]))
