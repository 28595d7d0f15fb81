"""GGUF files, read byte by byte: every byte accounted for, every field as the gguf package's."""

import struct
from io import BytesIO

import gguf
import numpy as np
import pytest
import torch

from course_pkg.deployment.export.gguf_file import read_gguf_file, write_gguf_file
from course_pkg.deployment.export.gguf_format import (
    TENSOR_CODES,
    MetadataValue,
    TensorInfo,
    block_of,
)
from course_pkg.lm.model_errors import CorruptModelError
from course_pkg.lm.smollm2 import find_gguf

METADATA = {
    "general.architecture": MetadataValue("STRING", "llama"),
    "a.uint8": MetadataValue("UINT8", 255),
    "a.int8": MetadataValue("INT8", -128),
    "a.uint16": MetadataValue("UINT16", 65535),
    "a.int16": MetadataValue("INT16", -32768),
    "a.uint32": MetadataValue("UINT32", 2**32 - 1),
    "a.int32": MetadataValue("INT32", -(2**31)),
    "a.float32": MetadataValue("FLOAT32", 0.5),
    "a.bool": MetadataValue("BOOL", True),
    "a.uint64": MetadataValue("UINT64", 2**64 - 1),
    "a.int64": MetadataValue("INT64", -(2**63)),
    "a.float64": MetadataValue("FLOAT64", 0.1),
    "a.text": MetadataValue("STRING", "naïve 😀\n"),
    "a.texts": MetadataValue("ARRAY", ["", "é"], "STRING"),
    "a.numbers": MetadataValue("ARRAY", [1, -2, 3], "INT32"),
}
TENSORS = [
    TensorInfo("one", (3,), "F32"),
    TensorInfo("two", (2, 32), "Q4_0"),
    TensorInfo("three", (2, 3, 64), "Q8_0"),
    TensorInfo("four", (5, 7), "F16"),
]


def content(info):
    return bytes(number % 251 for number in range(info.nbytes))


def written(metadata=METADATA, tensors=TENSORS):
    file = BytesIO()
    write_gguf_file(file, metadata, tensors, content)
    return file.getvalue()


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "a.gguf"
        path.write_bytes(data)
        return read_gguf_file(path)

    return read


def assert_equals_the_gguf_package(file):
    theirs = gguf.GGUFReader(file.path)
    starts = {span.text: span.offset - 8 for span in file.spans if span.what == "key"}
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(fields) == list(file.metadata)
    for key, field in fields.items():
        mine = file.metadata[key]
        assert [kind.name for kind in field.types] == [t for t in (mine.type, mine.element) if t]
        assert field.contents() == mine.value, key
        assert field.offset == starts[key]
    assert [tensor.name for tensor in theirs.tensors] == list(file.tensors)
    for tensor in theirs.tensors:
        mine = file.tensors[tensor.name]
        assert tensor.tensor_type.name == mine.type
        assert tuple(reversed(tensor.shape.tolist())) == mine.shape
        assert (tensor.n_bytes, tensor.data_offset) == (mine.nbytes, file.data_offset + mine.offset)
        assert np.array_equal(
            tensor.data.reshape(-1).view(np.uint8), file.data(mine.name).flatten()
        )


def assert_spans_tile_the_file(file):
    position = 0
    for span in file.spans:
        assert span.offset == position and span.nbytes >= 0
        position += span.nbytes
    assert position == file.path.stat().st_size


def test_codes_and_sizes_of_types_are_those_of_the_gguf_package():
    for name, code in TENSOR_CODES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert kind.value == code and gguf.GGML_QUANT_SIZES[kind] == block_of(name)


def test_every_type_of_value_and_tensor_reads_as_written_and_as_the_gguf_package_reads_it(read):
    file = read(written())
    assert file.metadata == METADATA
    for info, entry in zip(TENSORS, file.tensors.values(), strict=True):
        assert (entry.name, entry.shape, entry.type) == (info.name, info.shape, info.type)
        assert file.data(info.name).flatten().tolist() == list(content(info))
    assert_spans_tile_the_file(file)
    assert_equals_the_gguf_package(file)


