"""Responses to requests that fail, in the form of OpenAI's API."""

import difflib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from course_pkg.deployment.api_errors import ApiError, invalid
from course_pkg.deployment.schemas import NEUTRAL, ChatRequest, CompletionRequest

_FIELDS = CompletionRequest.model_fields | ChatRequest.model_fields | NEUTRAL


def explain(errors: Sequence[dict[str, Any]]) -> ApiError:
    """The first of pydantic's errors about a body, as an ApiError (400)."""
    error = errors[0]
    path = ".".join(str(part) for part in error["loc"][1:])
    # Names and values are the client's; the log has the field of ours that is wrong, and the kind.
    field = next((p for p in error["loc"][1:2] if p in _FIELDS), "the body")
    log = f"{field}: {error['type']}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "json_invalid":
        reason = error["ctx"]["error"]
        return invalid(f"the body is not valid JSON: {reason} at character {path}", log="not JSON")
    if not path and error["type"] != "value_error":
        return invalid("the body must be a JSON object, with Content-Type: application/json")
    if error["type"] == "extra_forbidden":
        known = "does not support" if path in NEUTRAL else "has no field"
        message = f"this server {known} {path!r:.80}; remove it"
        return invalid(message, path[:80], log=log)
    if error["type"] == "missing":
        return invalid(f"{path} is missing", path)
    if error["type"] != "value_error":
        message += f", got {error['input']!r:.80}"
    message = f"{path}: {message}" if path else message
    return invalid(message, path or None, log=log)


def right_path(path: str, paths: Sequence[str]) -> str:
    """Which of the server's paths a wrong one was meant to be, as the end of a message; or "".

    The message has the server's own path and never the client's, which may hold anything.

    Example:

        >>> right_path("/api/v1/chat/completions/", ["/v1/completions", "/v1/chat/completions"])
        ': did you mean /v1/chat/completions? The base URL of a client ends in /v1'
    """
    asked = path.rstrip("/").lower()
    known = {route.partition("/{")[0] for route in paths}
    ends = [route for route in known if asked.endswith(route.removeprefix("/v1"))]
    if not ends:  # a misspelled one, or one with something behind it, such as a model's name
        starts = [
            route for route in known if f"{asked}/".startswith(f"{route.removeprefix('/v1')}/")
        ]
        ends = starts or difflib.get_close_matches(asked, known, 1, 0.8)
    if not ends:
        return ""
    meant = max(ends, key=len)
    base = " The base URL of a client ends in /v1" if meant.startswith("/v1/") else ""
    return f": did you mean {meant}?{base}"


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in the form of OpenAI's API."""

    async def api(request: Request, error: ApiError) -> Response:
        request.scope["summary"] = error.log
        # In ASCII: the message may repeat halves of surrogate pairs.
        return Response(json.dumps(error.body), error.status, error.headers, "application/json")

    async def validation(request: Request, error: RequestValidationError) -> Response:
        return await api(request, explain(error.errors()))

    paths = [route.path for route in app.routes]

    async def http(status: int, message: str, request: Request, error: Exception) -> Response:
        if status == 404:
            message += right_path(request.scope["path"], paths)
        headers = getattr(error, "headers", None)
        return await api(request, ApiError(status, message, headers=headers))

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(RequestValidationError, validation)
    for kind, status, message in (
        (400, 400, "the body cannot be read as JSON"),
        (404, 404, "there is no such path"),
        (405, 405, "this path does not take this method"),
        (Exception, 500, "the server failed"),
    ):
        app.add_exception_handler(kind, partial(http, status, message))


async def send_error(error: ApiError, send: Callable) -> None:
    """Send an error as an ASGI response."""
    body = json.dumps(error.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    listed = [(k.lower().encode(), v.encode()) for k, v in (headers | error.headers).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
