"""Objects of a request: strict types, no unknown fields, and values that ask for nothing.

Chapter: deployment/server.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MOST_FIELDS = 100

# Values that ask for nothing; other values of these fields are refused.
NEUTRAL: dict[str, Sequence[Any]] = {
    "best_of": (1,),
    "suffix": ("",),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (False, True),  # of tools, which there are none
    "top_k": (-1,),  # vLLM's for all tokens
    "tool_calls": ([],),  # of a message, as an answer has them
    "annotations": ([],),
}


def _is_neutral(name: str, value: Any) -> bool:
    """Whether a field with this value asks for nothing; null counts as absent."""
    if value is None:
        return True
    # 0 == False, but only one of them is a number.
    same_kind = [v for v in NEUTRAL.get(name, ()) if isinstance(v, bool) == isinstance(value, bool)]
    return value in same_kind


def _without_neutral(data: Any) -> Any:
    """An object without the fields that ask for nothing."""
    if not isinstance(data, dict):
        return data
    if len(data) > MOST_FIELDS:
        raise ValueError(f"an object has {len(data)} fields")
    return {name: value for name, value in data.items() if not _is_neutral(name, value)}


class Fields(BaseModel):
    """An object of a request: strict types, no unknown fields, null for the default."""

    model_config = ConfigDict(strict=True, extra="forbid")

    _drop_neutral = model_validator(mode="before")(staticmethod(_without_neutral))