def test_bytes_equal_those_of_the_gguf_packages_writer(tmp_path):
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in list(METADATA.items())[1:]:
        writer.add_key_value(key, value.value, gguf.GGUFValueType[value.type])
    for info in TENSORS:
        rows = (*info.shape[:-1], info.nbytes // int(np.prod(info.shape[:-1])))
        raw = np.frombuffer(content(info), np.uint8)
        kind = gguf.GGMLQuantizationType[info.type]
        if info.type in ("F32", "F16"):
            raw = raw.view({"F32": np.float32, "F16": np.float16}[info.type]).reshape(info.shape)
            writer.add_tensor(info.name, raw)
        else:
            writer.add_tensor(info.name, raw.reshape(rows), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert path.read_bytes() == written()


def test_files_without_tensors_and_with_an_alignment_of_their_own_can_be_read(read):
    metadata = METADATA | {"general.alignment": MetadataValue("UINT32", 256)}
    file = read(written(metadata))
    assert file.data_offset % 256 == 0
    assert all(info.offset % 256 == 0 for info in file.tensors.values())
    assert_spans_tile_the_file(file)
    assert_equals_the_gguf_package(file)
    file = read(written({"a": MetadataValue("ARRAY", [], "STRING")}, []))
    assert file.metadata["a"].value == [] and file.tensors == {}
    assert_spans_tile_the_file(file)


def test_numbers_of_each_plain_type_are_read(read):
    numbers = torch.tensor([[1.0, -2.5, 0.125]])
    for name, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
        file = BytesIO()
        raw = numbers.to(dtype).view(torch.uint8).numpy().tobytes()
        write_gguf_file(file, {}, [TensorInfo("x", (1, 3), name)], lambda info, raw=raw: raw)
        assert torch.equal(read(file.getvalue()).tensor("x"), numbers)


def test_the_courses_own_file_reads_as_the_gguf_package_reads_it():
    file = read_gguf_file(find_gguf())
    assert_spans_tile_the_file(file)
    lines = list(file.table(0, 4))
    assert lines[0].split() == ["0", "4", "47", "47", "55", "46", "magic:", "GGUF"]
    assert lines[2].endswith("count of tensors: 272") and max(map(len, file.table())) <= 90
    assert file.tensors["blk.0.attn_k.weight"].shape == (192, 576)  # in the file: 576, 192


def test_a_file_cut_anywhere_gives_one_clear_error(read):
    data = written()
    end = read(data).data_offset
    for length in [*range(1, end - 31, 3), end + 1, len(data) - 64]:
        with pytest.raises(CorruptModelError) as error:
            read(data[:length])
        assert "\n" not in str(error.value) and "follow" in str(error.value)


def test_no_single_wrong_byte_of_the_head_gives_another_error_than_a_corrupt_model(read):
    data = bytearray(written())
    end = read(bytes(data)).data_offset
    for position in range(0, end, 5):
        damaged = bytearray(data)
        damaged[position] ^= 255
        try:
            read(bytes(damaged))
        except CorruptModelError as error:
            assert str(error).isprintable()


def head(tensors=0, keys=0, version=3, order="<"):
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, keys)


def text(content):
    return struct.pack("<Q", len(content)) + content


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def array(kind, length):
    return head(keys=1) + key(b"a", 9, struct.pack("<IQ", kind, length) + bytes(20))


def entry(name=b"x", sizes=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 2**62
BAD = {
    "nothing": (b"", "is empty"),
    "an old format": (b"ggjt" + bytes(40), "not a GGUF file: it begins with b'ggjt'"),
    "version 2": (head(version=2), "version 2 of GGUF, expected 3"),
    "version 4": (head(version=4), "version 4 of GGUF, expected 3"),
    "big endian": (head(order=">"), "is big-endian"),
    "a huge count of tensors": (head(tensors=HUGE), "announces 4611686018427387904 tensors"),
    "a huge count of keys": (head(keys=HUGE), "4611686018427387904 keys, but only 0 bytes"),
    "a huge text": (head(keys=1) + struct.pack("<Q", HUGE) + bytes(20), "announces a text of"),
    "a huge array of texts": (array(8, HUGE), "announces 4611686018427387904 texts in a"),
    "a huge array of numbers": (array(12, HUGE), "announces 4611686018427387904 numbers in a"),
    "arrays of arrays": (array(9, 1), "array of arrays"),
    "an unknown type of value": (head(keys=1) + key(b"a", 13, bytes(8)), "type of the value 13"),
    "an unknown type of tensor": (head(tensors=1) + entry(kind=99), "has type 99"),
    "a text that is not UTF-8": (head(keys=1) + key(b"\xff", 0, bytes(8)), "not UTF-8"),
    "a key twice": (head(keys=2) + 2 * key(b"a", 4, bytes(4)), "has the key a twice"),
    "a tensor twice": (head(tensors=2) + 2 * entry(), "has the tensor x twice"),
    "no dimension": (head(tensors=1) + entry(sizes=()) + bytes(8), "0 dimensions"),
    "five dimensions": (head(tensors=1) + entry(sizes=(1,) * 5), "5 dimensions"),
    "a dimension of 0": (head(tensors=1) + entry(sizes=(4, 0)), "the dimensions [4, 0]"),
    "parts of blocks": (head(tensors=1) + entry(sizes=(33,), kind=2), "a multiple of 32, for Q4_0"),
    "a huge tensor": (head(tensors=1) + entry(sizes=(HUGE, HUGE)), "announces the data of x"),
    "an offset that lies": (head(tensors=1) + entry(offset=32) + bytes(99), "expected 0"),
    "alignment": (head(keys=1) + key(b"general.alignment", 4, b"\x18\0\0\0"), "a power of two"),
}


def test_a_corrupt_file_gives_one_clear_error(read, subtests):
    for name in BAD:
        with subtests.test(name=name):
            data, message = BAD[name]
            with pytest.raises(CorruptModelError) as error:
                read(data)
            assert message in str(error.value) and "\n" not in str(error.value)
