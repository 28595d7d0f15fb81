"""Blocks of GGUF files: numbers read, and bytes written, equal those of the gguf package."""

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from course_pkg.acceleration.quantization.gguf_blocks import FORMATS, read_gguf, write_gguf

WRITABLE = [name for name, layout in FORMATS.items() if layout.write]


def kind(name):
    return GGMLQuantizationType[name]


def random_blocks(name, rows=9, blocks=7, seed=0):
    """Random bytes in which the fp16 numbers are finite: they are at the begin or the end."""
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (rows * blocks, FORMATS[name].nbytes), dtype=np.uint8)
    places = [208] if name == "Q6_K" else [0, 2]
    for place in places:
        numbers = generator.normal(size=rows * blocks).astype(np.float16)
        if place == 0 or name not in ("Q4_0", "Q5_0", "Q8_0"):
            data[:, place : place + 2] = numbers[:, None].view(np.uint8)
    return data.reshape(rows, -1)


def require_equal_bits(ours, theirs):
    """Also the sign of zero."""
    assert ours.dtype == torch.float32 and ours.shape == theirs.shape
    assert np.array_equal(ours.numpy().view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_is_read(name):
    """Each bit of a block is set by itself, in each byte."""
    nbytes = FORMATS[name].nbytes
    values = np.array([0, 255, *(1 << np.arange(8))], dtype=np.uint8)
    data = np.repeat(random_blocks(name, nbytes, 1), 10, axis=0).reshape(nbytes, 10, nbytes)
    for place in range(nbytes):
        data[place, :, place] = values
    data = data.reshape(-1, nbytes)
    with np.errstate(invalid="ignore"):  # some of the fp16 numbers become infinite or NaN
        theirs = dequantize(data, kind(name))
    ours = read_gguf(torch.from_numpy(data), name).dequantize()
    finite = np.isfinite(theirs)
    assert finite.mean() > 0.98 and np.array_equal(ours.isfinite().numpy(), finite)
    require_equal_bits(ours.where(ours.isfinite(), 0), np.where(finite, theirs, 0))


def test_sizes_are_equal():
    ours = {name: (layout.size, layout.nbytes) for name, layout in FORMATS.items()}
    assert ours == {name: GGML_QUANT_SIZES[kind(name)] for name in FORMATS}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ties():
    """Q8_0 at d = 1: halves, which are rounded away from zero."""
    numbers = np.arange(-127, 128, dtype=np.float32)
    numbers = np.concatenate([numbers, numbers[:-1] + 0.5])[: 31 * 16].reshape(16, 31)
    return np.concatenate([np.full((16, 1), 127, np.float32), numbers], 1)


WEIGHTS = {
    "random": normal(33, 96),
    "one block": normal(1, 32),
    "outliers": normal(16, 64) ** 7,
    "constant": np.full((2, 32), 0.3, np.float32),
    "negative constant": np.full((2, 32), -0.3, np.float32),
    "zeros": np.zeros((2, 32), np.float32),
    "negative zeros": np.full((2, 32), -0.0, np.float32),
    "extremes of both signs": np.tile(np.array([1, -1, 0.5, 0], np.float32), (2, 16)),
    "negative extreme first": np.tile(np.array([-1, 1, 0.5, 0], np.float32), (2, 16)),
    "all positive": np.abs(normal(4, 64)) + 1,
    "scale below fp16": normal(4, 32) * np.float32(1e-8),
    "tiny": normal(4, 32) * np.float32(1e-30),
    "large": normal(4, 32) * np.float32(1.5e4),
    "ties": ties(),
    "on a grid of 4 bits": np.round(normal(8, 64) * 3) / 4,
}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_bytes_written_are_equal(weights):
    numbers = WEIGHTS[weights]
    for name in WRITABLE:
        ours = write_gguf(torch.from_numpy(numbers), name)
        theirs = quantize(numbers, kind(name))
        assert np.array_equal(ours.codes.numpy(), theirs), name
        require_equal_bits(ours.dequantize(), dequantize(theirs, kind(name)))


NUMBERS = arrays("float32", (2, 32), elements=st.floats(-1e4, 1e4, width=32))


@settings(max_examples=30)
@given(NUMBERS.filter(lambda x: not ((x != 0) & (abs(x) < 1e-34)).any()), st.sampled_from(WRITABLE))
def test_bytes_of_any_weights_are_equal(numbers, name):
    numbers += 0.0  # no -0.0: the sign of numpy's smallest of 0.0 and -0.0 depends on the CPU
    ours = write_gguf(torch.from_numpy(numbers), name)
    assert np.array_equal(ours.codes.numpy(), quantize(numbers, kind(name)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_written_like_those_of_32(dtype):
    weight = torch.from_numpy(normal(4, 64)).to(dtype)
    for name in WRITABLE:
        ours = write_gguf(weight, name)
        assert np.array_equal(ours.codes.numpy(), quantize(weight.float().numpy(), kind(name)))
        assert ours.dequantize().dtype == dtype


def test_tensors_of_a_file_are_read(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    data = {name: random_blocks(name, 3, 2, seed) for seed, name in enumerate(FORMATS)}
    for name, blocks in data.items():
        writer.add_tensor(name, blocks, raw_dtype=kind(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for tensor in gguf.GGUFReader(path).tensors:
        weight = read_gguf(tensor.data, tensor.tensor_type.name)
        assert list(weight.shape) == tensor.shape.tolist()[::-1]
        expected = dequantize(data[tensor.name], tensor.tensor_type)
        require_equal_bits(weight.dequantize(), expected)
