"""Messages of plain values between a program and its tests, which are in different processes.

Nothing here trusts the other side. A value is JSON with its type, so an object with an `__eq__`
that is always true can't cross; unlike pickle, reading runs no code.
"""

import json
import socket
from numbers import Integral, Real
from typing import Any

MOST_BYTES = 4 << 20  # of one message
HEADER = 4  # bytes: the length of a message
SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotSendable(TypeError):
    """A value that can't cross."""


class MessageTooLong(ValueError):
    """A message of more than `MOST_BYTES`."""


def to_plain(value: Any) -> Any:
    """The value as what JSON can write; numbers of other libraries become int or float.

    >>> to_plain((1, None))
    {'tuple': [{'int': '0x1'}, None]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return {"int": hex(int(value))}
    if isinstance(value, Real):
        return {"float": float(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[to_plain(key), to_plain(held)] for key, held in value.items()]}
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [to_plain(held) for held in value]}
    raise NotSendable(f"a value of type {type(value).__name__} can't be compared")


def from_plain(written: Any) -> Any:
    """The value that `to_plain` has written."""
    if written is None or isinstance(written, bool | str):
        return written
    try:
        [(name, held)] = written.items()
        if name in SEQUENCES:
            return SEQUENCES[name]([from_plain(inner) for inner in held])
        if name == "dict":
            return {from_plain(key): from_plain(inner) for key, inner in held}
        if name == "complex":
            real, imaginary = map(float.fromhex, held)
            return complex(real, imaginary)
        readers = {"bytes": bytes.fromhex, "float": float.fromhex}
        return int(held, 16) if name == "int" else readers[name](held)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}") from None


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. Raises MessageTooLong, or OSError if the other end is closed."""
    content = json.dumps(message).encode()
    if len(content) > MOST_BYTES:
        raise MessageTooLong(f"a value of {len(content):,} bytes; at most {MOST_BYTES:,}")
    channel.sendall(len(content).to_bytes(HEADER, "big") + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None if the other end is closed. Raises ValueError for no JSON object."""
    header = _read(channel, HEADER)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    if length > MOST_BYTES:
        raise MessageTooLong(f"a message of {length:,} bytes; at most {MOST_BYTES:,}")
    content = _read(channel, length)
    if content is None:
        return None
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("not a message") from None
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _read(channel: socket.socket, count: int) -> bytes | None:
    content = b""
    while len(content) < count:
        try:
            part = channel.recv(min(count - len(content), 1 << 16))
        except ConnectionError:
            part = b""
        if not part:
            return None
        content += part
    return content
