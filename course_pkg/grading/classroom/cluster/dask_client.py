"""What the gateway asks of Dask: which workers there are, and what one replies to a request.

Chapter: appendix/threat-model.
"""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from distributed import Client
from distributed.client import FutureCancelledError

from course_pkg.grading.classroom.cluster import worker
from course_pkg.grading.classroom.cluster.messages import Reply, read_reply, read_request
from course_pkg.grading.classroom.cluster.placement import Found

ANSWER_S = 30.0  # for the scheduler
RECONNECT_S = 5.0
MOST_GPUS = 1024  # of one worker

Answer = TypeVar("Answer")


class Disconnected(Exception):
    """The connection to the scheduler ended while a worker ran a request; it may be there again."""


class DaskClient:
    """The requests of one run. client: asynchronous, and connected. run: the run's name."""

    def __init__(self, client: Client, run: str) -> None:
        self._client = client
        self._run = run
        self._keys = 0

    async def workers(self) -> tuple[str, dict[str, Found]]:
        """The address of the scheduler, and the workers that it lists, by address.

        Raises OSError or TimeoutError if it does not answer.
        """
        if self._client.status != "running":
            raise OSError("the connection to it is lost")
        listed = await asyncio.wait_for(self._client.scheduler.identity(n_workers=-1), ANSWER_S)
        found = {
            address: Found(
                name=str(one["name"]),
                gpus=gpus_in(one["resources"]),
                instance=str(one["local_directory"]),
                running=one["status"] == "running",
            )
            for address, one in listed["workers"].items()
        }
        return listed["address"], found

    async def connects_again(self) -> bool:
        """Whether a connection that was lost is there again, after some seconds at most."""
        lost = self._client.status != "running"
        until = time.monotonic() + RECONNECT_S
        while self._client.status != "running" and time.monotonic() < until:
            await asyncio.sleep(0.2)
        return lost and self._client.status == "running"

    async def is_gone(self, address: str, instance: str) -> bool:
        """Whether the scheduler no longer lists this worker at its address, or can't be asked."""
        with suppress(Exception):
            _, found = await self.workers()
            return address not in found or found[address].instance != instance
        return True

    async def reply(self, address: str, payload: bytes, gpu: bool) -> bytes:
        """What a worker replies; waits without end if it is gone.

        gpu: whether it takes one of the worker's GPUs. Raises Disconnected, TypeError for anything
        but bytes, and whatever the worker raised.
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


class Requests:
    """Requests of one run to workers. start: what `ClusterExecutor` sends first.

    within_s: seconds in which a worker must reply. limits: of the run. checked: whether a checker
    judges its assignment.
    """

    def __init__(self, dask: DaskClient, start: dict[str, Any]) -> None:
        self._dask = dask
        self._asked = start["asked"].encode()
        self._with_files = start["with_files"].encode()
        work = read_request(self._asked).work
        self.within_s: float = start["reply_s"]
        self.limits = work.limits
        self.checked = bool(work.checks)

    async def prepare(self, address: str, gpu: bool) -> Reply:
        """How a worker can run submissions; it is sent the checks if it lacks them."""
        reply, _ = await self.ask(address, self._asked, gpu)
        if reply.kind == "lacks":
            reply, _ = await self.ask(address, self._with_files, gpu)
        return reply

    async def ask(self, address: str, payload: bytes, gpu: bool) -> tuple[Reply, bytes]:
        """What a worker replies, and as it was sent. Raises what `reply` raises, and ValueError."""
        body = await self._dask.reply(address, payload, gpu)
        return read_reply(body, self.limits), body

    async def in_time(self, asked: Awaitable[Answer], address: str, instance: str) -> Answer:
        """The result of asking a worker.

        Raises TimeoutError if it does not come in time, and Disconnected if the worker or the
        connection to it has ended.
        """
        try:
            return await asyncio.wait_for(asked, self.within_s)
        except (TimeoutError, Disconnected):
            raise
        except Exception:
            if await self._dask.is_gone(address, instance):
                raise Disconnected from None
            raise


def gpus_in(resources: object) -> float:
    """The GPUs that a worker says it has; 0 for anything but a number from 1 on.

    >>> gpus_in({"GPU": 2.0}), gpus_in({"GPU": 0.5}), gpus_in({"GPU": float("nan")}), gpus_in({})
    (2.0, 0.0, 0.0, 0.0)
    """
    amount = resources.get("GPU") if isinstance(resources, dict) else None
    if type(amount) not in (int, float) or not 1 <= amount <= MOST_GPUS:
        return 0.0
    return float(int(amount))
