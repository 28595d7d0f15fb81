"""n:m storage: exact round trips, exact bytes, torch's own metadata, and the same products."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters import LoRAConfig, adapt
from course_pkg.lm.decoder import Decoder
from course_pkg.studies.compression.pruning import Magnitude, SemiStructured, prune_layers
from course_pkg.studies.compression.semi_structured import (
    SemiStructuredWeight,
    compress,
    index_bits,
    semi_structured_weight,
    stored_bits,
)
from tests.refusals import require_refusals

TWO_FOUR = SemiStructured(2, 4)


def pruned(rows, columns, pattern=TWO_FOUR, seed=0):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return Magnitude(pattern).prune(weight).weight


@given(
    rows=st.integers(1, 5),
    groups=st.integers(1, 9),
    pattern=st.sampled_from([TWO_FOUR, SemiStructured(1, 4), SemiStructured(3, 8)]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    zeros=st.booleans(),
)
def test_any_pruned_matrix_comes_back_exactly(rows, groups, pattern, dtype, zeros):
    weight = pruned(rows, groups * pattern.m, pattern).to(dtype)
    if zeros:  # fewer nonzero weights than the pattern allows, in some groups none
        weight[weight > -0.5] = 0
    stored = semi_structured_weight(weight, pattern)
    assert torch.equal(stored.dequantize(), weight)
    assert stored.dtype == stored.dequantize().dtype == dtype
    rising = stored.indices.unflatten(1, (-1, pattern.n)).long().diff()
    assert (rising > 0).all()


def test_two_of_four_by_hand():
    weight = torch.tensor([[0.0, 5.0, 0.0, 6.0, 7.0, 8.0, 0.0, 0.0]])
    stored = semi_structured_weight(weight, TWO_FOUR)
    assert stored.values.tolist() == [[5.0, 6.0, 7.0, 8.0]]
    # indices 1 3 0 1, two bits each, the first one lowest: 1 + 3 · 4 + 0 · 16 + 1 · 64
    assert stored.codes[0, 0].item() == 77


def test_the_bytes_of_patterns():
    for dtype, share in ((torch.float32, 17 / 32), (torch.bfloat16, 9 / 16)):
        weight = pruned(4, 64).to(dtype)
        stored = semi_structured_weight(weight, TWO_FOUR)
        assert stored.nbytes == weight.nbytes * share
        assert stored.effective_bits == stored_bits(TWO_FOUR, 8 * dtype.itemsize)
    assert stored_bits(SemiStructured(1, 4), 16) == 16 * 9 / 32
    assert stored_bits(SemiStructured(4, 8), 16) == 16 * 19 / 32
    assert [index_bits(m) for m in (2, 3, 4, 8, 9, 16)] == [1, 2, 2, 3, 4, 4]


def test_torch_stores_the_same_values_and_the_same_indices():
    # The private functions that torch's CUDA tensors are made with; they run on a CPU.
    conversions = pytest.importorskip("torch.sparse._semi_structured_conversions")
    weight = pruned(64, 128).half()
    values, reordered = conversions.sparse_semi_structured_from_dense_cutlass(weight)
    offsets = conversions._calculate_meta_reordering_scatter_offsets(
        64, reordered.shape[1], reordered.dtype, "cpu"
    )
    meta = reordered.flatten()[offsets].view(64, -1)  # int16, as before the reordering
    stored = semi_structured_weight(weight, TWO_FOUR)
    assert torch.equal(values, stored.values)
    assert torch.equal(meta.contiguous().view(torch.uint8), stored.codes)
    assert stored.nbytes == values.nbytes + reordered.nbytes


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [(TWO_FOUR, (24,)), (SemiStructured(1, 4), (1, 24)), (SemiStructured(3, 8), (2, 3, 24))],
)
def test_a_product_from_the_stored_form_is_the_dense_one(pattern, shape):
    weight = pruned(5, 24, pattern).double()
    stored = semi_structured_weight(weight, pattern)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(stored.matmul(x), torch.nn.functional.linear(x, weight))


def test_a_pruned_model_computes_the_same_from_storage_and_takes_adapters(tiny):
    model = tiny.model
    prune_layers(model, Magnitude(TWO_FOUR))
    ids = torch.arange(20)[None]
    packed = copy.deepcopy(model)
    for name, layer in list(packed.named_modules()):
        if name.endswith("_proj"):
            weight = semi_structured_weight(layer.weight, TWO_FOUR)
            packed.set_submodule(name, QuantizedLinear(weight))
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(packed(ids).logits, expected)
        assert torch.allclose(Decoder.from_transformers(packed)(ids), expected, atol=1e-5)
    found = packed.model.layers[0].mlp.up_proj.quantized
    assert isinstance(found, SemiStructuredWeight)
    assert found.describe() == "2:4 of torch.float32"
    adapt(packed, LoRAConfig(rank=2, target_modules=["q_proj"]))
    packed(input_ids=ids, labels=ids).loss.backward()
    assert packed.model.layers[0].self_attn.q_proj.lora_B["default"].grad.any()


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda: compress(torch.tensor([[1, 1, 1, 0]]), TWO_FOUR), "has 3 nonzero weights"),
        (lambda: compress(torch.ones(2, 6), TWO_FOUR), "multiple of 4 columns"),
        (lambda: compress(torch.ones(4), TWO_FOUR), "rows, columns"),
        (lambda: index_bits(1), "at least 2"),
        (lambda: stored_bits(TWO_FOUR, 0), "value_bits"),
    )
