"""AdaLoRA's schedule equals PEFT's step by step: scores, masks, Λ, losses, and the final file."""

import copy
import json

import pytest
import torch
from peft import AdaLoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.rank_allocator import RankAllocator, budget_at
from course_pkg.finetuning.config import Callback, TrainConfig
from course_pkg.finetuning.trainer import train
from tests.parity.small_models import EQUAL, close, llama, logits

SCHEDULES = {
    "all phases": {"total_step": 24, "tinit": 4, "tfinal": 6, "delta_t": 3},
    "every step": {"total_step": 12, "tinit": 0, "tfinal": 2},
    "shortest": {"total_step": 3, "tinit": 0, "tfinal": 1},
    "all at once": {"total_step": 6, "tinit": 3, "tfinal": 2},
    "no final phase": {"total_step": 9, "tinit": 2, "tfinal": 0, "delta_t": 2},
    "to rank 1": {"total_step": 14, "tinit": 3, "tfinal": 3, "target_rank": 1, "beta1": 0.5},
    "large penalty": {"total_step": 12, "tinit": 2, "tfinal": 3, "orth_reg_weight": 5.0},
}


def batches(count=3):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 32, (count, 2, 12), generator=generator)
    return [{"input_ids": t, "attention_mask": torch.ones_like(t), "labels": t} for t in tokens]


class Ours(RankAllocator):
    """Our allocator, which also records the penalty, the masks, the averages and Λ of each step."""

    def __init__(self, model):
        super().__init__(model)
        self.penalties = []
        self.record = []

    def extra_loss(self):
        penalty = super().extra_loss()
        self.penalties.append(penalty.item())
        return penalty

    def after_step(self, step):
        super().after_step(step)
        scores = {
            f"{module}.{part}": one * other
            for module, parts in self.averages.items()
            for part, (one, other) in parts.items()
        }
        entries = {
            m: layer.lora_E["default"].flatten().tolist() for m, layer in self.layers.items()
        }
        self.record.append((copy.deepcopy(self.masks), scores, entries))


class Theirs(Callback):
    """PEFT's allocator behind the same callback; PEFT's model adds the penalty to its own loss."""

    def __init__(self, model):
        self.tuner = model.base_model
        self.record = []

    def after_step(self, step):
        self.tuner.update_and_allocate(step)
        allocator = self.tuner.rankallocator
        config = self.tuner.peft_config["default"]
        masks = {
            key.removesuffix(".lora_E.default"): torch.tensor(mask)
            for key, mask in (config.rank_pattern or {}).items()
        }
        scores = {
            name.removesuffix(".default"): allocator._element_score(name)
            for name in allocator.exp_avg_ipt
        }
        entries = {
            name.removesuffix(".lora_E.default"): p.flatten().tolist()
            for name, p in self.tuner.model.named_parameters()
            if "lora_E" in name
        }
        self.record.append((masks, scores, entries))


@pytest.fixture(params=SCHEDULES)
def trained(request, tmp_path):
    """Our model and PEFT's after the same whole schedule, and what both recorded."""
    config = AdaLoRAConfig(
        **{"initial_rank": 4, "target_rank": 2} | SCHEDULES[request.param],
        target_modules=["q_proj", "v_proj", "down_proj"],
    )
    ours = llama()
    inject(ours, config)
    save_adapter(ours, tmp_path / "start")
    theirs = PeftModel.from_pretrained(llama(), tmp_path / "start", is_trainable=True)
    settings = TrainConfig(
        steps=config.total_step, learning_rate=2e-2, warmup_steps=3, progress=False
    )
    mine = Ours(ours)
    peft = Theirs(theirs)
    losses = [
        train(model, batches(), settings, callback=callback).losses
        for model, callback in ((ours, mine), (theirs, peft))
    ]
    return config, ours, theirs, mine, peft, losses


def test_the_whole_schedule_is_the_same(trained):
    config, _, tuned, mine, peft, (data_losses, total_losses) = trained
    sums = [loss + penalty for loss, penalty in zip(data_losses, mine.penalties, strict=True)]
    assert sums == pytest.approx(total_losses, rel=4 * EQUAL)
    assert len(mine.record) == len(peft.record) == config.total_step
    for ours, theirs in zip(mine.record, peft.record, strict=True):
        masks, scores, entries = theirs
        for module, mask in masks.items():  # PEFT has none before its first allocation
            assert torch.equal(ours[0][module], mask)
        assert ours[1].keys() == scores.keys()
        for name, score in scores.items():
            assert (ours[1][name] - score).norm() <= 1e-3 * score.norm() + 1e-30, name
        for module, values in entries.items():
            assert ours[2][module] == pytest.approx(values, rel=1e-4, abs=1e-6)
    assert mine.final and any(not mask.all() for mask in mine.masks.values())
    assert sum(mine.ranks().values()) <= 6 * config.target_rank
    for step in range(1, config.total_step + 1):
        budget = tuned.base_model.rankallocator.budget_schedule(step)[0]
        assert budget_at(step, config, modules=6) == budget


def test_pruned_files_are_equal_and_cross_both_ways(trained, tmp_path):
    _, ours, theirs, mine, *_ = trained
    before = logits(ours.eval())
    kept = sum(mine.ranks().values())
    mine.prune()
    assert close(logits(ours), before)
    assert sum(len(layer.lora_E["default"]) for layer in adapter_layers(ours).values()) == kept
    save_adapter(ours, tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    files = [load_file(tmp_path / one / "adapter_model.safetensors") for one in ("ours", "theirs")]
    assert {k: t.shape for k, t in files[0].items()} == {k: t.shape for k, t in files[1].items()}
    patterns = [
        json.loads((tmp_path / one / "adapter_config.json").read_text())["rank_pattern"]
        for one in ("ours", "theirs")
    ]
    assert patterns[0] == patterns[1]
    by_peft = PeftModel.from_pretrained(llama(), tmp_path / "ours")
    assert close(logits(by_peft.eval()), before)
    by_us = llama()
    load_adapter(by_us, tmp_path / "theirs")
    assert close(logits(by_us.eval()), logits(theirs.eval()))


def test_a_file_saved_before_the_final_phase_has_all_ranks(tmp_path):
    model = llama()
    inject(model, AdaLoRAConfig(total_step=10, target_modules=["q_proj"]))
    save_adapter(model, tmp_path)
    assert PeftModel.from_pretrained(llama(), tmp_path).peft_config["default"].rank_pattern is None


def test_a_schedule_that_ends_at_step_1_is_refused_where_peft_fails(tmp_path):
    settings = {"init_r": 3, "target_r": 1, "target_modules": ["q_proj"]}
    theirs = get_peft_model(llama(), AdaLoraConfig(total_step=3, tfinal=2, **settings))
    theirs(**batches()[0]).loss.backward()
    with pytest.raises(KeyError):
        theirs.base_model.update_and_allocate(1)
    with pytest.raises(ValueError, match="final at step 1"):
        AdaLoRAConfig(total_step=3, tfinal=2)
    theirs.base_model.update_and_allocate(0)  # counted from 0, there is a step before it
    theirs.base_model.update_and_allocate(1)
    theirs.save_pretrained(tmp_path)
    assert load_adapter(llama(), tmp_path).rank_pattern is not None
