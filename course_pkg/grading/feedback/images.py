"""Images from students: base64 of a PNG or JPEG of a normal size is kept, anything else dropped.

Only the header is read. The image data is decoded by the browser alone.

Chapter: appendix/for-instructors.
"""

import base64
import struct

MAX_BYTES = 2_000_000
MAX_SIDE, MAX_PIXELS = 10_000, 20_000_000
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # the JPEG segments that hold its size


def checked_image(text: str, kind: str, room: int) -> str | None:
    """The base64 of an image, encoded again; None if it is not one, or is too large.

    kind: a MIME type of KINDS. room: the most characters to return.

    >>> checked_image("PHN2Zz4=", "image/png", 1000) is None
    True
    """
    if len(text) > 2 * MAX_BYTES:
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
        width, height = KINDS[kind](data)
    except (ValueError, struct.error, IndexError):
        return None
    fits = 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS
    encoded = base64.b64encode(data).decode()
    return encoded if fits and len(data) <= MAX_BYTES and len(encoded) <= room else None


def _png(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"):
        raise ValueError("not a PNG")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\xff\xd8\xff"):
        raise ValueError("not a JPEG")
    at = 2
    while data[at] == 0xFF and data[at + 1] not in _FRAMES:
        at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    if data[at] != 0xFF:
        raise ValueError("not a JPEG")
    height, width = struct.unpack_from(">HH", data, at + 5)
    return width, height


KINDS = {"image/png": _png, "image/jpeg": _jpeg}
