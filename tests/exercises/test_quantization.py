"""`quantization`: a failed input can be tried, and the memory of the book's case."""

import pytest
import torch

from course_pkg.adapters.accounting import estimate_memory
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.grading.assignments.quantization import cases
from course_pkg.grading.check import check, variant


def test_an_input_that_failed_can_be_tried_as_it_was_given():
    def whole_blocks(x, levels, block_size):
        return torch.cat(x.split(block_size)), x.view(-1, block_size).abs().amax(1)

    case = check("quantization/quantize", whole_blocks).case("ragged")
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        whole_blocks(**case)


def test_the_books_case_is_llama_2_7b_with_lora_of_rank_16():
    from transformers import LlamaConfig

    case = variant("quantization/by-hand")
    lora = LoRAConfig(rank=16, target_modules="all-linear")
    expected = cases.by_hand_memory_expected(case, cases.by_hand_bits_expected(case))
    for method, gigabytes in zip(("full", "lora", "qlora"), expected, strict=True):
        estimate = estimate_memory(LlamaConfig(), method, None if method == "full" else lora)
        assert (estimate.total - estimate.activations) / 1e9 == pytest.approx(gigabytes, 1e-5)
