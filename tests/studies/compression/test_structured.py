"""Smaller Llamas: the masked model's function, exact counts, and what the scores mean."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.acceleration.quantization.layerwise import calibrate
from course_pkg.lm.decoder import Decoder
from course_pkg.studies.compression.structured import (
    keep_units,
    reconstruct,
    remove_units,
    unit_count,
    unit_parts,
    unit_scores,
)
from tests.refusals import require_refusals

UNITS = ("neuron", "head", "kv_group")


def llama(tied=True, bias=False, kv_heads=2):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        head_dim=10,  # not hidden / heads
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return model


@pytest.fixture
def ids():
    return torch.randint(64, (2, 30), generator=torch.Generator().manual_seed(0))


def some(model, unit, seed=0):
    """Random units to keep, half of them, in each layer."""
    count = unit_count(model.config, unit)
    scores = torch.rand(2, count, generator=torch.Generator().manual_seed(seed))
    groups = model.config.num_key_value_heads if unit == "head" else 1
    return keep_units(scores, count // 2, groups)


def with_zeros(model, kept, unit):
    """The dense model, with zeros in the columns that read what is removed."""
    model = copy.deepcopy(model)
    part = unit_parts(model.config, unit)[-1]
    for block, units in zip(model.model.layers, kept, strict=True):
        layer = block.get_submodule(part.layer)
        stays = torch.zeros(unit_count(model.config, unit), dtype=torch.bool)
        stays[units] = True
        layer.weight.data *= stays.repeat_interleave(part.width)
    return model


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("neuron", {"tied": False, "bias": True}),
        ("head", {"tied": False, "bias": True}),
        ("kv_group", {}),
        ("kv_group", {"kv_heads": 4}),
    ],
)
def test_the_smaller_model_is_the_masked_one(ids, unit, options):
    model = llama(**options)
    kept = some(model, unit)
    before = copy.deepcopy(model.state_dict())
    smaller = remove_units(model, kept, unit)
    with torch.no_grad():
        expected = with_zeros(model, kept, unit)(ids).logits
        assert (expected - model(ids).logits).abs().max() > 1e-3
        assert torch.allclose(smaller(ids).logits, expected, atol=1e-5)
        assert torch.allclose(Decoder.from_transformers(smaller)(ids), expected, atol=1e-5)
    assert unit_count(smaller.config, unit) == kept.shape[1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    smaller.get_input_embeddings().weight.data.zero_()
    assert torch.equal(model.get_input_embeddings().weight, before["model.embed_tokens.weight"])
    assert remove_units(model.train(), kept, unit).training and not smaller.training


@pytest.mark.parametrize("unit", UNITS)
def test_a_score_is_the_change_that_removing_the_unit_alone_makes(ids, unit):
    model = llama()
    scores = unit_scores(model, calibrate(model, [ids]), unit)
    assert scores.shape == (2, unit_count(model.config, unit))
    part = unit_parts(model.config, unit)[-1]
    outputs = []
    model.model.layers[1].get_submodule(part.layer).register_forward_hook(
        lambda layer, args, output: outputs.append(output)
    )
    count = unit_count(model.config, unit)
    with torch.no_grad():
        model(ids)
        for removed in (0, count - 1):
            stays = torch.tensor([number for number in range(count) if number != removed])
            with_zeros(model, [torch.arange(count), stays], unit)(ids)
            change = (outputs[-1] - outputs[0]).square().sum()
            assert torch.allclose(scores[1, removed], change, rtol=1e-4)


def test_reconstruction_is_least_squares():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    x = torch.randn(50, 10, generator=generator, dtype=torch.float64) @ mix
    W = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    kept = torch.tensor([0, 2, 3, 7])
    found = reconstruct(W, 2 * x.T @ x, kept, damping=0.0)
    expected = torch.linalg.lstsq(x[:, kept], x @ W.T).solution.T
    assert torch.allclose(found, expected, atol=1e-9)
    everything = torch.arange(10)
    assert torch.allclose(reconstruct(W, 2 * x.T @ x, everything), W, atol=1e-9)


def test_heads_are_kept_equally_in_all_groups():
    scores = torch.tensor([[9.0, 8.0, 7.0, 1.0, 2.0, 3.0]])
    assert keep_units(scores, 4, groups=2).tolist() == [[0, 1, 4, 5]]
    assert keep_units(torch.ones(1, 6), 4, groups=2).tolist() == [[0, 1, 3, 4]]
    assert keep_units(scores, 3).tolist() == [[0, 1, 2]]


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda m: keep_units(torch.ones(1, 4), 5), "cannot keep 5 of 4"),
        (lambda m: keep_units(torch.ones(1, 4), 3, 2), "in 2 groups"),
        (lambda m: unit_parts(m.config, "layer"), "neuron, head, kv_group"),
        (lambda m: remove_units(m, torch.tensor([[0], [40]]), "neuron"), "indices below 40"),
        (lambda m: remove_units(m, torch.tensor([[1, 0], [0, 1]]), "neuron"), "ascending"),
        (lambda m: remove_units(m, torch.tensor([[0, 1]]), "neuron"), "for each of 2 layers"),
        (lambda m: remove_units(m, torch.tensor([[0, 1], [0, 4]]), "head"), "equally many"),
        (lambda m: unit_scores(m, {}, "neuron"), "no statistics of model.layers.0.mlp.down_proj"),
        of=lambda make: make(llama()),
    )


def test_a_number_of_heads_that_transformers_refuses_is_refused():
    model = llama(kv_heads=8)
    with pytest.raises(ValueError, match="5 query heads do not: keep another number"):
        remove_units(model, torch.arange(5).repeat(2, 1), "kv_group")


def test_another_model_is_a_type_error():
    with pytest.raises(TypeError, match="LlamaForCausalLM, got Linear"):
        unit_scores(torch.nn.Linear(2, 2), {}, "neuron")
