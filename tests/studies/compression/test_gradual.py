"""Gradual pruning and recovery: masks hold in training, in a resumed run, and after merging."""

import copy
import itertools

import pytest
import torch

from course_pkg.adapters import LoRAConfig, adapt, merge_adapters, remove_adapters
from course_pkg.adapters.injection import disable_adapters, unmerge_adapters
from course_pkg.finetuning.trainer import TrainConfig, train
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.studies.compression.gradual import CubicSchedule, GradualPruning, effective_weight
from course_pkg.studies.compression.masked_lora import (
    MaskedLoRALinear,
    adapt_pruned,
    mask_adapters,
    merge_with_masks,
)
from course_pkg.studies.compression.pruning import Magnitude, prune_layers
from course_pkg.studies.compression.sparsity_patterns import Unstructured, pruned_count
from tests.refusals import require_refusals

CONFIG = LoRAConfig(rank=2, alpha=8, target_modules=["q_proj", "down_proj"])
NAMES = [
    f"model.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")
]


@pytest.fixture
def batches():
    ids = torch.randint(256, (3, 2, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": each, "labels": each} for each in ids]


def settings(steps):
    return TrainConfig(steps=steps, learning_rate=1e-2, progress=False)


def pruned_model():
    model = load("tiny").model
    return model, prune_layers(model, Magnitude(Unstructured(0.5, "row")))


def nonzeros_where_masked(model, masks):
    return sum(int(model.get_submodule(n).weight[~masks[n]].count_nonzero()) for n in NAMES)


# The schedule


def test_the_schedule_by_hand():
    # s_i = 0.2, s_f = 0.8, t0 = 10, n = 3, Δt = 4: 0.8 − 0.6 (1 − k/3)³
    schedule = CubicSchedule(0.8, 10, 22, frequency=4, initial_sparsity=0.2)
    due = [step for step in range(1, 40) if schedule.due(step)]
    assert due == [10, 14, 18, 22]
    found = [schedule.sparsity_at(step) for step in due]
    assert found == pytest.approx([0.2, 0.8 - 0.6 * 8 / 27, 0.8 - 0.6 / 27, 0.8])
    assert schedule.sparsity_at(9) == 0 and schedule.sparsity_at(1000) == 0.8


def test_a_wrong_schedule_is_one_clear_error():
    require_refusals(
        ((1.2, 1, 5), "from 0 to 1"),
        ((0.5, 0, 5), "begin_step"),
        ((0.5, 5, 5), "end_step"),
        ((0.5, 1, 6, 2), "frequency 2 must divide the 5 steps"),
        ((0.5, 1, 5, 1, 0.6), "can't fall"),
        of=lambda arguments: CubicSchedule(*arguments),
    )


# One shot, then recovery


def test_masked_lora_is_merged_without_a_change_and_masking_plain_lora_changes_it(batches):
    model, masks = pruned_model()
    plain = adapt(copy.deepcopy(model), CONFIG)
    adapt_pruned(model, CONFIG, masks)
    ids = batches[0]["input_ids"]
    change = {}
    for name, each in (("plain", plain), ("masked", model)):
        train(each, batches, settings(3))
        with torch.no_grad():
            before = each(ids).logits
            merge_with_masks(each, masks)
            change[name] = (each(ids).logits - before).abs().max().item()
        assert nonzeros_where_masked(each, masks) == 0
    assert change["masked"] < 1e-5
    assert change["plain"] > 1e-2
    unmerge_adapters(model)
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, before, atol=1e-6)
    with disable_adapters(model), torch.no_grad():
        assert torch.equal(model(ids).logits, pruned_model()[0](ids).logits)


def test_without_pruned_weights_masked_lora_is_lora(batches):
    plain = adapt(load("tiny").model, CONFIG)
    model = load("tiny").model
    adapt_pruned(model, CONFIG, {})
    found = train(model, batches, settings(3))
    expected = train(plain, batches, settings(3))
    assert [s.loss for s in found.steps] == pytest.approx([s.loss for s in expected.steps])
    for name, layer in plain.named_modules():
        if name in NAMES:
            B = model.get_submodule(name).lora_B["default"]
            assert torch.allclose(B, layer.lora_B["default"], atol=1e-5)


def test_the_gradient_is_that_of_the_masked_sum():
    model, masks = pruned_model()
    adapt_pruned(model, CONFIG, masks)
    layer = model.get_submodule(NAMES[0])
    A, B = (getattr(layer, part)["default"] for part in ("lora_A", "lora_B"))
    torch.nn.init.normal_(B, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    layer(x).square().sum().backward()
    W = layer.base.weight.detach()
    M = masks[NAMES[0]]
    A2, B2 = (each.detach().clone().requires_grad_() for each in (A, B))
    (x @ (M * (W + 4 * B2 @ A2)).T).square().sum().backward()
    assert torch.allclose(A.grad, A2.grad, rtol=1e-4, atol=1e-3)
    assert torch.allclose(B.grad, B2.grad, rtol=1e-4, atol=1e-3)


# Gradually


@pytest.mark.parametrize("per", ["row", "layer"])
def test_lora_layers_are_pruned_step_by_step_and_stay_so_when_merged(batches, per):
    model = load("tiny").model
    adapt_pruned(model, CONFIG, {})
    schedule = CubicSchedule(0.6, 2, 6, frequency=2)
    seen = []

    class Watched(GradualPruning):
        def after_step(self, step):
            super().after_step(step)
            seen.append({name: mask.clone() for name, mask in self.masks.items()})

    pruning = Watched(model, schedule, per)
    train(model, batches, settings(8), callback=pruning)
    assert sorted(pruning.masks) == sorted(NAMES)
    assert [step for step, _ in pruning.prunings] == [2, 4, 6]
    for step, masks in enumerate(seen, start=1):
        due = max((s for s in (2, 4, 6) if s <= step), default=1)
        for mask in masks.values():
            size = mask.shape[1] if per == "row" else mask.numel()
            count = pruned_count(size, schedule.sparsity_at(due)) * mask.numel() // size
            assert (~mask).sum() == count
    for before, after in itertools.pairwise(seen):
        assert not any((after[name] & ~before[name]).any() for name in NAMES)  # none comes back
    ids = batches[0]["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        merge_adapters(model)
        remove_adapters(model)
        assert nonzeros_where_masked(model, pruning.masks) == 0
        assert torch.allclose(model(ids).logits, expected, atol=1e-5)
        assert torch.allclose(Decoder.from_transformers(model)(ids), expected, atol=1e-5)


def test_the_effective_weight_is_ranked_not_the_frozen_one():
    model = load("tiny").model
    adapt_pruned(model, CONFIG, {})
    layer = model.get_submodule(NAMES[0])
    torch.nn.init.normal_(layer.lora_B["default"], generator=torch.Generator().manual_seed(0))
    expected = Unstructured(0.5, "row").mask(effective_weight(layer).abs())
    of_frozen = Unstructured(0.5, "row").mask(layer.base.weight.abs())
    GradualPruning(model, CubicSchedule(0.5, 1, 2, initial_sparsity=0.5)).after_step(1)
    assert torch.equal(layer.mask, expected) and not torch.equal(expected, of_frozen)


def test_layers_trained_in_full_keep_their_zeros_against_the_optimizers_averages(batches):
    model = load("tiny").model
    pruning = GradualPruning(model, CubicSchedule(0.5, 1, 2))
    assert len(pruning.layers) == 14
    train(model, batches, settings(5), callback=pruning)
    for name, mask in pruning.masks.items():
        weight = model.get_submodule(name).weight
        assert not weight[~mask].any()
        assert (~mask).sum() == mask.numel() / 2
    # Without the callback, one more step moves removed weights.
    train(model, batches, settings(1))
    assert any(model.get_submodule(n).weight[~m].any() for n, m in pruning.masks.items())


def test_a_new_pruning_continues_from_a_saved_state():
    prunings = []
    for _ in range(2):
        model = load("tiny").model
        adapt_pruned(model, CONFIG, {})
        prunings.append(GradualPruning(model, CubicSchedule(0.6, 1, 5)))
    first, second = prunings
    for step in (1, 2, 3):
        first.after_step(step)
    second.load_state_dict(first.state_dict())
    assert second.prunings == first.prunings
    for name in NAMES:
        assert torch.equal(second.masks[name], first.masks[name]) and not second.masks[name].all()
        assert second.layers[name].mask is second.masks[name]
        assert torch.equal(*(effective_weight(each.layers[name]) for each in prunings))


# Errors


def test_bad_input_is_one_clear_error(batches):
    model, masks = pruned_model()
    with pytest.raises(TypeError, match="LoRAConfig"):
        adapt_pruned(model, {"rank": 2}, masks)
    with pytest.raises(ValueError, match="no masked LoRA"):
        GradualPruning(adapt(copy.deepcopy(model), CONFIG), CubicSchedule(0.5, 1, 2))
    with pytest.raises(ValueError, match=r"must be bool, \(64, 64\), got torch.float32"):
        adapt_pruned(copy.deepcopy(model), CONFIG, {NAMES[0]: torch.ones(64, 64)})
    adapt_pruned(model, CONFIG, masks)
    layer = model.get_submodule(NAMES[0])
    with pytest.raises(ValueError, match="must be bool"):
        layer.prune(torch.ones(2, 2, dtype=torch.bool))
    pruning = GradualPruning(model, CubicSchedule(0.6, 1, 5))
    with pytest.raises(ValueError, match="training has 4 steps, but the schedule ends at 5"):
        train(model, batches, settings(4), callback=pruning)
    with pytest.raises(ValueError, match="another model"):
        train(load("tiny").model, batches, settings(5), callback=pruning)
    merge_adapters(model)
    with pytest.raises(RuntimeError, match="merged"):
        layer.prune(layer.mask)


def test_a_saved_adapter_is_plain_lora_that_takes_the_masks_again(tmp_path, batches):
    from course_pkg.adapters import load_adapter, save_adapter

    model, masks = pruned_model()
    fresh = copy.deepcopy(model)
    adapt_pruned(model, CONFIG, masks)
    train(model, batches, settings(2))
    save_adapter(model, tmp_path)
    load_adapter(fresh, tmp_path)
    mask_adapters(fresh, masks)
    ids = batches[0]["input_ids"]
    with torch.no_grad():
        assert torch.equal(fresh(ids).logits, model(ids).logits)
    assert isinstance(fresh.get_submodule(NAMES[0]), MaskedLoRALinear)
