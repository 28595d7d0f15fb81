"""The guard: what every request passes before the application reads it, and after it.

In this order: the host's name and the key, whether the server takes requests, whether there is a
place, and a body of limited size that comes in limited time. At the end, one line of the log and
the metrics: without the query, the prompt or the key.
"""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any

from course_pkg.common.http_client import is_loopback
from course_pkg.deployment.admission import Gate, Limits
from course_pkg.deployment.api_errors import ApiError
from course_pkg.deployment.error_responses import send_error
from course_pkg.deployment.monitoring import Metrics

Scope = MutableMapping[str, Any]
OPEN_PATHS = ("/health", "/ready")  # for whatever watches the server, without a key
READING = ("GET", "HEAD")
GONE = 499  # nginx's number for a client that did not wait
access_log = logging.getLogger("course_pkg.access")


class Guard:
    """ASGI middleware. key: what clients must send; None lets all requests from this host in.

    Without a key, a request must name a local host: a web page elsewhere whose name was made to
    point here (DNS rebinding) names its own.
    """

    def __init__(
        self, app: Callable, *, gate: Gate, limits: Limits, metrics: Metrics, key: str | None
    ):
        self.app = app
        self.gate = gate
        self.limits = limits
        self.metrics = metrics
        self.key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        answer = _Answer(send)
        scope["arrived"] = start
        try:
            _check_framing(scope)
            self._admit(scope)
            if scope["method"] == "POST":
                with self.gate.place() as scope["places"], ExitStack() as scope["cleanup"]:
                    body = await self._body(scope, receive)
                    await self._run(scope, body, receive, answer)
            else:
                await self.app(scope, receive, answer)
        except ApiError as error:
            scope["summary"] = error.log
            await send_error(error, answer)
        except _ClientGone:
            answer.status = GONE
        except Exception:
            answer.status = answer.status or 500  # which the middleware above answers
            raise
        finally:
            self._record(scope, answer.status, time.monotonic() - start)

    def _admit(self, scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS:
            if scope["method"] not in READING:  # which would take a place, without a key
                headers = {"Allow": ", ".join(READING)}
                raise ApiError(405, "this path does not take this method", headers=headers)
            return
        if self.key is None:
            host = _header(scope, b"host").decode("latin-1").lower()
            name = re.sub(r":\d+$", "", host)  # any port: a tunnel may have another
            if not is_loopback(re.sub(r"^\[(.*)\]$", r"\1", name)):
                raise ApiError(403, "without a key, this server answers local host names only")
            return
        scheme, _, key = _header(scope, b"authorization").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self.key):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as `Authorization: Bearer <key>`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Callable) -> bytes:
        limit = self.limits.body_bytes
        if int(_header(scope, b"content-length") or 0) > limit:  # h11 has checked that it is one
            raise _too_large(limit)
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    body += message.get("body", b"")
                    if len(body) > limit:  # the length may be unknown before
                        raise _too_large(limit)
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self.limits.read_seconds
            message = f"the body did not arrive within {seconds:g} s"
            raise ApiError(408, message, headers={"Connection": "close"}) from None
        return bytes(body)

    async def _run(self, scope: Scope, body: bytes, receive: Callable, answer: "_Answer") -> None:
        """Run the application until it has answered; cancel it if the client goes or is slow."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> dict[str, Any]:
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()  # never: `gone` sees the end

        work = asyncio.ensure_future(self.app(scope, replay, answer))
        gone = asyncio.ensure_future(receive())  # after the body, only a disconnect can come
        try:
            seconds = self.limits.request_seconds + self.limits.write_seconds
            await asyncio.wait({work, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not answer.complete and not work.done():
                work.cancel()
                await asyncio.wait({work})
                if answer.status is None and not gone.done():
                    raise ApiError(504, "the answer took too long", code="timeout")
                raise _ClientGone
            await work
        finally:
            work.cancel()
            gone.cancel()

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # A path that is not the server's may hold anything.
        route = getattr(scope.get("route"), "path", None)
        path = route or (scope["path"] if scope["path"] in OPEN_PATHS else "other")
        address = scope.get("client")  # optional in ASGI, as all that is read with `get`
        client = address[0] if address else "-"
        line = "%s %s %s %s %.3f s %s"
        summary = scope.get("summary", "")
        access_log.info(line, client, scope["method"], path, status, seconds, summary)
        self.metrics.http.labels(path, status).inc()


class _ClientGone(Exception):
    """Nobody reads the answer, or not in time."""


class _Answer:
    """Sends, and remembers the status and whether all is sent."""

    def __init__(self, send: Callable):
        self.send = send
        self.status = None
        self.complete = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self.status = message.get("status", self.status)
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.complete = self.complete or last
        await self.send(message)


def _check_framing(scope: Scope) -> None:
    """Refuse two answers to where the body ends: a proxy in front may believe the other one."""
    if _header(scope, b"content-length") and _header(scope, b"transfer-encoding"):
        message = "the request has both Content-Length and Transfer-Encoding: send one of them"
        raise ApiError(400, message, headers={"Connection": "close"})


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="request_too_large")
