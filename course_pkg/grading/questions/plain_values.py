"""Plain values, the only thing that passes between an answer and its judge, and how they are sent.

A plain value is a number, a text, bytes, None, a list, tuple or dict of plain values, or an array.
`decode` reads bytes that may be hostile: it checks sizes before it allocates, and nothing in the
bytes can name code. The format is JSON, followed by the bytes of the arrays. It isn't msgpack:
commas in JSON count the values before any is built, while msgpack makes 600 MB of objects of 8 MB.
"""

import json
import math
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

MAX_BYTES = 64 * 1024 * 1024
MAX_JSON_BYTES = 8 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 32
MAX_DIGITS = 1_000
MAX_DIMENSIONS = 16
ITEM_SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
ITEM_SIZES |= {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class NotPlain(ValueError):
    """The value, or the bytes, are not a plain value; the message says why."""


@dataclass(frozen=True)
class Array:
    """An array as bytes: little-endian, C order; dtype is a name from ITEM_SIZES."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> Any:
        """A writable numpy copy; bfloat16 is widened to float32, which is exact."""
        import numpy as np

        if self.dtype == "bfloat16":
            bits = np.frombuffer(self.data, "<u2").astype("<u4") << 16
            return bits.view("<f4").reshape(self.shape)
        dtype = np.dtype(self.dtype).newbyteorder("<")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)

    @classmethod
    def of(cls, value: Any) -> "Array":
        """The array that a numpy array or a torch tensor holds."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
            if value.dtype == torch.bfloat16:
                bits = value.view(torch.int16).numpy()
                return cls("bfloat16", tuple(bits.shape), bits.astype("<i2").tobytes())
            value = value.numpy()
        name = value.dtype.name
        if name not in ITEM_SIZES:
            raise NotPlain(f"an array of {name}; expected one of {', '.join(ITEM_SIZES)}")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return cls(name, tuple(value.shape), little.tobytes(order="C"))


def encode(value: Any) -> bytes:
    """The bytes of a plain value, or NotPlain. Tensors and numpy values become arrays and numbers.

    Example:

        >>> decode(encode({"loss": 0.5, "steps": [1, 2]}))
        {'loss': 0.5, 'steps': [1, 2]}
    """
    writer = _Writer()
    tree = writer.node(value, MAX_DEPTH)
    plain = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    text = plain.encode("utf-8", "surrogatepass")  # `decode` refuses lone surrogates
    if len(text) > MAX_JSON_BYTES:
        raise NotPlain(f"{len(text):,} bytes of text and numbers; at most {MAX_JSON_BYTES:,} fit")
    data = b"".join([struct.pack(">I", len(text)), text, *writer.blobs])
    if len(data) > MAX_BYTES:
        raise NotPlain(f"a value of {len(data):,} bytes; at most {MAX_BYTES:,} can be submitted")
    return data


def decode(data: bytes) -> Any:
    """The plain value in `data`; arrays come back as `Array`. Raises NotPlain if malformed."""
    if not 4 <= len(data) <= MAX_BYTES:
        raise NotPlain(f"{len(data):,} bytes; expected 4 to {MAX_BYTES:,}")
    (length,) = struct.unpack(">I", data[:4])
    text = data[4 : 4 + length]
    if length > MAX_JSON_BYTES or len(text) != length:
        raise NotPlain("the length of the text part is wrong")
    if text.count(b",") + text.count(b"[") > 3 * MAX_NODES:
        raise NotPlain(f"more than {MAX_NODES:,} values")
    try:
        tree = json.loads(
            text, parse_int=_integer, parse_float=_refuse_number, parse_constant=_refuse_number
        )
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"not the format of a plain value: {error}") from None
    reader = _Reader(data, 4 + length)
    value = reader.value(tree, MAX_DEPTH)
    if reader.position != len(data):
        raise NotPlain(f"{len(data) - reader.position:,} bytes too many")
    return value


def as_plain(value: Any) -> Any:
    """A copy of the value as the other side gets it: arrays are `Array`, numbers Python's."""
    return decode(encode(value))


def send(sock: "socket.socket", value: Any) -> None:
    """Send one plain value. Raises NotPlain, before anything is sent, for any other value."""
    data = encode(value)
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive(sock: "socket.socket") -> Any:
    """The next plain value. Raises NotPlain for a malformed one, after reading its whole frame.

    Raises:
        EOFError: at the end of the stream, and for a frame that is too long to be read.
    """
    (length,) = struct.unpack(">I", _read_exactly(sock, 4))
    if length > MAX_BYTES:
        raise EOFError(f"a frame of {length:,} bytes; at most {MAX_BYTES:,} are accepted")
    return decode(_read_exactly(sock, length))


