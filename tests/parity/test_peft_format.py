"""PEFT loads the adapters of this package and the reverse, with the same logits."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.load import load

TOKENS = torch.arange(24).reshape(2, 12)
CONFIGS = {
    "all-linear": LoRAConfig(rank=3, alpha=5.0, dropout=0.1),
    "endings": LoRAConfig(rank=4, target_modules=["q_proj", "down_proj"]),
    "regex": LoRAConfig(rank=2, target_modules=r"model\.layers\.1\..*(q|v)_proj"),
    "rslora": LoRAConfig(rank=8, alpha=4, use_rslora=True),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def tiny(dtype=torch.float32):
    return load("tiny", dtype=dtype).model


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.float()


def same(out, reference, dtype):
    error = (out - reference).norm() / reference.norm()
    return error <= (1e-6 if dtype == torch.float32 else 1e-2)


@each_config
@each_dtype
def test_peft_loads_our_adapters(config, dtype, tmp_path):
    model = tiny(dtype)
    inject(model, config, "mine")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            B = layer.lora_B["mine"]
            B.copy_(0.2 * torch.randn(B.shape, generator=generator))
    save_adapter(model, tmp_path, "mine")
    peft_model = PeftModel.from_pretrained(tiny(dtype), tmp_path)
    peft_config = peft_model.peft_config["default"]
    assert (peft_config.r, peft_config.lora_alpha) == (config.rank, config.alpha)
    assert peft_config.use_rslora == config.use_rslora
    expected = logits(model)
    assert not same(logits(tiny(dtype)), expected, dtype), "the adapter must have an effect"
    assert same(logits(peft_model), expected, dtype)
    assert sorted(set(peft_model.targeted_module_names)) == sorted(adapter_layers(model))


@each_config
@each_dtype
def test_we_load_adapters_of_peft(config, dtype, tmp_path):
    targets = config.target_modules
    peft_model = get_peft_model(
        tiny(dtype),
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            use_rslora=config.use_rslora,
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
        ),
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    peft_model.eval().save_pretrained(tmp_path)
    model = tiny(dtype)
    loaded = load_adapter(model, tmp_path, "theirs")
    assert (loaded.rank, loaded.scaling) == (config.rank, config.scaling)
    expected = logits(peft_model)
    assert not same(logits(tiny(dtype)), expected, dtype), "the adapter must have an effect"
    assert same(logits(model), expected, dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"layers_to_transform": [0]},
        {"init_lora_weights": "pissa"},
    ],
)
def test_settings_that_only_peft_supports_are_refused(options, tmp_path):
    peft_model = get_peft_model(tiny(), LoraConfig(r=2, target_modules=["q_proj"], **options))
    peft_model.save_pretrained(tmp_path)
    (key,) = options
    with pytest.raises(ValueError, match=f"not implemented here.*{key}="):
        load_adapter(tiny(), tmp_path)


def test_a_round_trip_through_both_keeps_every_bit(tmp_path):
    model = tiny()
    inject(model, CONFIGS["endings"])
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            torch.nn.init.normal_(layer.lora_B["default"], generator=torch.Generator())
    save_adapter(model, tmp_path / "ours")
    PeftModel.from_pretrained(tiny(), tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    back = tiny()
    assert load_adapter(back, tmp_path / "theirs") == CONFIGS["endings"]
    assert torch.equal(logits(back), logits(model))
