"""Statistics of inputs, and models that are quantized block by block."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from course_pkg.acceleration.quantization.awq import AWQ
from course_pkg.acceleration.quantization.gptq import GPTQ
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.layerwise import (
    READERS,
    InputStatistics,
    RoundToNearest,
    calibrate,
    quantize_layers,
)
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.lm.decoder import Decoder
from tests.acceleration.quantization import examples
from tests.refusals import require_refusals
from tests.tolerance import rounding

SIZES = examples.SIZES | {"intermediate_size": 48, "num_hidden_layers": 3}
BATCHES = list(torch.randint(61, (6, 24), generator=torch.Generator().manual_seed(1)).split(4))
GRID = Grid(3, 16)
METHODS = [RoundToNearest(GRID), GPTQ(GRID), AWQ(GRID, points=4), AWQ(GRID, points=4, clip=True)]


def llama(**settings):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **settings))


def both():
    """The same weights as transformers' model and as the course's decoder."""
    model = llama().eval()
    return model, Decoder.from_transformers(copy.deepcopy(model))


def linears(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}


def test_statistics_of_batches_are_those_of_all_inputs():
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    statistics = InputStatistics()
    statistics.add(x[:1, :2])  # batches of other sizes have other weights
    statistics.add(x[:1, 2:])
    statistics.add(x[1:])
    rows = x.reshape(-1, 5)
    assert statistics.tokens == 21
    assert torch.allclose(statistics.hessian, 2 * rows.T @ rows / 21, rtol=1e-13)
    assert torch.allclose(statistics.mean_abs, rows.abs().mean(0), rtol=1e-13)
    assert torch.equal(statistics.absmax, rows.abs().amax(0))
    assert statistics.hessian.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_16_bits_are_in_32(dtype):
    x = torch.full((4000, 2), 8.0, dtype=dtype)
    statistics = InputStatistics()
    statistics.add(x)
    assert statistics.hessian.dtype == torch.float32
    assert torch.equal(statistics.hessian, torch.full((2, 2), 128.0))


@pytest.mark.parametrize("kind", [0, 1])
def test_each_layer_has_the_statistics_of_its_own_inputs(kind):
    model = both()[kind]
    seen = {}
    handles = [
        layer.register_forward_hook(
            lambda _, args, out, name=name: seen.setdefault(name, []).append(args[0])
        )
        for name, layer in linears(model).items()
    ]
    with torch.no_grad():
        for ids in BATCHES:
            model(ids)
    for handle in handles:
        handle.remove()
    by_layer = calibrate(model, BATCHES)
    assert len(by_layer) == 21
    assert "lm_head" not in by_layer
    for name, statistics in by_layer.items():
        rows = torch.cat([x.flatten(0, -2) for x in seen[name]])
        assert statistics.tokens == len(rows) == 144
        expected = 2 * rows.T @ rows / 144
        assert (statistics.hessian - expected).norm() <= rounding(144) * expected.norm()
        assert torch.allclose(statistics.mean_abs, rows.abs().mean(0), rtol=1e-4)
        assert torch.allclose(statistics.absmax, rows.abs().amax(0), rtol=1e-4)


@pytest.mark.parametrize(("method", "kind"), list(zip(METHODS, (0, 1, 0, 1), strict=True)))
def test_all_layers_of_the_blocks_are_quantized_and_nothing_else(method, kind):
    model = both()[kind]
    steps = []
    quantize_layers(
        model, method, BATCHES, progress=lambda done, total: steps.append((done, total))
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]
    quantized = {
        name for name, layer in linears(model).items() if isinstance(layer, QuantizedLinear)
    }
    assert quantized == {name for name in linears(model) if name != "lm_head"}
    assert len(quantized) == 21
    assert torch.isfinite(model(BATCHES[0])[0]).all()
    hooks = [m for m in model.modules() if m._forward_pre_hooks or m._forward_hooks]
    assert not hooks


def test_rounding_is_that_of_each_weight_and_needs_no_batches():
    model = llama(attention_bias=True)
    before = copy.deepcopy(model)
    quantize_layers(model, RoundToNearest(GRID))
    for name, layer in linears(before).items():
        if name == "lm_head":
            continue
        new = model.get_submodule(name)
        assert torch.equal(new.quantized.codes, round_to_nearest(layer.weight, GRID).codes)
        if layer.bias is not None:
            assert torch.equal(new.bias, layer.bias)


def test_later_blocks_are_calibrated_on_quantized_earlier_ones():
    """Block by block by hand: block k has the statistics of a model with k quantized blocks."""
    model = both()[1]
    expected = copy.deepcopy(model)
    method = GPTQ(GRID)
    quantize_layers(model, method, BATCHES)
    for index, block in enumerate(expected.layers):
        statistics = calibrate(expected, BATCHES)  # of all blocks before this one, quantized
        for names in READERS:
            for name in names:
                layer = block.get_submodule(name)
                hessian = statistics[f"layers.{index}.{name}"].hessian
                weight = method.quantize(layer.weight, hessian)
                quantized = model.layers[index].get_submodule(name).quantized
                assert torch.equal(quantized.codes, weight.codes)
                block.set_submodule(name, QuantizedLinear(weight, layer.bias))


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_stays_and_calibration_has_no_dropout(training):
    model = llama(attention_dropout=0.5).train(training)
    first, second = (calibrate(model, BATCHES) for _ in range(2))
    assert all(torch.equal(first[name].hessian, second[name].hessian) for name in first)
    assert model.training == training
    model.model.layers[1].self_attn.train(not training)
    modes = {name: module.training for name, module in model.named_modules()}
    quantize_layers(model, GPTQ(GRID), BATCHES)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_bad_batches_are_one_clear_error():
    model = llama()
    bad = [[torch.ones(2, 3)], [torch.arange(3)], [[1, 2, 3]], [torch.empty(1, 0).long()]]
    rows = [([], "no batches"), *((batches, "must be token ids") for batches in bad)]
    require_refusals(*((calibrate, model, *row) for row in rows))
    require_refusals(*((quantize_layers, model, GPTQ(GRID), *row) for row in rows))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_broken_weights_are_one_clear_error():
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="calibration inputs have NaN"):
        quantize_layers(model, GPTQ(GRID), BATCHES)


def test_a_model_is_quantized_once():
    model = llama()
    quantize_layers(model, RoundToNearest(GRID))
    with pytest.raises(ValueError, match="q_proj is a QuantizedLinear"):
        quantize_layers(model, GPTQ(GRID), BATCHES)


@pytest.mark.parametrize("run", [calibrate, lambda m, b: quantize_layers(m, GPTQ(GRID), b)])
def test_other_models_are_refused(run):
    with pytest.raises(TypeError, match="expected a LlamaForCausalLM or a course_pkg Decoder"):
        run(Qwen2ForCausalLM(Qwen2Config(**SIZES)), BATCHES)
