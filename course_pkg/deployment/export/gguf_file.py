"""Read and write GGUF files: keys, tensors, and a table of all bytes of a file that was read.

The file is not trusted: no memory is allocated by a number in it before the file is seen to have
that many bytes. What is written equals the bytes of the gguf package's GGUFWriter, but memory holds
one tensor at a time. Source: docs/gguf.md of ggml.
"""

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from course_pkg.deployment.export.gguf_format import (
    ALIGNMENT,
    ALIGNMENT_KEY,
    MAGIC,
    MOST_DIMENSIONS,
    STRUCT_CODES,
    TENSOR_CODES,
    VALUE_TYPES,
    VERSION,
    ByteSpan,
    GGUFFile,
    MetadataValue,
    TensorInfo,
    block_of,
    padding,
)
from course_pkg.lm.model_errors import CorruptModelError

LONGEST_PROBLEM = 200  # characters; a name in a damaged file may have any length


def read_gguf_file(path: str | os.PathLike) -> GGUFFile:
    """The keys, the tensors' entries and a table of all bytes of a GGUF file.

    Raises:
        CorruptModelError: it is not GGUF version 3 in little-endian, or contradicts itself.
    """
    path = Path(path)
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CorruptModelError(f"{path} is empty: copy it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()


class _Reader:
    """A position in the file's bytes, and the spans before it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.spans: list[ByteSpan] = []

    def read(self) -> GGUFFile:
        self._read_header()
        tensor_count = self._number("UINT64", "count of tensors")
        key_count = self._number("UINT64", "count of keys")
        self._require(
            13 * key_count + 32 * tensor_count, f"{tensor_count} tensors, {key_count} keys"
        )
        metadata: dict[str, MetadataValue] = {}
        for _ in range(key_count):
            key, value = self._read_key()
            if key in metadata:
                raise self._corrupt(f"has the key {key} twice")
            metadata[key] = value
        tensors: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            info = self._read_tensor_info()
            if info.name in tensors:
                raise self._corrupt(f"has the tensor {info.name} twice")
            tensors[info.name] = info
        data_offset = self._read_data(tensors, self._alignment(metadata))
        return GGUFFile(self.path, metadata, tensors, data_offset, tuple(self.spans))

    def _read_header(self) -> None:
        if (magic := self._take(4, "magic")) != MAGIC:
            raise CorruptModelError(f"{self.path} is not a GGUF file: it begins with {magic!r}")
        self._span(4, "magic", MAGIC.decode())
        version = self._number("UINT32", "version")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version > 0xFFFF and swapped <= 0xFFFF:
            raise CorruptModelError(
                f"{self.path} is big-endian: convert it with the command gguf-convert-endian"
            )
        if version != VERSION:
            raise CorruptModelError(
                f"{self.path} has version {version} of GGUF, expected {VERSION}: convert the model "
                "again with a current program"
            )

    def _read_key(self) -> tuple[str, MetadataValue]:
        key = self._text("key")
        kind = self._type("type of the value", VALUE_TYPES)
        if kind == "STRING":
            return key, MetadataValue(kind, self._text("value"))
        if kind != "ARRAY":
            return key, MetadataValue(kind, self._number(kind, "value"))
        element = self._type("type of the elements", VALUE_TYPES)
        if element == "ARRAY":
            raise self._corrupt(f"has an array of arrays in {key}, which llama.cpp refuses too")
        count = self._number("UINT64", "count of elements")
        start = self.position
        if element == "STRING":
            self._require(8 * count, f"{count} texts in {key}")
            elements: list = [self._raw_text(key) for _ in range(count)]
        else:
            size = struct.calcsize(STRUCT_CODES[element])
            self._require(size * count, f"{count} numbers in {key}")
            code = f"<{count}{STRUCT_CODES[element]}"
            elements = list(struct.unpack(code, self._take(size * count, key)))
        self.spans.append(
            ByteSpan(
                start, self.position - start, "elements", f"{count} × {element}: {elements[:4]}"
            )
        )
        return key, MetadataValue(kind, elements, element)

    def _read_tensor_info(self) -> TensorInfo:
        name = self._text("tensor")
        count = self._number("UINT32", "count of dimensions")
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self._corrupt(f"gives {name} {count} dimensions, expected 1 to {MOST_DIMENSIONS}")
        sizes = [self._number("UINT64", "dimension") for _ in range(count)]
        codes = {code: name for name, code in TENSOR_CODES.items()}
        kind = self._type("type", codes)
        offset = self._number("UINT64", "offset of the data")
        columns = block_of(kind)[0]
        if 0 in sizes or sizes[0] % columns:
            raise self._corrupt(
                f"gives {name} the dimensions {sizes}, expected positive ones, the first of them a "
                f"multiple of {columns}, for {kind}"
            )
        return TensorInfo(name, tuple(reversed(sizes)), kind, offset)

    def _alignment(self, metadata: dict[str, MetadataValue]) -> int:
        entry = metadata.get(ALIGNMENT_KEY, MetadataValue("UINT32", ALIGNMENT))
        if entry.type != "UINT32" or entry.value.bit_count() != 1:
            raise self._corrupt(f"has {ALIGNMENT_KEY} {entry.value}, expected a power of two")
        return entry.value

    def _read_data(self, tensors: dict[str, TensorInfo], alignment: int) -> int:
        """Account for all bytes after the entries; return where the first data begins."""
        self._pad(alignment)
        data_offset = self.position
        for info in tensors.values():
            expected = self.position - data_offset
            if info.offset != expected:
                raise self._corrupt(
                    f"puts {info.name} at offset {info.offset}, expected {expected}, right after "
                    "the tensor before it"
                )
            self._require(info.nbytes, f"the data of {info.name}")
            self._advance(info.nbytes, "data", f"{info.name}, {info.shape} in {info.type}")
            self._pad(alignment)
        if rest := len(self.data) - self.position:
            self._advance(rest, "unused", "no tensor has these bytes")
        return data_offset

    def _pad(self, alignment: int) -> None:
        count = min(padding(self.position, alignment), len(self.data) - self.position)
        if count:
            self._advance(count, "padding", f"to a multiple of {alignment}")

    def _text(self, what: str) -> str:
        start = self.position
        text = self._raw_text(what)
        self.spans.append(
            ByteSpan(start, 8, f"length of the {what}", f"{self.position - start - 8}")
        )
        self.spans.append(ByteSpan(start + 8, self.position - start - 8, what, text))
        return text

    def _raw_text(self, what: str) -> str:
        [length] = struct.unpack("<Q", self._take(8, what))
        content = self._take(length, f"a text of {length} bytes ({what})")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise self._corrupt(f"has a text that is not UTF-8 ({what})") from None

    def _number(self, kind: str, what: str) -> Any:
        code = STRUCT_CODES[kind]
        [value] = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), what))
        self._span(struct.calcsize(f"<{code}"), what, f"{value:g}" if code in "fd" else str(value))
        return value

    def _type(self, what: str, names: Sequence[str] | Mapping[int, str]) -> str:
        code = self._number("UINT32", what)
        try:
            name = names[code]
        except (IndexError, KeyError):
            raise self._corrupt(f"has {what} {code}, which this reader does not know") from None
        self.spans[-1] = ByteSpan(self.position - 4, 4, what, f"{code}, {name}")
        return name

    def _take(self, nbytes: int, what: str) -> bytes:
        self._require(nbytes, what)
        start = self.position
        self.position += nbytes
        return self.data[start : self.position]

    def _advance(self, nbytes: int, what: str, text: str) -> None:
        self.position += nbytes
        self._span(nbytes, what, text)

    def _span(self, nbytes: int, what: str, text: str) -> None:
        self.spans.append(ByteSpan(self.position - nbytes, nbytes, what, text))

    def _require(self, nbytes: int, what: str) -> None:
        left = len(self.data) - self.position
        if nbytes > left:
            raise self._corrupt(f"announces {what}, but only {left} bytes follow")

    def _corrupt(self, problem: str) -> CorruptModelError:
        shown = "".join(
            character if character.isprintable() else "?" for character in problem[:LONGEST_PROBLEM]
        )
        return CorruptModelError(
            f"{self.path} {shown} (at byte {self.position}): it is damaged or cut off; copy it "
            "again"
        )


def write_gguf_file(
    file: BinaryIO,
    metadata: Mapping[str, MetadataValue],
    tensors: Iterable[TensorInfo],
    data: Callable[[TensorInfo], bytes],
) -> None:
    """Write a whole file, version 3, little-endian; `data` returns each tensor's nbytes in turn."""
    alignment = metadata.get(ALIGNMENT_KEY, MetadataValue("UINT32", ALIGNMENT)).value
    placed = []
    offset = 0
    for info in tensors:
        placed.append(replace(info, offset=offset))
        offset += info.nbytes + padding(info.nbytes, alignment)
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


def _text(text: str) -> bytes:
    content = text.encode("utf-8")
    return struct.pack("<Q", len(content)) + content


def _typed(value: MetadataValue) -> bytes:
    kind = struct.pack("<I", VALUE_TYPES.index(value.type))
    if value.type != "ARRAY":
        return kind + _plain(value.type, value.value)
    element = struct.pack("<IQ", VALUE_TYPES.index(value.element), len(value.value))
    return kind + element + b"".join(_plain(value.element, item) for item in value.value)


def _plain(kind: str, value: object) -> bytes:
    return _text(value) if kind == "STRING" else struct.pack(f"<{STRUCT_CODES[kind]}", value)


def _entry(info: TensorInfo) -> bytes:
    sizes = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *reversed(info.shape))
    return _text(info.name) + sizes + struct.pack("<IQ", TENSOR_CODES[info.type], info.offset)
