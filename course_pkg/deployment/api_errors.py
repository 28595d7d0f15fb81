"""Errors of the server, to its clients and at its start."""

from collections.abc import Mapping
from typing import Any

from course_pkg.common.errors import CourseError


class ServeError(CourseError, RuntimeError):
    """The server cannot start as asked; the message is one line and says how to fix it."""


class ApiError(Exception):
    """A request is refused or fails. status: HTTP's. code: for programs. param: the field.

    log is the reason for the server's log; give one without the message if that repeats what the
    client has sent, which may be a prompt or a key.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        log: str | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.log = message if log is None else log

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the response, or of an event in a stream."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(
    message: str, param: str | None = None, code: str | None = None, log: str | None = None
) -> ApiError:
    """A request that is wrong in itself, so that repeating it is useless: status 400."""
    return ApiError(400, message, code=code, param=param, log=log)


def busy(message: str, seconds: int) -> ApiError:
    """A request that is right, but too many others are under way: status 429."""
    return ApiError(
        429,
        f"{message}; try again in {seconds} s",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )
