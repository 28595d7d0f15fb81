"""Frames over a stream socket: a length and a plain value, in either direction.

A frame is 4 bytes of length, big-endian, then that many bytes of `values.encode`. The length is
checked before a byte of the frame is read.

Chapter: appendix/for-instructors.
"""

import socket
import struct
from typing import Any

from .values import MAX_BYTES, decode, encode


def send(sock: socket.socket, value: Any) -> None:
    """Send one plain value. Raises NotPlain, before anything is sent, if it isn't one."""
    data = encode(value)
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive(sock: socket.socket) -> Any:
    """The next plain value. Raises NotPlain for a frame that holds none, after reading all of it.

    Raises EOFError at the end of the stream, and for a frame that is too long to be read.

    >>> a, b = socket.socketpair()
    >>> send(a, {"op": "inputs"})
    >>> receive(b)
    {'op': 'inputs'}
    >>> a.close(); b.close()
    """
    (length,) = struct.unpack(">I", _exactly(sock, 4))
    if length > MAX_BYTES:
        raise EOFError(f"a frame of {length:,} bytes; at most {MAX_BYTES:,} are accepted")
    return decode(_exactly(sock, length))


def _exactly(sock: socket.socket, count: int) -> bytes:
    chunks = []
    while count:
        chunk = sock.recv(min(count, 1 << 20))
        if not chunk:
            raise EOFError("the other side has closed the connection")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
