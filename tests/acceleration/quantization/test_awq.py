"""AWQ's search, its clipping, and that folding the scales changes no output."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.acceleration.quantization.awq import (
    AWQ,
    SHRINKS,
    SOURCES,
    channel_scales,
    fold,
    foldable,
    output_error,
    rounded,
)
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.layerwise import (
    READERS,
    InputStatistics,
    calibrate,
)
from course_pkg.lm.decoder import Decoder
from tests.acceleration.quantization.examples import SIZES
from tests.refusals import require_refusals
from tests.tolerance import rounding

DOUBLE = torch.float64


def layer(rows=6, columns=32, tokens=50, seed=0, outlier=30.0):
    """A weight, its inputs, of which two channels are large, and their statistics."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(rows, columns, generator=generator)
    X = torch.randn(tokens, columns, generator=generator)
    X[:, 3] *= outlier
    X[:, 20] *= outlier / 2
    statistics = InputStatistics()
    statistics.add(X)
    return W, X, statistics


def decoder(kv_heads=2, **settings):
    """A small decoder in fp64 whose norms and biases are not the initial ones."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"num_key_value_heads": kv_heads} | settings)
    model = Decoder.from_transformers(LlamaForCausalLM(config)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.rand_like(parameter) * 2)
    return model


IDS = torch.arange(36).reshape(2, 18)


def test_the_error_is_that_of_the_outputs():
    W, X, statistics = layer()
    D = W - round_to_nearest(W, Grid(3, 8)).dequantize()
    expected = (D @ X.T).square().sum() / len(X)
    assert output_error(D, statistics.hessian) == pytest.approx(
        float(expected), rel=rounding(50 * 32)
    )


@pytest.mark.parametrize("symmetric", [False, True])
def test_alpha_0_is_rounding_to_nearest(symmetric):
    W, _, statistics = layer()
    grid = Grid(3, 8, symmetric)
    assert torch.equal(channel_scales(statistics.mean_abs, 0.0), torch.ones(32))
    quantized = rounded(W, grid)
    expected = round_to_nearest(W, grid)
    for name, tensor in expected.tensors().items():
        assert torch.equal(quantized.tensors()[name], tensor)
    choice = AWQ(grid, points=1).search([W], statistics)
    assert choice.alpha == 0
    D = W - expected.dequantize()
    assert choice.error == output_error(D, statistics.hessian)


def test_scales_are_a_power_of_the_mean_with_balanced_extremes():
    means = torch.tensor([0.5, 3.0, 7.0, 40.0])
    for alpha in (0.25, 0.5, 1.0):
        scales = channel_scales(means, alpha)
        assert torch.allclose(scales[1:] / scales[:-1], (means[1:] / means[:-1]) ** alpha)
        assert scales.min() * scales.max() == pytest.approx(1, rel=rounding(16))


def test_a_channel_without_inputs_has_a_scale():
    scales = channel_scales(torch.tensor([0.0, 1.0, 3.0]), 1.0)
    assert (torch.isfinite(scales) & (scales > 0)).all()
    assert scales[0] < 0.01 * scales[1]


@pytest.mark.parametrize("count", [1, 3])
def test_the_search_finds_the_best_of_its_points(count):
    """Of several layers, the sum of their errors counts."""
    grid = Grid(3, 8)
    _, X, statistics = layer()
    weights = [layer(rows=4 + k, seed=k)[0] for k in range(count)]
    choice = AWQ(grid, points=5).search(weights, statistics)
    errors = {}
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        s = statistics.mean_abs**alpha
        s = s / (s.min() * s.max()).sqrt()
        total = 0.0
        for W in weights:
            approximate = round_to_nearest(W * s, grid).dequantize() @ (X / s).T
            total += float((approximate - W @ X.T).square().sum()) / len(X)
        errors[alpha] = total
    best = min(errors, key=errors.get)
    assert choice.alpha == best > 0
    assert choice.error == pytest.approx(errors[best], rel=1e-4)
    assert choice.error < 0.5 * errors[0.0]  # with such outliers, it is worth it


def test_equal_inputs_choose_no_scaling():
    W, _, statistics = layer()
    statistics.mean_abs = torch.ones(32)
    choice = AWQ(Grid(3, 8)).search([W], statistics)
    assert choice.alpha == 0  # all points are the same, and the first is kept


@pytest.mark.parametrize("symmetric", [False, True])
def test_clipping_is_the_best_of_the_shrunk_ranges_for_each_group(symmetric):
    W, X, statistics = layer(outlier=4.0)
    W = W**3  # long tails
    grid = Grid(2, 8, symmetric)
    clipped = rounded(W, grid, statistics.hessian)
    plain = round_to_nearest(W, grid)
    chosen = set()
    for row in range(len(W)):
        for group in range(4):
            part = slice(8 * group, 8 * group + 8)
            scale = plain.scale[row, group].float()
            zero = plain.zero[row, group].float()
            tried = {}
            for shrink in SHRINKS:
                step = (scale * shrink).half().float()
                codes = ((W[row, part] / step).round() + zero).clamp(0, 3)
                D = W[row, part] - step * (codes - zero)
                tried[float(step)] = float((X[:, part] @ D).square().sum())
            best = min(tried, key=tried.get)
            assert float(clipped.scale[row, group]) == pytest.approx(best)
            D = W[row, part] - clipped.dequantize()[row, part]
            assert float((X[:, part] @ D).square().sum()) == pytest.approx(tried[best], rel=1e-4)
            chosen.add(round(best / float(scale), 2))
    assert len(chosen) > 2
    assert torch.equal(clipped.zero, plain.zero)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_folded_scales_change_no_output(kv_heads):
    model = decoder(kv_heads, attention_bias=True, mlp_bias=True)
    expected = model(IDS)
    before = copy.deepcopy(model.state_dict())
    folded = 0
    for block in model.layers:
        for names in READERS:
            if foldable(block, names):
                columns = block.get_submodule(names[0]).in_features
                fold(block, names, torch.rand(columns, dtype=DOUBLE) * 5 + 0.1)
                folded += 1
    assert folded == (8 if kv_heads == 4 else 6)
    assert (model(IDS) - expected).abs().max() < 1e-12 * expected.abs().max()
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    weights = {"input_layernorm", "post_attention_layernorm", "q_proj", "k_proj", "v_proj"}
    weights |= {"gate_proj", "up_proj", "down_proj"} | ({"o_proj"} if kv_heads == 4 else set())
    assert {n.split(".")[-2] for n in changed if n.endswith("weight")} == weights


def test_grouped_queries_keep_the_output_projection_as_it_is():
    block = decoder(kv_heads=2).layers[0]
    names = ("self_attn.o_proj",)
    assert not foldable(block, names)
    with pytest.raises(ValueError, match="grouped queries"):
        fold(block, names, torch.ones(32))


def test_only_positive_scales_are_folded():
    block = decoder().layers[0]
    require_refusals(
        *((value, "finite and above") for value in (0.0, -1.0, float("inf"), float("nan"))),
        of=lambda value: fold(block, READERS[0], torch.full((32,), value)),
    )


@pytest.mark.parametrize(("kv_heads", "clip"), [(2, True), (4, False)])
def test_a_block_is_scaled_then_rounded(kv_heads, clip):
    """Each new weight is the rounded one of the block with the folded scales."""
    model = decoder(kv_heads)
    statistics = calibrate(model, [IDS])
    block = model.layers[0]
    by_layer = {name: statistics[f"layers.0.{name}"] for names in READERS for name in names}
    expected = copy.deepcopy(block)
    grid = Grid(3, 16)
    method = AWQ(grid, points=6, clip=clip)
    scales = {}
    for names in READERS:
        weights = [block.get_submodule(name).weight for name in names]
        scales[names] = torch.ones(weights[0].shape[1], dtype=DOUBLE)
        if foldable(block, names):
            scales[names] = method.search(weights, by_layer[names[0]]).scales
    for names in READERS:
        if foldable(block, names):
            fold(expected, names, scales[names])
    quantized = method.quantize_block(block, by_layer)
    assert quantized.keys() == by_layer.keys()
    for names in READERS:
        hessian = by_layer[names[0]].hessian / scales[names] / scales[names][:, None]
        for name in names:
            weight = expected.get_submodule(name).weight
            assert torch.equal(block.get_submodule(name).weight, weight)
            by_hand = rounded(weight, grid, hessian if clip else None)
            assert torch.equal(quantized[name].codes, by_hand.codes)
            assert torch.equal(quantized[name].scale, by_hand.scale)
        source = block.get_submodule(SOURCES[names]).weight
        assert torch.equal(source, expected.get_submodule(SOURCES[names]).weight)


def test_bad_input_is_one_clear_error():
    def search(change):
        W, _, statistics = layer()
        change(W, statistics)
        AWQ(Grid(4, 8)).search([W], statistics)

    require_refusals(
        (lambda W, s: setattr(s, "mean_abs", torch.zeros(32)), "all its inputs are 0"),
        (lambda W, s: setattr(s, "mean_abs", torch.ones(31)), "weights have 32 columns"),
        (lambda W, s: W.fill_(float("nan")), "NaN or infinite"),
        (lambda W, s: W.mul_(1e7), "needs the scale"),
        of=search,
    )


def test_settings_are_checked():
    require_refusals(
        ({"points": 0}, "ValueError: points"),
        ({"clip": 1}, "TypeError: clip"),
        ({"grid": 4}, "TypeError: grid"),
        of=lambda options: AWQ(**{"grid": Grid(4, 8)} | options),
        errors=(TypeError, ValueError),
    )