def _read_exactly(sock: "socket.socket", count: int) -> bytes:
    chunks = []
    while count:
        chunk = sock.recv(min(count, 1 << 20))
        if not chunk:
            raise EOFError("the other side has closed the connection")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


class _Writer:
    """Turns a value into JSON; collects the bytes of its arrays."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.count = 0

    def node(self, value: Any, depth: int) -> Any:
        if depth == 0:
            raise NotPlain(f"a value nested deeper than {MAX_DEPTH} levels")
        self.count += 1
        if self.count > MAX_NODES:  # before the rest is converted, which could take seconds
            raise NotPlain(f"more than {MAX_NODES:,} values")
        numpy = sys.modules.get("numpy")
        torch = sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic):
            value = value.item()
        arrays = [m for m in (numpy and numpy.ndarray, torch and torch.Tensor) if m]
        if isinstance(value, tuple(arrays)):
            value = Array.of(value)
        match value:
            case None | bool():
                return value
            case int():
                return int(value)
            case float():
                return ["f", float.hex(float(value))]
            case str():
                return str(value)
            case bytes():
                self.blobs.append(bytes(value))
                return ["b", len(value)]
            case Array():
                self.blobs.append(value.data)
                return ["a", value.dtype, list(value.shape)]
            case list() | tuple():
                kind = "l" if isinstance(value, list) else "t"
                return [kind, [self.node(item, depth - 1) for item in value]]
            case dict():
                pairs = []
                for key, item in value.items():
                    if isinstance(key, bool) or not isinstance(key, str | int):
                        raise NotPlain(
                            f"a key of type {type(key).__name__}; expected text or integers"
                        )
                    pairs.append([key, self.node(item, depth - 1)])
                return ["d", pairs]
        raise NotPlain(
            f"a value of type {type(value).__name__}; expected a number, text, list, dict or array"
        )


class _Reader:
    """Rebuilds a value; takes its arrays and bytes from `data` in order, each byte once."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.position:
            raise NotPlain("an array or bytes longer than what was sent")
        self.position += count
        return self.data[self.position - count : self.position]

    def value(self, node: Any, depth: int) -> Any:
        if depth == 0:
            raise NotPlain(f"a value nested deeper than {MAX_DEPTH} levels")
        match node:
            case None | bool() | int():
                return node
            case str():
                return _text(node)
            case ["f", str(text)]:
                try:
                    return float.fromhex(text)
                except (ValueError, OverflowError):
                    raise NotPlain("a malformed number") from None
            case ["b", int(count)] if not isinstance(count, bool):
                return self.take(count)
            case ["a", str(dtype), list(shape)]:
                return self.array(dtype, shape)
            case ["l", list(items)]:
                return [self.value(item, depth - 1) for item in items]
            case ["t", list(items)]:
                return tuple(self.value(item, depth - 1) for item in items)
            case ["d", list(pairs)]:
                return self.dictionary(pairs, depth)
        raise NotPlain("not the format of a plain value")

    def array(self, dtype: str, shape: list[Any]) -> Array:
        if dtype not in ITEM_SIZES or len(shape) > MAX_DIMENSIONS:
            raise NotPlain("an array of an unknown dtype or of too many dimensions")
        possible = all(type(size) is int and 0 <= size <= MAX_BYTES for size in shape)
        if not possible or math.prod(max(size, 1) for size in shape) > MAX_BYTES:
            raise NotPlain("an array with an impossible shape")
        return Array(dtype, tuple(shape), self.take(math.prod(shape) * ITEM_SIZES[dtype]))

    def dictionary(self, pairs: list[Any], depth: int) -> dict[str | int, Any]:
        out: dict[str | int, Any] = {}
        for pair in pairs:
            match pair:
                case [str() | int() as key, item] if not isinstance(key, bool) and key not in out:
                    out[_text(key) if isinstance(key, str) else key] = self.value(item, depth - 1)
                case _:
                    raise NotPlain("a dictionary with a wrong or a repeated key")
        return out


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise NotPlain(f"an integer of more than {MAX_DIGITS:,} digits")
    return int(digits)


def _refuse_number(text: str) -> None:
    raise NotPlain("a number in a form that plain values do not use")


def _text(text: str) -> str:
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise NotPlain("text with a lone surrogate")
    return text
