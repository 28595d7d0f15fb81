"""JSON over HTTP to an address that you gave, with retries, and nothing else.

A refused or broken connection, a time-out, and the statuses 408, 429 and 5xx are tried again after
a pause, which the server may choose (Retry-After). Redirects are not followed, so that texts and
the key go to the given address only. The server isn't trusted: an answer has a limit in bytes, and
a request one in seconds, however slowly the bytes come.
"""

import http.client
import ipaddress
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from course_pkg.common.errors import CourseError, FailedError
from course_pkg.common.json_reading import parse_json

AGAIN = (408, 429)  # and 5xx
MOST_PAUSE = 60.0  # seconds, whatever a server asks for
MOST_BYTES = 1 << 26  # of an answer: log-probabilities of long prompts have some megabytes
ERROR_BYTES = 1 << 14
ERROR_CHARACTERS = 300  # that a message repeats
CONNECT_SECONDS = 15.0
NOT_THIS_REQUEST = (401, 403, 404)  # every further request would end alike
KEY = "COURSE_REMOTE_API_KEY"
OWN_KEY = "COURSE_API_KEY"  # of `course serve`


class WrongServerError(CourseError, ValueError):
    """The address, the model's name or the key is wrong; every further request would end alike."""


class ServerError(FailedError, RuntimeError):
    """A server does not answer any more; what it answered before is kept."""


