"""Plain values: what crosses comes back equal; what is not plain, or hostile, is refused."""

import contextlib
import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from course_pkg.grading.questions.plain_values import (
    ITEM_SIZES,
    MAX_DEPTH,
    MAX_NODES,
    Array,
    NotPlain,
    as_plain,
    decode,
    encode,
)

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | text | st.binary(max_size=9)
floats = st.floats(allow_nan=False)
plain = st.recursive(
    scalars | floats,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def framed(tree: object, blobs: bytes = b"") -> bytes:
    raw = json.dumps(tree).encode()
    return struct.pack(">I", len(raw)) + raw + blobs


@given(plain)
def test_plain_values_cross_unchanged(value):
    back = as_plain(value)
    assert back == value
    assert type(back) is type(value)
    assert encode(back) == encode(value)


@given(
    st.sampled_from([d for d in ITEM_SIZES if d != "bfloat16"]).flatmap(
        lambda name: arrays(name, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    )
)
@settings(max_examples=60)
def test_arrays_cross_bit_for_bit(value):
    back = as_plain(value)
    assert (back.dtype, back.shape) == (value.dtype.name, value.shape)
    assert back.numpy().tobytes() == value.tobytes()


def test_bfloat16_crosses_and_widens_exactly():
    value = torch.randn(3, 5).to(torch.bfloat16)
    back = as_plain(value)
    assert back.dtype == "bfloat16" and back.numpy().dtype == np.float32
    assert torch.equal(torch.from_numpy(back.numpy()), value.float())


def test_numbers_of_numpy_and_special_ones_cross_as_plain_numbers():
    assert type(as_plain(np.float32(0.5))) is float
    assert type(as_plain(np.int64(3))) is int
    assert as_plain(np.bool_(True)) is True
    assert math.isnan(as_plain(float("nan")))
    assert as_plain([math.inf, -math.inf]) == [math.inf, -math.inf]
    assert math.copysign(1, as_plain(-0.0)) == -1


def test_tensors_and_arrays_of_any_layout_cross_as_their_values():
    assert as_plain(np.array([1, 2], ">i4")).numpy().tolist() == [1, 2]
    value = torch.arange(6.0).reshape(2, 3).T
    assert np.array_equal(as_plain(value).numpy(), value.numpy())
    assert np.array_equal(as_plain(value.numpy()[::-1]).numpy(), value.numpy()[::-1])
    assert as_plain(torch.nn.Parameter(torch.ones(2))).numpy().tolist() == [1.0, 1.0]


def test_subclasses_cross_as_what_they_hold_and_run_nothing_there():
    class Sly(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    assert type(as_plain(Sly(0.5))) is float
    assert as_plain(Sly(0.5)) != 0.25


def test_what_is_not_plain_is_refused_with_its_type():
    for value in (
        *(object(), {1.5: 2}, {True: 1}, {None: 1}, lambda: 0, {1, 2}, 1j),
        np.array(["a"]),
    ):
        with pytest.raises(NotPlain, match="expected"):
            encode(value)


def test_deep_and_circular_values_are_refused():
    value: list = []
    value.append(value)
    with pytest.raises(NotPlain, match="deeper"):
        encode(value)
    tree: object = 1
    for _ in range(MAX_DEPTH):
        tree = ["l", [tree]]
    with pytest.raises(NotPlain, match="deeper"):
        decode(framed(tree))


HOSTILE = (
    b"",
    b"\0\0\0",
    b"\xff\xff\xff\xff",
    framed(1)[:-1],
    framed(1) + b"x",
    framed(1.5),
    framed(["f", "0x1p99999"]),
    framed(["f", "one"]),
    framed(["z", 1]),
    framed({"a": 1}),
    framed(["d", [["a", 1], ["a", 2]]]),
    framed(["d", [[True, 1]]]),
    framed(["d", [["a"]]]),
    framed("\ud800"),
    framed(["a", "object", [1]], bytes(8)),
    framed(["a", "float32", [-1]]),
    framed(["a", "float32", [2**40]]),
    framed(["a", "float32", [True]], bytes(4)),
    framed(["a", "float32", [1] * 40], bytes(4)),
    framed(["a", "float32", [3]], bytes(8)),
    framed(["b", -1]),
    framed(["b", True], b"x"),
    struct.pack(">I", 3) + b"NaN",
    struct.pack(">I", 8) + b"Infinity",
    struct.pack(">I", 20_000) + b"1" * 20_000,
    struct.pack(">I", 40_000) + b"[" * 40_000,
)


def refused(data):
    with contextlib.suppress(NotPlain):
        decode(data)
        return False
    return True


def test_hostile_bytes_are_refused():
    assert [data[:60] for data in HOSTILE if not refused(data)] == []


def test_too_many_values_are_refused_before_they_are_built():
    raw = b"[" + b"1," * (4 * MAX_NODES) + b"1]"
    with pytest.raises(NotPlain, match="more than"):
        decode(struct.pack(">I", len(raw)) + raw)


def test_too_many_values_are_refused_before_they_are_sent():
    assert len(decode(encode([0] * (MAX_NODES - 1)))) == MAX_NODES - 1
    with pytest.raises(NotPlain, match="more than"):
        encode([[0, 1]] * (MAX_NODES // 2))


@given(st.binary(max_size=200))
def test_junk_is_a_value_or_refused_and_never_anything_else(data):
    with contextlib.suppress(NotPlain):
        encode(decode(data))


@given(plain, st.data())
def test_a_flipped_byte_is_a_value_or_refused(value, data):
    raw = bytearray(encode(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(NotPlain):
        decode(bytes(raw))


def test_array_of_an_unknown_dtype_names_those_that_are_taken():
    with pytest.raises(NotPlain, match="complex64; expected one of bool"):
        Array.of(np.zeros(2, "complex64"))


def test_a_value_that_is_too_large_names_the_limit_that_it_exceeds():
    with pytest.raises(NotPlain, match="9,000,002 bytes of text and numbers; at most 8,388,608"):
        encode("x" * 9_000_000)
    with pytest.raises(NotPlain, match=r"a value of 72,000,\d+ bytes; at most 67,108,864"):
        encode(np.zeros(9_000_000))
    assert as_plain("é" * 4_000_000) == "é" * 4_000_000
