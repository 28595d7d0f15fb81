"""Which tokens of an echoed prompt belong to an option, from the texts that a server gives them.

Servers disagree on offsets, so these are not used: the tokens themselves must spell the prompt, in
bytes. A part of a character is written as in OpenAI's API, "bytes:\\xe6\\x97". vLLM writes the
replacement character there, which can stand anywhere in the context but not in the option.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REPLACEMENT = "\ufffd"
LEAST = -1e6  # in nats; the sum over any option stays a number
ROUNDING = 1e-3  # of a probability of 1, which some servers compute in 16 bits
_PART = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")


@dataclass(frozen=True)
class Token:
    """A token of a prompt. log_prob: None for the first. best: the most probable one there."""

    text: str
    log_prob: float | None
    best: bool


def read_tokens(log_probs: Mapping[str, Any]) -> list[Token]:
    """The tokens of a choice's `logprobs`. Raises ValueError for what is no log-probability."""
    try:
        names = ("tokens", "token_logprobs", "top_logprobs")
        rows = list(zip(*(log_probs[name] for name in names), strict=True))
        return [_token(*row) for row in rows]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            f"its log-probabilities have an unknown form: {log_probs!r:.200}"
        ) from None


def first_scored(tokens: Sequence[Token], prompt: str, end: int) -> tuple[int, bool]:
    """The first token beyond the context's `end` characters, and whether it begins before that."""
    data = prompt.encode()
    boundary = len(prompt[:end].encode())
    place = len(data)
    number = len(tokens)
    while place > boundary:
        number -= 1
        spelled = _spelled(tokens[number].text) if number >= 0 else None
        if spelled is None or not data.endswith(spelled, 0, place):
            raise ValueError(_differs(tokens, prompt))
        place -= len(spelled)
    if not _spell(tokens[:number], data[:place]):
        raise ValueError(_differs(tokens, prompt))
    if number == len(tokens) or any(token.log_prob is None for token in tokens[number:]):
        raise ValueError(
            "the option has no log-probability: nothing precedes it, or it has no token"
        )
    return number, place < boundary


def _token(text: Any, log_prob: Any, top: Any) -> Token:
    if not isinstance(text, str):
        raise TypeError
    if log_prob is None:
        return Token(text, None, False)
    values = [_number(text, value) for value in (top or {}).values()]
    log_prob = _number(text, log_prob)
    return Token(text, log_prob, log_prob >= max(values, default=-math.inf))


def _number(text: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not LEAST <= value <= ROUNDING:
        expected = f"expected a number from {LEAST:.0f} to 0"
        raise ValueError(f"{value!r:.40} is the log-probability of {text!r:.40}: {expected}")
    return min(float(value), 0.0)


def _spelled(text: str) -> bytes | None:
    """The bytes of a token; None if the server does not say them."""
    if part := _PART.fullmatch(text):
        return bytes.fromhex(part[1].replace("\\x", ""))
    return None if REPLACEMENT in text else text.encode("utf-8", "surrogatepass")


def _spell(tokens: Sequence[Token], data: bytes) -> bool:
    """Whether these tokens spell a prompt's beginning, perhaps after a BOS or a space."""
    spelled = [_spelled(token.text) for token in tokens]
    begun = ((parts, text) for parts in (spelled, spelled[1:]) for text in (data, b" " + data))
    return any(_matches(parts, text) for parts, text in begun)


def _matches(spelled: Sequence[bytes | None], data: bytes) -> bool:
    """Whether the parts before the first unknown one begin the data, and those after it end it."""
    if None not in spelled:
        return b"".join(part for part in spelled if part is not None) == data
    first = spelled.index(None)
    last = len(spelled) - 1 - list(reversed(spelled)).index(None)
    start = b"".join(part for part in spelled[:first] if part is not None)
    stop = b"".join(part for part in spelled[last + 1 :] if part is not None)
    return data.startswith(start) and data.endswith(stop) and len(start + stop) < len(data)


def _differs(tokens: Sequence[Token], prompt: str) -> str:
    ends = "".join(token.text for token in tokens)[-40:]
    wanted = prompt[-40:]
    return f"its tokens, which end in {ends!r}, do not spell the prompt, which ends in {wanted!r}"