class RefusedError(RuntimeError):
    """The server refuses this request or fails on it; another one may succeed.

    Attributes:
        status: HTTP's; 200 for an answer that is not usable.
        code, param, kind: as OpenAI's API names the reason, the field at fault and the type of the
            error; None if the server does not say.
    """

    def __init__(
        self,
        message: str,
        status: int = 200,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        said: str = "",
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind
        self._said = said

    def names(self, field: str) -> bool:
        """Whether the server calls this field wrong, in `param` or in its message."""
        named = re.search(rf"(?<!\w){re.escape(field)}(?!\w)", self._said)
        return self.param == field or named is not None


def key_for(address: str) -> str | None:
    """The key to send to an address, from the environment.

    COURSE_REMOTE_API_KEY is for any address. COURSE_API_KEY, which `course serve` demands from its
    clients, is sent to this machine alone.
    """
    host = urllib.parse.urlsplit(address).hostname or ""
    return os.environ.get(KEY) or (os.environ.get(OWN_KEY) if is_loopback(host) else None)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpClient:
    """A server, by its address up to the version; several threads may use it.

    Args:
        key: sent as a bearer token.
        timeout: seconds for a request, all of it.
        retries: further tries.
        pause: seconds before the first of them, doubled each time.
    """

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        timeout: float = 120.0,
        retries: int = 3,
        pause: float = 1.0,
    ):
        try:
            parts = urllib.parse.urlsplit(address)
            fits = parts.scheme in ("http", "https") and parts.hostname and not parts.username
            _ = parts.port
        except ValueError:
            fits = False
        if not fits:
            raise WrongServerError(
                f'the address must be like "http://127.0.0.1:8000/v1", got {address!r}'
            )
        self.address = address.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.pause = pause
        self._key = key
        self._closed = threading.Event()
        self._running: set[_Exchange] = set()
        self._opener = urllib.request.build_opener(_NoRedirects, _Http, _Https)

    def get(self, path: str) -> dict[str, Any]:
        return self._send(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that answers a JSON object."""
        return self._send(path, json.dumps(body).encode())

    def close(self) -> None:
        """End the requests that run, in whatever threads, and answer no more."""
        self._closed.set()
        for exchange in list(self._running):
            exchange.cut()

    def _send(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        url = self.address + path
        failure: Exception = ServerError("never asked")
        wanted = 0.0  # seconds that the server asks to wait
        for attempt in range(self.retries + 1):
            if attempt:
                self._wait(max(wanted, self.pause * 2 ** (attempt - 1)))
            wanted = 0.0
            exchange = _Exchange(self.timeout)
            self._running.add(exchange)
            try:
                if self._closed.is_set():
                    raise ServerError(f"{url} is asked no more")
                return self._exchange(exchange, urllib.request.Request(url, body, headers))
            except urllib.error.HTTPError as error:
                failure = _refused(url, error, attempt + 1)
                after = error.headers.get("Retry-After") or ""  # seconds; a date is ignored
                wanted = min(float(after), MOST_PAUSE) if after.isdecimal() else 0.0
                if error.code in NOT_THIS_REQUEST:
                    raise WrongServerError(
                        f"{failure}: correct the address, the model or the key"
                    ) from None
                if error.code not in AGAIN and error.code < 500:
                    raise failure from None
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                remedy = "start it, and run the same command again"
                if exchange.late or isinstance(error, TimeoutError):  # once it was connected
                    reason = f"timed out after {self.timeout:g} s"
                    remedy = "raise the timeout"
                failure = ServerError(
                    f"{url} does not answer: {reason} (asked {self.retries + 1} times); {remedy}"
                )
            finally:
                exchange.end()
                self._running.discard(exchange)
        raise failure

    def _exchange(self, exchange: "_Exchange", request: urllib.request.Request) -> dict[str, Any]:
        request.exchange = exchange
        url = request.full_url
        with self._opener.open(request, timeout=min(self.timeout, CONNECT_SECONDS)) as answer:
            data = answer.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise RefusedError(f"{url} sent an answer of more than {MOST_BYTES:,} bytes")
            if answer.length:  # the end of what the server has announced
                raise http.client.IncompleteRead(data, answer.length)
        if exchange.late:  # an answer without a length, which was cut
            raise TimeoutError
        try:
            value = parse_json(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RefusedError(f"{url} must send a JSON object, got {data[:200]!r}")
        return value

    def _wait(self, seconds: float) -> None:
        self._closed.wait(seconds)


class _Exchange:
    """One request's socket, which is cut when its time is over. late: whether it was."""

    def __init__(self, seconds: float):
        self.late = False
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._seconds = seconds
        self._timer.start()

    def watch(self, connected: socket.socket) -> None:
        connected.settimeout(self._seconds)
        with self._lock:
            self._socket = connected
            if self._is_cut:
                self._shut()

    def cut(self) -> None:
        """End the connection: whoever reads from it gets its end."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None

    def _expire(self) -> None:
        self.late = True
        self.cut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # of the base: TLS would answer first
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _watched(kind: type[http.client.HTTPConnection], exchange: _Exchange) -> Callable[..., Any]:
    def connected(*arguments: Any) -> socket.socket:
        made = socket.create_connection(*arguments)
        exchange.watch(made)
        return made

    class Watched(kind):
        def connect(self) -> None:
            self._create_connection = connected
            super().connect()
            exchange.watch(self.sock)  # which may be another now, with TLS

    return Watched


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_watched(http.client.HTTPConnection, request.exchange), request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        kind = _watched(http.client.HTTPSConnection, request.exchange)
        return self.do_open(kind, request, context=self._context)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _refused(url: str, error: urllib.error.HTTPError, asked: int) -> RefusedError:
    """What a server says with a status that refuses, as OpenAI's API words it or as plain text."""
    try:
        data = error.read(ERROR_BYTES)
    except (OSError, http.client.HTTPException):
        data = b"(the rest did not arrive)"
    said = data.decode(errors="replace")
    fields: Mapping[str, Any] = {}
    with suppress(ValueError):
        body = parse_json(data)
        inner = body.get("error", body) if isinstance(body, dict) else None
        fields = inner if isinstance(inner, dict) else {}
    texts = {name: text for name, text in fields.items() if isinstance(text, str)}
    said = " ".join((texts.get("message") or said).split())[:ERROR_CHARACTERS]
    return RefusedError(
        f"{url} answered {error.code}: {said}{f' (asked {asked} times)' if asked > 1 else ''}",
        error.code,
        code=texts.get("code"),
        param=texts.get("param"),
        kind=texts.get("type"),
        said=said,
    )
