"""What holds for every method: one method in a layer, its own files, no training while merged."""

import itertools

import pytest
import torch

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import (
    LAYERS,
    adapter_layers,
    adapter_names,
    inject,
    merge_adapters,
    remove_adapters,
    set_adapter,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.peft_files import FORMATS
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.adapters.builders import adapted, build, loaded
from tests.parity.small_models import BATCH, TOKENS, logits

CONFIGS = {
    "lora": LoRAConfig(rank=2, target_modules=["v_proj", "down_proj"]),
    "dora": DoRAConfig(rank=2, target_modules=["v_proj", "down_proj"]),
    "adalora": AdaLoRAConfig(9, 2, 1, target_modules=["v_proj", "down_proj"]),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"]),
}
every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
pairs = pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.pairwise([*CONFIGS.values(), CONFIGS["lora"]])),
)


def test_every_method_with_layers_has_a_file_format():
    assert {form.config_type for form in FORMATS} >= set(LAYERS)


@every
def test_a_merged_model_is_not_trained_and_trains_after_unmerging(config):
    model = adapted(config)
    merge_adapters(model)
    with pytest.raises(RuntimeError, match=r"call unmerge_adapters\(model\) before training"):
        train(model, [BATCH], TrainConfig(steps=1, progress=False))
    unmerge_adapters(model)
    losses = train(model, [BATCH], TrainConfig(steps=3, learning_rate=1e-2, progress=False)).losses
    assert losses[-1] < losses[0]


@pairs
def test_one_layer_has_adapters_of_one_method(first, second, tmp_path):
    model = adapted(first)
    before = logits(model)
    with pytest.raises(
        TypeError, match=r"already has an adapter of another method .*; remove_adapters"
    ):
        inject(model, second, "more")
    save_adapter(adapted(second), tmp_path)
    with pytest.raises(ValueError, match="has an adapter of another method"):
        load_adapter(model, tmp_path, "more")
    assert adapter_names(model) == ["default"] and torch.equal(logits(model), before)
    remove_adapters(model)
    load_adapter(model, tmp_path)
    assert torch.equal(logits(model), logits(adapted(second)))


def test_different_layers_may_have_different_methods():
    model = build()
    inject(model, DoRAConfig(rank=2, target_modules=["v_proj"]), "a")
    inject(model, IA3Config(target_modules=["k_proj"], feedforward_modules=[]), "b")
    set_adapter(model, ["a", "b"])
    kinds = {type(layer).__name__ for layer in adapter_layers(model).values()}
    assert kinds == {"DoRALinear", "IA3Linear"} and len(adapter_layers(model)) == 4
    before = logits(model)
    merge_adapters(model)
    assert torch.allclose(logits(model), before, atol=1e-6)


@every
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_the_same_with_checkpointing(config, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = adapted(config).train()
        if checkpointing:
            if reentrant:  # its inputs must require a gradient, or no layer gets one
                model.enable_input_require_grads()
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(**BATCH, use_cache=False).loss.backward()
        gradients.append([p.grad for p in trainable_parameters(model).values()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.allclose(checkpointed, plain, rtol=1e-4, atol=1e-7)


@every
@pytest.mark.gpu
def test_it_trains_merges_and_crosses_devices_on_a_gpu(config, tmp_path):
    model = adapted(config).cuda()
    train(model, [BATCH], TrainConfig(steps=3, learning_rate=1e-2, progress=False))
    save_adapter(model, tmp_path)
    out = logits(model.eval(), TOKENS.cuda()).cpu()
    assert torch.allclose(logits(loaded(tmp_path).eval()), out, atol=1e-3)
    merge_adapters(model)
    assert torch.allclose(logits(model, TOKENS.cuda()).cpu(), out, atol=1e-3)
    on_gpu = build().cuda()
    inject(on_gpu, config)
    assert all(p.is_cuda for p in on_gpu.parameters())
