"""GGUF, the file format of llama.cpp's models: its types, and what a file holds.

A file holds all that a program needs to run a model: its sizes, its tokenizer, its weights. Every
number is little-endian::

    "GGUF", version 3, count of tensors, count of keys
    each key:     length and name, type, value
    each tensor:  length and name, count of dimensions, dimensions, type, offset of its data
    padding to a multiple of the alignment, 32 unless the key general.alignment says otherwise
    each tensor's data, and padding after it

A text is its length, 8 bytes, and UTF-8. A tensor's dimensions are in ggml's order, the reverse of
torch's: a row's length comes first. Offsets count from the first tensor's data.

Source: docs/gguf.md of ggml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_pkg.acceleration.quantization.gguf_blocks import FORMATS, read_gguf

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MOST_DIMENSIONS = 4
WIDTH = 90  # characters of a line of the table
STRUCT_CODES = {  # of the numbers, in the struct module
    "UINT8": "B",
    "INT8": "b",
    "UINT16": "H",
    "INT16": "h",
    "UINT32": "I",
    "INT32": "i",
    "FLOAT32": "f",
    "BOOL": "?",
    "UINT64": "Q",
    "INT64": "q",
    "FLOAT64": "d",
}
VALUE_TYPES = (*list(STRUCT_CODES)[:8], "STRING", "ARRAY", *list(STRUCT_CODES)[8:])  # by code
TENSOR_CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8}
TENSOR_CODES |= {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class MetadataValue:
    """A key's value: its type, one of VALUE_TYPES; for an array, also the type of its elements."""

    type: str
    value: Any
    element: str | None = None


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's entry. shape: in torch's order, (rows, columns). offset: from the first data."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the data, without padding."""
        size, nbytes = block_of(self.type)
        return math.prod(self.shape) // size * nbytes


@dataclass(frozen=True)
class ByteSpan:
    """A piece of the file: where it is, what it is, and what it says."""

    offset: int
    nbytes: int
    what: str
    text: str


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """What a file holds. spans: all its bytes in order, each in exactly one of them."""

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]
    data_offset: int
    spans: tuple[ByteSpan, ...]

    def data(self, name: str) -> Tensor:
        """A tensor's bytes, uint8, (rows, bytes of a row)."""
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        offset = self.data_offset + info.offset
        shape = (rows, info.nbytes // rows)
        return torch.from_numpy(np.array(np.memmap(self.path, np.uint8, "r", offset, shape)))

    def tensor(self, name: str) -> Tensor:
        """A tensor's numbers, fp32, in torch's shape; rows in the file's order."""
        info = self.tensors[name]
        if info.type in PLAIN:
            return self.data(name).view(PLAIN[info.type]).float().view(info.shape)
        return read_gguf(self.data(name), info.type).dequantize().view(info.shape)

    def table(self, first: int = 0, count: int | None = None) -> Iterator[str]:
        """Lines of spans from number `first` on: offset, size, first bytes, what it is and says."""
        last = len(self.spans) if count is None else first + count
        with self.path.open("rb") as file:
            for span in self.spans[first:last]:
                file.seek(span.offset)
                shown = file.read(min(span.nbytes, 8)).hex(" ") + " …" * (span.nbytes > 8)
                line = f"{span.offset:>10} {span.nbytes:>9}  {shown:25}   {span.what}: {span.text}"
                yield line.replace("\n", "\\n")[:WIDTH]


def block_of(name: str) -> tuple[int, int]:
    """Weights and bytes of a block of this type; a plain number is a block of one."""
    if name in PLAIN:
        return 1, PLAIN[name].itemsize
    return FORMATS[name].size, FORMATS[name].nbytes


def padding(position: int, alignment: int = ALIGNMENT) -> int:
    """Bytes from a position to the next multiple of the alignment."""
    return -position % alignment
