"""The server: uvicorn with connections that cannot be held open, and an end in good order.

uvicorn limits neither how long a client takes to send a request nor how long it leaves an answer
unread. When it stops, it refuses new connections at once; here, new requests get a clear 503 until
the running ones are finished.
"""

import asyncio
import json
import logging
import socket
import time
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from course_pkg.deployment.admission import Limits
from course_pkg.deployment.api_errors import ApiError, ServeError

SEND_BUFFER = 1 << 16  # bytes in the kernel for each connection; by default it grows to megabytes
HEADER_BYTES = 1 << 14
GRACE = 1.0  # seconds for the guard's answer to a late body
log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A connection with time limits for what the client sends and for what it reads."""

    def __init__(self, *args: Any, limits: Limits, **options: Any):
        super().__init__(*args, **options)
        self.limits = limits
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._arriving: Any = None  # which part of a request, in h11's words

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `send` waits until the kernel has all
        if len(self.connections) > self.limits.connections:
            transport.write(_TOO_MANY)
            transport.close()
        self._time_request(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        begun = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0])
        self._time_request(state if begun else None)  # between requests, uvicorn's clock runs

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._time_reader(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _time_request(self, arriving: Any) -> None:
        if arriving is self._arriving:
            return
        self._arriving = arriving
        if self._reading is not None:
            self._reading.cancel()
        if arriving is not None:
            # The guard answers a body that is late; this ends a connection without an answer.
            seconds = self.limits.read_seconds + GRACE * (arriving is h11.SEND_BODY)
            self._reading = self.loop.call_later(seconds, self.transport.abort)

    def _time_reader(self, unsent: int | None) -> None:
        left = self.transport.get_write_buffer_size()
        if unsent is not None and left >= unsent:
            self.transport.abort()
            return
        seconds = self.limits.write_seconds
        self._writing = self.loop.call_later(seconds, self._time_reader, left)


class Server(uvicorn.Server):
    """Serves an application of `create_app` until SIGTERM or SIGINT, then finishes its requests.

    A second signal, or the limit on the time, ends the requests that still run.
    """

    def __init__(self, app: FastAPI, limits: Limits):
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Connection, limits=limits),
                ws="none",
                lifespan="on",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=HEADER_BYTES,
                timeout_graceful_shutdown=5,  # to send what is left
            )
        )
        self.gate = app.state.gate
        self.service = app.state.service
        self.limits = limits
        self._end = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.close(0 if self.gate.closing else self.limits.shutdown_seconds)

    def close(self, seconds: float) -> None:
        """Take no more requests, and stop once all are finished, or after `seconds` seconds."""
        self.gate.closing = True
        self._end = time.monotonic() + seconds

    async def on_tick(self, counter: int) -> bool:
        late = time.monotonic() >= self._end
        if late and self.gate.open:
            log.warning("%d requests are ended before they are finished", self.gate.open)
            await self.service.stop()
        return await super().on_tick(counter) or (
            self.gate.closing and (late or not self.gate.open)
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; clients that connect before the server runs wait."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        bound.bind(address)
        bound.listen()  # or another server could still take the port
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServeError(
            f"{host} port {port} is not available ({reason}): choose another with --port, or "
            "--port 0 for any"
        ) from None
    return bound


_FULL = json.dumps(ApiError(503, "the server has too many open connections").body)
_TOO_MANY = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    f"Connection: close\r\n\r\n{_FULL}"
).encode()
