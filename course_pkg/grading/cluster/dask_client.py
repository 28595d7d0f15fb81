"""What the gateway asks of Dask: which workers there are, and what one replies to a request.

Chapter: appendix/threat-model.
"""

import asyncio
import time
from contextlib import suppress

from distributed import Client
from distributed.client import FutureCancelledError

from . import worker
from .placement import Found

ANSWER_S = 30.0  # for the scheduler
RECONNECT_S = 5.0
MOST_GPUS = 1024  # of one worker


class Disconnected(Exception):
    """The connection to the scheduler ended while a worker ran a request; it may be there again."""


class DaskClient:
    """The requests of one run. client: asynchronous, and connected. run: the run's name."""

    def __init__(self, client: Client, run: str) -> None:
        self._client, self._run, self._keys = client, run, 0

    async def workers(self) -> tuple[str, dict[str, Found]]:
        """The address of the scheduler, and the workers that it lists, by address.

        Raises OSError or TimeoutError if it does not answer.
        """
        if self._client.status != "running":
            raise OSError("the connection to it is lost")
        listed = await asyncio.wait_for(self._client.scheduler.identity(n_workers=-1), ANSWER_S)
        return listed["address"], {
            address: Found(
                str(one["name"]), gpus_in(one["resources"]), str(one["local_directory"]),
                one["status"] == "running",
            )
            for address, one in listed["workers"].items()
        }  # fmt: skip

    async def connects_again(self) -> bool:
        """Whether a connection that was lost is there again, after some seconds at most."""
        lost = self._client.status != "running"
        until = time.monotonic() + RECONNECT_S
        while self._client.status != "running" and time.monotonic() < until:
            await asyncio.sleep(0.2)
        return lost and self._client.status == "running"

    async def is_gone(self, address: str, instance: str) -> bool:
        """Whether the scheduler no longer lists a worker, or can't be asked.

        Another worker may have got its address: see `Found`.
        """
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
            worker.handle, payload, gpu, key=f"course-{self._run}-{self._keys}",
            workers=[address], allow_other_workers=False, pure=False,
            resources={"GPU": 1} if gpu else None,
        )  # fmt: skip
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


def gpus_in(resources: object) -> float:
    """The GPUs that a worker says it has; 0 for anything that is no number from 1 on.

    >>> gpus_in({"GPU": 2.0}), gpus_in({"GPU": 0.5}), gpus_in({"GPU": float("nan")}), gpus_in({})
    (2.0, 0.0, 0.0, 0.0)
    """
    amount = resources.get("GPU") if isinstance(resources, dict) else None
    if type(amount) not in (int, float) or not 1 <= amount <= MOST_GPUS:
        return 0.0
    return float(int(amount))
