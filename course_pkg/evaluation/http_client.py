"""JSON over HTTP to an address that you gave, with retries, and nothing else.

A refused or broken connection, a time-out, and the statuses 408, 429 and 5xx are tried again after
a pause, which the server may choose (Retry-After). Redirects are not followed, so that texts and
the key go to the given address only, or through the proxy that the environment names (http_proxy).
Only the standard library is used. `metrics.judge.endpoint` has the same rules for a judge.
Chapter: evaluation/likelihood-and-generation.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from course_pkg.evaluation.run_errors import RunError, ServerError

AGAIN = (408, 429)  # and 5xx
MOST_PAUSE = 60.0  # seconds, whatever a server asks for
NOT_THIS_ITEM = (401, 403, 404)  # every further request would end alike


class RefusedError(RuntimeError):
    """The server refuses this request or fails on it; another one may succeed."""


class HttpClient:
    """A server's address up to the version, such as "http://127.0.0.1:8000/v1".

    key: sent as a bearer token. timeout: seconds for a request. retries: further tries. pause:
    seconds before the first of them, doubled each time. Raises RunError for another address.
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
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise RunError(f'the address must be like "http://127.0.0.1:8000/v1", got {address!r}')
        self.address = address.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.pause = pause
        self._key = key
        self._opener = urllib.request.build_opener(_NoRedirects)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path. Raises as `post` does."""
        return self._send(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that answers a JSON object.

        Raises RefusedError if the server refuses this request or fails on it, RunError if the
        address, the model's name or the key is wrong, ServerError if there is no answer at all.
        """
        return self._send(path, json.dumps(body).encode())

    def _send(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.address + path, body, headers)
        failure: Exception = ServerError("never asked")
        wanted = 0.0  # seconds that the server asks to wait
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(max(wanted, self.pause * 2 ** (attempt - 1)))
            wanted = 0.0
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    return _object(answer.read(), request.full_url)
            except urllib.error.HTTPError as error:
                text = f"{request.full_url} answered {error.code}: {_text(error)}"
                if error.code in NOT_THIS_ITEM:
                    raise RunError(f"{text}: correct the address, the model or the key") from None
                failure = RefusedError(text)
                wanted = _wanted_pause(error.headers.get("Retry-After"))
                if error.code not in AGAIN and error.code < 500:
                    raise failure from None
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                failure = ServerError(
                    f"{request.full_url} does not answer ({reason}); asked {self.retries + 1} "
                    "times: start it, and run the same command again"
                )
        raise failure


def _wanted_pause(header: str | None) -> float:
    """The seconds of a Retry-After header, at most MOST_PAUSE; 0 without, or for a date."""
    return min(float(header), MOST_PAUSE) if header and header.isdecimal() else 0.0


def _object(data: bytes, address: str) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise RefusedError(f"{address} must send a JSON object, got {data[:200]!r}")
    return answer


def _text(error: urllib.error.HTTPError) -> str:
    """The beginning of the text that the server sent with an error, on one line."""
    try:
        return " ".join(error.read(300).decode(errors="replace").split())
    except (OSError, http.client.HTTPException):
        return "(the rest did not arrive)"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
