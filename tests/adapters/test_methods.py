"""What holds for every method: one method in a layer, its own files, no training while merged."""

import copy
import json
from dataclasses import replace

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
from course_pkg.lm.load import load

from ..parity.small_models import BATCH, TOKENS, logits, shaken

CONFIGS = {
    "lora": LoRAConfig(rank=2, target_modules=["v_proj", "down_proj"]),
    "dora": DoRAConfig(rank=2, target_modules=["v_proj", "down_proj"]),
    "adalora": AdaLoRAConfig(9, 2, 1, target_modules=["v_proj", "down_proj"]),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"]),
}
every = pytest.mark.parametrize("name", CONFIGS)
PAIRS = [(one, other) for one in CONFIGS for other in CONFIGS if one != other]


def adapted(name):
    model = load("tiny").model
    inject(model, CONFIGS[name])
    return shaken(model)


def test_every_method_with_layers_has_a_file_format():
    assert {form.config_type for form in FORMATS} >= set(LAYERS)


@every
def test_a_merged_model_is_not_trained_and_trains_after_unmerging(name):
    model = adapted(name)
    before = copy.deepcopy(model.state_dict())
    merge_adapters(model)
    with pytest.raises(RuntimeError, match=r"call unmerge_adapters\(model\) before training"):
        train(model, [BATCH], TrainConfig(steps=1, progress=False))
    unmerge_adapters(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    losses = train(model, [BATCH], TrainConfig(steps=3, learning_rate=1e-2, progress=False)).losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_one_layer_has_adapters_of_one_method(first, second, tmp_path):
    model = adapted(first)
    before = logits(model)
    with pytest.raises(
        TypeError, match=r"already has an adapter of another method .*; remove_adapters"
    ):
        inject(model, CONFIGS[second], "more")
    save_adapter(adapted(second), tmp_path)
    with pytest.raises(ValueError, match="has an adapter of another method"):
        load_adapter(model, tmp_path, "more")
    assert adapter_names(model) == ["default"] and torch.equal(logits(model), before)
    remove_adapters(model)
    load_adapter(model, tmp_path)
    assert torch.equal(logits(model), logits(adapted(second)))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_weights_of_another_method_are_refused(first, second, tmp_path):
    for name in (first, second):
        save_adapter(adapted(name), tmp_path / name)
    weights = (tmp_path / first / "adapter_model.safetensors").read_bytes()
    (tmp_path / second / "adapter_model.safetensors").write_bytes(weights)
    model = load("tiny").model
    with pytest.raises(ValueError, match=r"has weights of shapes .*, expected "):
        load_adapter(model, tmp_path / second)
    assert not adapter_layers(model)


def test_different_layers_may_have_different_methods():
    model = load("tiny").model
    inject(model, DoRAConfig(rank=2, target_modules=["v_proj"]), "a")
    inject(model, IA3Config(target_modules=["k_proj"], feedforward_modules=[]), "b")
    set_adapter(model, ["a", "b"])
    kinds = {type(layer).__name__ for layer in adapter_layers(model).values()}
    assert kinds == {"DoRALinear", "IA3Linear"} and len(adapter_layers(model)) == 4
    before = logits(model)
    merge_adapters(model)
    assert torch.allclose(logits(model), before, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("dora", {"use_dora": False}, "lora_magnitude_vector"),
        ("lora", {"use_dora": True}, "expected .*lora_magnitude_vector"),
        ("dora", {"layers_to_transform": [0]}, "not implemented here: layers_to_transform="),
        ("adalora", {"target_r": 3}, "invalid setting: target_rank 3 is above initial_rank 2"),
        ("adalora", {"total_step": None}, "invalid setting: total_step must be an integer"),
        ("adalora", {"use_dora": True}, "not implemented here: use_dora=True"),
        ("adalora", {"rank_pattern": {"x.lora_E": [True, True]}}, "'x', which is not a target"),
        ("ia3", {"feedforward_modules": None}, "invalid setting: feedforward_modules must be"),
        ("ia3", {"feedforward_modules": ["v_proj"]}, r"has weights of shapes .*\(32, 1\)"),
        ("ia3", {"lora_alpha": 2}, "not implemented here: lora_alpha=2"),
    ],
)
def test_a_changed_configuration_file_is_refused(name, change, says, tmp_path):
    save_adapter(adapted(name), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    model = load("tiny").model
    with pytest.raises(ValueError, match=says):
        load_adapter(model, tmp_path)
    assert not adapter_layers(model)


@pytest.mark.parametrize("missing", ["total_step", "init_r", "lora_alpha", "target_modules"])
def test_a_setting_that_adalora_needs_is_named(missing, tmp_path):
    save_adapter(adapted("adalora"), tmp_path)
    path = tmp_path / "adapter_config.json"
    raw = json.loads(path.read_text())
    del raw[missing]
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=f"'{missing}' is missing"):
        load_adapter(load("tiny").model, tmp_path)


@every
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_the_same_with_checkpointing(name, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = adapted(name).train()
        if checkpointing:
            if reentrant:  # its inputs must require a gradient, or no layer gets one
                model.enable_input_require_grads()
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(**BATCH, use_cache=False).loss.backward()
        gradients.append([p.grad for p in trainable_parameters(model).values()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.allclose(checkpointed, plain, rtol=1e-4, atol=1e-7)


@every
def test_mixed_precision_trains_to_nearly_the_same_losses(name):
    config = TrainConfig(steps=4, learning_rate=1e-2, progress=False)
    models = adapted(name), adapted(name)
    full = train(models[0], [BATCH], config).losses
    mixed = train(models[1], [BATCH], replace(config, precision="bf16")).losses
    assert mixed == pytest.approx(full, rel=2e-2)
    assert all(p.dtype is torch.float32 for p in models[1].parameters())


@every
@pytest.mark.gpu
def test_it_trains_merges_and_crosses_devices_on_a_gpu(name, tmp_path):
    model = adapted(name).cuda()
    train(model, [BATCH], TrainConfig(steps=3, learning_rate=1e-2, progress=False))
    save_adapter(model, tmp_path)
    back = load("tiny").model
    load_adapter(back, tmp_path)
    with torch.no_grad():
        out = model.eval()(input_ids=TOKENS.cuda()).logits.cpu()
    assert torch.allclose(logits(back.eval()), out, atol=1e-3)
    merge_adapters(model)
    with torch.no_grad():
        merged = model(input_ids=TOKENS.cuda()).logits.cpu()
    assert torch.allclose(merged, out, atol=1e-3)
    on_gpu = load("tiny").model.cuda()
    inject(on_gpu, CONFIGS[name])
    assert all(p.is_cuda for p in on_gpu.parameters())
