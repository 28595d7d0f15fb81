"""LoRA beyond nn.Linear equals PEFT: GPT-2's Conv1D, embeddings, and modules trained in full."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train

from .small_models import BATCH, close, gpt2, llama, logits, shaken

BUILD = {"gpt2": gpt2, "llama": llama}
CASES = {
    "conv1d": ("gpt2", {"target_modules": "all-linear"}),
    "conv1d-by-name": ("gpt2", {"target_modules": ["c_attn", "mlp.c_fc"]}),
    "embedding": ("llama", {"target_modules": ["embed_tokens"]}),
    "embedding-and-linear": ("llama", {"target_modules": ["embed_tokens", "v_proj"]}),
    "saved-head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved-norms": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["model.norm"]}),
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    """Our model and PEFT's with the same weights, by way of our file."""
    kind, settings = CASES[request.param]
    ours = BUILD[kind]()
    inject(ours, LoRAConfig(rank=2, alpha=4, **settings))
    shaken(ours)
    save_adapter(ours, tmp_path / "ours")
    return (
        kind,
        ours,
        PeftModel.from_pretrained(BUILD[kind](), tmp_path / "ours", is_trainable=True),
    )


def test_the_logits_are_equal_also_disabled_merged_and_removed(pair):
    kind, ours, theirs = pair
    for model in (ours, theirs):
        model.eval()
    assert close(logits(ours), logits(theirs))
    assert not close(logits(ours), logits(BUILD[kind]()))
    with disable_adapters(ours):
        assert torch.equal(logits(ours), logits(BUILD[kind]()))
    with_adapter = logits(ours)
    merge_adapters(ours)
    assert close(logits(ours), with_adapter)
    unmerge_adapters(ours)
    assert torch.equal(logits(ours), with_adapter)
    merge_adapters(ours)
    remove_adapters(ours)
    assert close(logits(ours), with_adapter) and not adapter_layers(ours)
    assert ours.state_dict().keys() == BUILD[kind]().state_dict().keys()


def test_five_steps_of_training_have_the_same_losses(pair):
    _, ours, theirs = pair
    config = TrainConfig(steps=5, learning_rate=1e-2, progress=False)
    losses = [train(model, [BATCH], config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_pefts_file_is_read_and_counts_are_equal(pair, tmp_path):
    kind, ours, theirs = pair
    theirs.save_pretrained(tmp_path / "theirs")
    back = BUILD[kind]()
    load_adapter(back, tmp_path / "theirs")
    assert torch.equal(logits(back.eval()), logits(ours.eval()))
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    assert counted == theirs.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("name", CASES)
def test_a_new_adapter_changes_nothing(name):
    kind, settings = CASES[name]
    model = BUILD[kind]().eval()
    before = logits(model)
    inject(model, LoRAConfig(rank=2, **settings))
    assert torch.equal(logits(model), before)


def test_an_embedding_starts_as_in_peft():
    model = get_peft_model(
        llama(),
        LoraConfig(r=2, target_modules=["embed_tokens"], task_type=TaskType.CAUSAL_LM),
    )
    weights = {n.split(".")[-2]: p for n, p in model.named_parameters() if p.requires_grad}
    assert weights["lora_embedding_A"].abs().max() == 0
    assert weights["lora_embedding_B"].std().item() == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"modules_to_save": ["lm_hed"]}, "'lm_hed' matches no module; did you mean 'lm_head'"),
        ({"modules_to_save": ["q_proj"], "target_modules": ["q_proj"]}, "can have only one"),
        ({"modules_to_save": ["mlp"], "target_modules": ["up_proj"]}, "is or contains"),
        ({"modules_to_save": ["act_fn"]}, "has no parameters"),
    ],
)
def test_impossible_modules_to_save_are_refused_and_change_nothing(settings, says):
    model = llama()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=says):
        inject(model, LoRAConfig(**settings))
    assert model.state_dict().keys() == before.keys()
    assert all(p.requires_grad for p in model.parameters())
