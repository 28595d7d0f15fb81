"""LoRA equals PEFT on every family of models: targets, dtypes, sums, and how it starts."""

from functools import partial

import pytest
import torch
from peft import EvaConfig, LoraConfig, PeftModel, get_peft_model
from torch import nn

from course_pkg.adapters.accounting import count_parameters
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    trainable_parameters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.pissa import start_from_principal
from tests.parity.small_models import (
    EQUAL,
    FAMILIES,
    close,
    error,
    family,
    llama,
    logits,
    pair_of,
    shaken,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_are_equal(name, tmp_path):
    ours, theirs = pair_of(partial(family, name), LoRAConfig(rank=4, alpha=7.0), tmp_path)
    base = logits(family(name))
    expected = logits(theirs.eval())
    assert error(expected, base) > 1e-2, "the adapter must have an effect"
    assert error(logits(ours), expected) <= 2 * EQUAL  # T5 has twice the layers
    with disable_adapters(ours):
        assert torch.equal(logits(ours), base)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_mixed_dtypes_are_handled_as_in_peft(dtype, tmp_path):
    ours, theirs = pair_of(lambda: family("llama").to(dtype), LoRAConfig(rank=4), tmp_path)
    for name, layer in adapter_layers(ours).items():
        other = theirs.base_model.model.get_submodule(name)
        assert layer.lora_A["default"].dtype == other.lora_A["default"].weight.dtype
    mine = logits(ours)
    yours = logits(theirs.eval())
    assert mine.dtype == yours.dtype == dtype
    # Compared with fp64, our error is at most twice PEFT's at the same precision.
    exact = family("llama").to(dtype).double()
    load_adapter(exact, tmp_path)
    assert error(mine, logits(exact)) <= 2 * error(yours, logits(exact)) + 1e-15


TARGETS = {
    "all-linear": {"decoders": "all-linear", "t5": "all-linear", "bert": "all-linear"},
    "endings": {
        "decoders": ["q_proj", "self_attn.v_proj"],
        "t5": ["q", "v"],
        "bert": ["query", "attention.output.dense"],
    },
    "regex": {
        "decoders": r"model\..*\.1\..*_proj",
        "t5": r"decoder\..*\.(wi|wo)",
        "bert": r".*\.1\..*(key|value)",
    },
    "head": {"decoders": ["lm_head"], "t5": ["lm_head"], "bert": ["decoder"]},
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, kind) for n in FAMILIES for kind in TARGETS if n != "mixtral" or kind == "all-linear"],
)
def test_the_same_modules_are_wrapped(name, kind):
    targets = TARGETS[kind].get(name, TARGETS[kind]["decoders"])
    if name == "mixtral":  # transformers 5 fuses the experts into one tensor
        targets = ATTENTION
        assert len(inject(family(name), LoRAConfig())) == 2 * len(ATTENTION)
    config = LoRAConfig(rank=2, target_modules=targets)
    ours = family(name)
    names = inject(ours, config)
    theirs = get_peft_model(family(name), LoraConfig(r=2, target_modules=targets))
    assert sorted(names) == sorted(set(theirs.targeted_module_names))
    prefix = "base_model.model."
    trained = {n.removeprefix(prefix) for n, p in theirs.named_parameters() if p.requires_grad}
    assert {f"{name}.weight" for name in trainable_parameters(ours)} == trained
    if kind != "head":  # a wrapped tied head is listed twice by PEFT
        count = count_parameters(FAMILIES[name], "lora", config)
        assert (count.trainable, count.total) == theirs.get_nb_trainable_parameters()


@pytest.mark.parametrize("use_rslora", [False, True])
def test_pissa_starts_as_in_peft_but_for_the_signs_of_the_vectors(use_rslora):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 6, bias=False))

    ours = build()
    inject(ours, LoRAConfig(rank=2, alpha=6, use_rslora=use_rslora))
    start_from_principal(ours)
    config = LoraConfig(
        r=2,
        lora_alpha=6,
        target_modules=["0", "1"],
        use_rslora=use_rslora,
        init_lora_weights="pissa",
    )
    theirs = get_peft_model(build(), config).base_model.model
    for name, layer in adapter_layers(ours).items():
        peft = theirs.get_submodule(name)
        pairs = (
            (layer.base.weight, peft.base_layer.weight),
            (layer.delta_weight("default"), peft.get_delta_weight("default")),
            (layer.lora_A["default"].abs(), peft.lora_A["default"].weight.abs()),
            (layer.lora_B["default"].abs(), peft.lora_B["default"].weight.abs()),
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_file_of_a_changed_base_says_how_to_convert_it_and_then_loads(start, tmp_path):
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=start)
    theirs = get_peft_model(llama(), config)
    theirs.save_pretrained(tmp_path / "start")
    shaken(theirs).eval().save_pretrained(tmp_path / "trained")
    with pytest.raises(ValueError, match="path_initial_model_for_weight_conversion=start"):
        load_adapter(llama(), tmp_path / "trained")
    expected = logits(theirs)
    theirs.save_pretrained(
        tmp_path / "converted", path_initial_model_for_weight_conversion=str(tmp_path / "start")
    )
    ours = llama()
    load_adapter(ours, tmp_path / "converted")
    assert error(logits(ours.eval()), expected) <= 4 * EQUAL  # SVDs of weights


def test_a_pattern_that_fits_no_target_is_refused_in_a_new_adapter_only(tmp_path):
    """PEFT ignores it, so a file may have one."""
    model = llama()
    with pytest.raises(ValueError, match="rank_pattern has 'q_prj', which fits none"):
        inject(model, LoRAConfig(2, target_modules=["q_proj"], rank_pattern={"q_prj": 4}))
    assert not adapter_layers(model)
    config = LoraConfig(r=2, target_modules=["q_proj"], rank_pattern={"q_prj": 4})
    theirs = shaken(get_peft_model(llama(), config)).eval()
    theirs.save_pretrained(tmp_path)
    load_adapter(model, tmp_path)
    assert close(logits(model.eval()), logits(theirs))


SETTINGS = {
    "EVA": {"init_lora_weights": "eva", "eva_config": EvaConfig()},
    "exclude_modules": {"exclude_modules": ["1.self_attn.q_proj"]},
    "layers_to_transform": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "one layer": {"layers_to_transform": 0},
    "ensure_weight_tying": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_the_files_own_names_explain_are_read(name, tmp_path):
    config = LoraConfig(r=2, target_modules=["q_proj"], **SETTINGS[name])
    theirs = shaken(get_peft_model(family("tied"), config))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = family("tied")
    load_adapter(ours, tmp_path / "theirs")
    assert error(logits(ours), logits(theirs.eval())) <= EQUAL
    assert error(logits(ours), logits(family("tied"))) > 1e-2
    save_adapter(ours, tmp_path / "ours")  # whose targets are only those of the file
    again = PeftModel.from_pretrained(family("tied"), tmp_path / "ours")
    assert error(logits(again.eval()), logits(ours)) <= EQUAL
    assert len(adapter_layers(ours)) == {"EVA": 2, "ensure_weight_tying": 4}.get(name, 1)


def test_one_adapter_for_tied_embeddings_and_output_is_refused(tmp_path):
    config = LoraConfig(r=2, target_modules=["embed_tokens"], ensure_weight_tying=True)
    get_peft_model(family("tied"), config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"one adapter for model\.embed_tokens and lm_head togeth"):
        load_adapter(family("tied"), tmp_path)
