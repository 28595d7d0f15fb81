"""Frames between the command and its gateway to the cluster: a kind, a number, and bytes.

The gateway talks to machines that are not trusted, so the command accepts a frame only up to the
size that its kind may have.

Chapter: appendix/threat-model.
"""

import select
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

HEAD = struct.Struct("!cIQ")
# Kinds from the command:
START = b"s"
SUBMIT = b"t"
# Kinds from the gateway:
ROOM = b"r"  # how many submissions may be sent
REPLY = b"a"  # a worker's reply about a submission
GIVEN_UP = b"k"  # a submission took down too many workers
NO_GPU = b"g"  # a submission needs a GPU
NOTE = b"n"  # for the instructor
LOST = b"l"  # nothing can be run any longer
ALIVE = b"h"  # the gateway still runs
MAX_NOTE = 4_000
MOST_BYTES = {NO_GPU: MAX_NOTE, NOTE: MAX_NOTE, LOST: MAX_NOTE, GIVEN_UP: 0, ROOM: 0, ALIVE: 0}


class Frame(NamedTuple):
    """One frame. number: of a submission; for ROOM, how many; for NOTE, of a machine."""

    kind: bytes
    number: int = 0
    body: bytes = b""


def said(kind: bytes, text: str, number: int = 0) -> Frame:
    """A frame with a text, which is cut if it is too long. number: as for `Frame`."""
    return Frame(kind, number, text.encode(errors="replace")[:MAX_NOTE])


def to_bytes(frame: Frame) -> bytes:
    """The whole frame.

    >>> len(to_bytes(Frame(ROOM, 8)))
    13
    """
    return HEAD.pack(frame.kind, frame.number, len(frame.body)) + frame.body


def receive(
    sock: socket.socket, most: Mapping[bytes, int], seconds_left: Callable[[], float]
) -> Frame:
    """The next frame. most: the bytes that each kind's body may have.

    seconds_left: how long to wait for the whole frame. Raises EOFError at the end, ValueError for
    an unknown kind or a body that is too large, and TimeoutError.
    """
    kind, number, size = HEAD.unpack(_exactly(sock, HEAD.size, seconds_left))
    if size > most.get(kind, -1):
        raise ValueError(f"a frame {kind!r} of {size:,} bytes; expected at most {most.get(kind)}")
    return Frame(kind, number, _exactly(sock, size, seconds_left))


def _exactly(sock: socket.socket, size: int, seconds_left: Callable[[], float]) -> bytes:
    pieces = []
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while size:
        left = seconds_left()
        # Whoever sends without a pause would be waited for without an end.
        if left <= 0 or not poll.poll(1000 * left):
            raise TimeoutError
        piece = sock.recv(min(size, 2**20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
