"""The layer over any quantized weight: what it computes follows its tensors, and it is copied."""

import copy
import itertools
import pickle

import pytest
import torch

from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.int8 import Activations, int8_weight
from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from tests.acceleration.quantization.examples import normal
from tests.tolerance import rounding

STORAGES = {
    "int8": int8_weight,
    "int8 activations": lambda weight: int8_weight(weight, Activations(bits=7)),
    "int8 activations per tensor": lambda weight: int8_weight(weight, Activations("tensor")),
    "LLM.int8": llm_int8_weight,
    "Q4_1": lambda weight: write_gguf(weight, "Q4_1"),
    "4 bits": lambda weight: round_to_nearest(weight, Grid(4, 32)),
    "NF4": quantize,
}


@torch.no_grad()
def in_place(layer, other):
    for name, tensor in layer.state_dict().items():
        tensor.copy_(other.state_dict()[name])


def by_data(layer, other):
    tensors = dict([*layer.named_parameters(), *layer.named_buffers()])
    for name, tensor in tensors.items():
        tensor.data = other.state_dict()[name].clone()


def by_transposed(layer, other):
    """What is assigned may have another order in memory."""
    transposed = {
        name: tensor.T.contiguous().T if tensor.dim() == 2 else tensor
        for name, tensor in other.state_dict().items()
    }
    layer.load_state_dict(transposed, assign=True)


CHANGES = {
    "in place": in_place,
    "other memory": by_data,
    "loaded": lambda layer, other: layer.load_state_dict(other.state_dict()),
    "assigned, transposed": by_transposed,
    "assigned": lambda layer, other: layer.load_state_dict(other.state_dict(), assign=True),
}


def pair(name):
    """A layer and another one with other numbers."""
    return (QuantizedLinear(STORAGES[name](normal(32, 64, seed=seed))) for seed in (0, 1))


def copies(layer):
    return copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, change) for name in STORAGES for change in ("in place", "assigned, transposed")),
        *(("4 bits", change) for change in ("other memory", "loaded", "assigned")),
    ],
)
def test_a_product_is_that_of_the_tensors_at_that_time(name, change):
    for dtype in (torch.float32, torch.bfloat16):
        layer, other = pair(name)
        x = normal(2, 64, seed=2).to(dtype)
        before = layer(x)  # what is computed from the tensors for it is kept
        assert layer.quantized is layer.quantized
        CHANGES[change](layer, other)
        # another order in memory may change the last bit of a sum
        assert (layer(x) - other(x)).norm() <= rounding(64, dtype) * other(x).norm(), dtype
        assert not torch.allclose(layer(x), before, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", STORAGES)
def test_the_gradient_of_x_goes_through_the_dequantized_weight(name):
    layer, _ = pair(name)
    x = (3 * normal(3, 64, seed=2)).requires_grad_()
    layer(x).sum().backward()
    gradient = torch.ones(3, 32) @ layer.dequantized_weight()
    assert (x.grad - gradient).norm() <= rounding(32) * gradient.norm()


def test_another_format_is_refused():
    states = {name: next(pair(name)).state_dict() for name in STORAGES}
    for name, other in itertools.pairwise(STORAGES):
        with pytest.raises(RuntimeError, match=r"weight has the format .*, but the layer has"):
            next(pair(name)).load_state_dict(states[other])


@pytest.mark.parametrize("name", STORAGES)
def test_a_copy_computes_the_same_and_shares_nothing(name):
    layer, _ = pair(name)
    x = normal(2, 64, seed=2).bfloat16()
    expected = layer(x)
    for other in copies(layer):
        assert torch.equal(other(x), expected)
        other.weight.zero_()
        assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("name", STORAGES)
def test_without_tokens_the_result_is_empty(name):
    layer, _ = pair(name)
    for shape, dtype in (((0, 64), torch.float32), ((2, 0, 64), torch.bfloat16)):
        result = layer(torch.zeros(shape, dtype=dtype))
        assert result.shape == (*shape[:-1], 32) and result.dtype == dtype


ENDS = {
    **{name: change for name, change in CHANGES.items() if name in ("loaded", "assigned")},
    "moved": lambda layer, other: in_place(layer.to("cpu"), other),
}


@pytest.mark.parametrize(
    ("name", "end"),
    [*((name, "loaded") for name in STORAGES), ("4 bits", "assigned"), ("4 bits", "moved")],
)
def test_a_frozen_layer_computes_with_its_tensors_until_it_gets_others(name, end):
    layer, other = pair(name)
    x = normal(2, 64, seed=2)
    expected = layer(x)
    layer.freeze()
    assert torch.equal(layer(x), expected) and layer.quantized is layer.quantized
    ENDS[end](layer, other)
    assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("name", ["int8 activations", "4 bits"])
def test_a_copy_of_a_frozen_layer_is_not_frozen(name):
    layer, other = pair(name)
    layer.freeze()
    x = normal(2, 64, seed=2)
    expected = layer(x)
    for copied in copies(layer):
        in_place(copied, other)
        assert torch.equal(copied(x), other(x))
        assert torch.equal(layer(x), expected)
