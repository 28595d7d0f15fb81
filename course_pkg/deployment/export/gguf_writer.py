"""Write a GGUF file: keys, tensors' entries, then the data of one tensor at a time.

`gguf_format` describes the format, and `gguf_file` reads it. Bytes equal those of the gguf
package's GGUFWriter for the same keys and tensors. Here a tensor's data is made when its turn
comes, so that memory holds one tensor, and an array may be empty, as the merges of a tokenizer that
knows only bytes.

Source: docs/gguf.md of ggml. Chapter: deployment/edge.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import BinaryIO

from course_pkg.deployment.export.gguf_format import (
    ALIGNMENT,
    ALIGNMENT_KEY,
    MAGIC,
    STRUCT_CODES,
    TENSOR_CODES,
    VALUE_TYPES,
    VERSION,
    TensorInfo,
    Value,
    padding,
)


def write_gguf_file(
    file: BinaryIO,
    metadata: Mapping[str, Value],
    tensors: Iterable[TensorInfo],
    data: Callable[[TensorInfo], bytes],
) -> None:
    """Write a whole file, version 3, little-endian.

    tensors: in the order of their data; their offsets are computed here. data: called once for each
    of them; returns exactly its nbytes. Raises ValueError if it returns another number of bytes.

    >>> from io import BytesIO
    >>> file = BytesIO()
    >>> key = {"general.architecture": Value("STRING", "llama")}
    >>> write_gguf_file(file, key, [TensorInfo("x", (2,), "F32")], lambda info: bytes(8))
    >>> len(file.getvalue()), file.getvalue()[:8]
    (160, b'GGUF\\x03\\x00\\x00\\x00')
    """
    alignment = metadata.get(ALIGNMENT_KEY, Value("UINT32", ALIGNMENT)).value
    placed = _with_offsets(tensors, alignment)
    head = MAGIC + struct.pack("<IQQ", VERSION, len(placed), len(metadata))
    head += b"".join(_text(key) + _typed(value) for key, value in metadata.items())
    head += b"".join(map(_entry, placed))
    file.write(head + bytes(padding(len(head), alignment)))
    for info in placed:
        content = data(info)
        if len(content) != info.nbytes:
            raise ValueError(f"{info.name} has {len(content)} bytes, expected {info.nbytes}")
        file.write(content)
        file.write(bytes(padding(info.nbytes, alignment)))


def _with_offsets(tensors: Iterable[TensorInfo], alignment: int) -> list[TensorInfo]:
    placed = []
    offset = 0
    for info in tensors:
        placed.append(replace(info, offset=offset))
        offset += info.nbytes + padding(info.nbytes, alignment)
    return placed


def _text(text: str) -> bytes:
    content = text.encode("utf-8")
    return struct.pack("<Q", len(content)) + content


def _typed(value: Value) -> bytes:
    """The type, and what follows it."""
    kind = struct.pack("<I", VALUE_TYPES.index(value.type))
    if value.type != "ARRAY":
        return kind + _plain(value.type, value.value)
    element = struct.pack("<IQ", VALUE_TYPES.index(value.element), len(value.value))
    return kind + element + b"".join(_plain(value.element, each) for each in value.value)


def _plain(kind: str, value: object) -> bytes:
    return _text(value) if kind == "STRING" else struct.pack(f"<{STRUCT_CODES[kind]}", value)


def _entry(info: TensorInfo) -> bytes:
    sizes = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *reversed(info.shape))
    return _text(info.name) + sizes + struct.pack("<IQ", TENSOR_CODES[info.type], info.offset)
