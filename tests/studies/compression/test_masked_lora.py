"""LoRA on pruned weights: masks hold in training, in a saved adapter, and after merging."""

import copy

import pytest
import torch

from course_pkg.adapters import LoRAConfig, adapt, merge_adapters
from course_pkg.adapters.injection import disable_adapters, unmerge_adapters
from course_pkg.finetuning.trainer import TrainConfig, train
from course_pkg.lm.load import load
from course_pkg.studies.compression.masked_lora import (
    MaskedLoRALinear,
    adapt_pruned,
    mask_adapters,
    merge_with_masks,
)
from course_pkg.studies.compression.pruning import Magnitude, Unstructured, prune_layers

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


def test_bad_input_is_one_clear_error():
    model, masks = pruned_model()
    with pytest.raises(TypeError, match="LoRAConfig"):
        adapt_pruned(model, {"rank": 2}, masks)
    with pytest.raises(ValueError, match=r"must be bool, \(64, 64\), got torch.float32"):
        adapt_pruned(copy.deepcopy(model), CONFIG, {NAMES[0]: torch.ones(64, 64)})
    adapt_pruned(model, CONFIG, masks)
    layer = model.get_submodule(NAMES[0])
    with pytest.raises(ValueError, match="must be bool"):
        layer.prune(torch.ones(2, 2, dtype=torch.bool))
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
