"""Why a body is refused: the first of pydantic's errors, as the API's error and for the log.

Chapter: deployment/server.
"""

from collections.abc import Sequence
from typing import Any

from course_pkg.deployment.errors import ApiError, invalid
from course_pkg.deployment.schemas import NEUTRAL, ChatRequest, CompletionRequest

_FIELDS = CompletionRequest.model_fields | ChatRequest.model_fields | NEUTRAL


def explain(errors: Sequence[dict[str, Any]]) -> ApiError:
    """The first of pydantic's errors about a body, as an ApiError (400).

    >>> explain([{"type": "missing", "loc": ("body", "model"), "msg": "", "input": {}}]).message
    'model is missing'
    """
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
