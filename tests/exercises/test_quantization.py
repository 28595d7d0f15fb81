"""`quantization`: right answers that are not the model answer keep every point."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.training_memory import estimate_memory
from course_pkg.grading.check import check, variant
from course_pkg.grading.checks.quantization import cases, student
from course_pkg.quantization.blockwise import quantize
from course_pkg.quantization.code_books import OFFSET, code_book
from tests.exercises.assignments import earning_everything, points_lost


def normal_float_in_double(bits, offset):
    """Probabilities in double precision, and the normal distribution's inverse from torch."""
    count = 2 ** (bits - 1)
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), 1)
    grids = [
        torch.linspace(0.5, offset, n + 1, dtype=torch.float64)[1:] for n in (count - 1, count)
    ]
    low, high = (normal.icdf(grid) / normal.icdf(torch.tensor(offset).double()) for grid in grids)
    return torch.cat([-low.flip(0), torch.zeros(1, dtype=torch.float64), high])


def normal_float_in_numpy(bits, offset):
    """The same as an array of numpy."""
    return normal_float_in_double(bits, offset).numpy()


def quantize_padded(x, levels, block_size):
    """No loop: a padded matrix of blocks, and midpoints that are searched."""
    padded = nn.functional.pad(x.flatten(), (0, -x.numel() % block_size)).view(-1, block_size)
    absmax = padded.abs().amax(1)
    scaled = padded / absmax.clamp(min=1e-30)[:, None]
    codes = torch.searchsorted((levels[1:] + levels[:-1]) / 2, scaled).flatten()
    return codes[: x.numel()], absmax


def dequantize_by_bytes(packed, absmax, levels, block_size, shape):
    """Division by 16 in place of bit operations, in Python."""
    codes = [code for byte in packed.tolist() for code in divmod(byte, 16)]
    numbers = [
        levels[c] * absmax[min(i // block_size, len(absmax) - 1)] for i, c in enumerate(codes)
    ]
    return torch.stack(numbers)[: torch.zeros(shape).numel()].view(shape)


class Checkpointed(nn.Module):
    """Activation checkpointing in place of a Function."""

    reentrant = False

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__()
        self.stored = quantize(linear.weight.data)
        self.dtype = compute_dtype
        self.register_buffer("bias", linear.bias)

    def product(self, x):
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return nn.functional.linear(x, self.stored.dequantize(self.dtype), bias)

    def forward(self, x):
        return checkpoint(self.product, x.to(self.dtype), use_reentrant=self.reentrant).to(x)


class Reentrant(Checkpointed):
    """The older kind of checkpointing, which allows `backward()` but not `autograd.grad`."""

    reentrant = True


class Halfway(Checkpointed):
    """A right forward pass whose backward pass does not work yet."""

    def forward(self, x):
        result = super().forward(x)
        result.register_hook(lambda gradient: gradient[:, :1])
        return result


OTHERS = {
    "levels": [normal_float_in_double, normal_float_in_numpy],
    "quantize": [quantize_padded],
    "dequantize": [dequantize_by_bytes],
    "linear": [Checkpointed, Reentrant],
}
test_another_right_answer_keeps_every_point = earning_everything("quantization", OTHERS)


def test_a_fault_in_the_backward_pass_costs_only_the_points_for_gradients():
    assert points_lost("quantization", "linear", Halfway) == 2


def test_an_input_that_failed_can_be_tried_as_it_was_given():
    def whole_blocks(x, levels, block_size):
        return torch.cat(x.split(block_size)), x.view(-1, block_size).abs().amax(1)

    case = check("quantization/quantize", whole_blocks).case("ragged")
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        whole_blocks(**case)


def test_the_right_values_are_those_of_the_reference():
    nf4 = code_book("nf4").levels
    expected = cases.levels_expected({"bits": 4, "offset": OFFSET})
    for name, value in student.describe(nf4).items():
        torch.testing.assert_close(expected[name], value, check_dtype=False)
    x = torch.randn(333, generator=torch.Generator().manual_seed(0))
    codes, absmax = cases.quantize_expected({"x": x, "levels": nf4, "block_size": 64})
    stored = quantize(x, double=False)
    assert torch.equal(stored.absmax, absmax) and torch.equal(
        stored.codes[:-1], cases.packed(codes)[:-1]
    )


def test_the_books_case_is_llama_2_7b_with_lora_of_rank_16():
    from transformers import LlamaConfig

    case = variant("quantization/by-hand")
    lora = LoRAConfig(rank=16, target_modules="all-linear")
    expected = cases.by_hand_memory_expected(case, cases.by_hand_bits_expected(case))
    for method, gigabytes in zip(("full", "lora", "qlora"), expected, strict=True):
        estimate = estimate_memory(LlamaConfig(), method, None if method == "full" else lora)
        assert (estimate.total - estimate.activations) / 1e9 == pytest.approx(gigabytes, 1e-5)
