"""The process that talks to the cluster: Dask's client, between the command and the workers.

Dask's messages may hold pickles, which can do anything in the process that reads them. So this
process reads them, which has no secret and can't see the course, and gives the command bytes. It
ends with the command: then it cancels what runs.

Chapter: appendix/threat-model.
"""

import asyncio
import json
import os
import resource
import socket
import ssl
import sys
import warnings
from contextlib import suppress
from typing import Any

from distributed import Client

from course_pkg.common.scheduler_address import SchedulerAddress
from course_pkg.grading.classroom.cluster import frames
from course_pkg.grading.classroom.cluster.dask_client import DaskClient
from course_pkg.grading.classroom.cluster.gateway import Gateway

END_S = 5.0
UID = 0x6FFF_FFFF  # owns nothing: no account, container or sandbox has this id
CERTIFICATES = "--tls-ca is the authority's, --tls-cert and --tls-key are yours and its key"
FILE = 64 * 2**20  # bytes of a file, such as the one that standard error goes to
MEMORY = 8 * 2**30  # bytes of address space: a reply can't fill the machine


async def _serve(sock: socket.socket) -> None:
    """Serve the command until it ends, or until nothing can be run any longer."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    start = json.loads((await _frame(reader))[1])
    options = {"asynchronous": True, "set_as_default": False, "timeout": start["connect_s"]}
    at = SchedulerAddress(*(start[name] for name in ("address", "ca", "certificate", "key")))
    first = asyncio.create_task(_frame(reader))
    try:
        client = Client(at.address, security=at.security, **options)
    except ssl.SSLError as error:
        await _say_lost(writer, f"the certificates can't be used ({error}): {CERTIFICATES}")
        return
    connecting = asyncio.ensure_future(_connected(client))
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
    writer.write(frames.to_bytes(frames.said(frames.LOST, why)))
    with suppress(OSError):
        await writer.drain()


async def _connected(client: Client) -> None:
    await client


async def _read(reader: asyncio.StreamReader, first: Any, gateway: Gateway) -> None:
    """Take submissions until the command ends."""
    with suppress(asyncio.IncompleteReadError, OSError):
        number, payload = await first
        while True:
            gateway.submit(number, payload)
            number, payload = await _frame(reader)


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The number and the body of the command's next frame."""
    _, number, size = frames.HEAD.unpack(await reader.readexactly(frames.HEAD.size))
    return number, await reader.readexactly(size)


def _leave_root() -> None:
    """Become a user that owns nothing, if this is root: root may write to what is root's."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)


def main(descriptor: int) -> None:
    """The gateway's process. descriptor: its end of the socket to the command."""
    warnings.simplefilter("ignore")  # such as of large tasks
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    _leave_root()
    with socket.socket(fileno=descriptor) as sock:
        asyncio.run(_serve(sock))


if __name__ == "__main__":
    main(int(sys.argv[1]))
