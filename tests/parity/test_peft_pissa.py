"""PiSSA's start is PEFT's: the base, the change, and A and B but for the signs of the vectors."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.pissa import start_from_principal


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 6, bias=False))


@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_start_equals_pefts(use_rslora):
    ours = build()
    inject(ours, LoRAConfig(rank=2, alpha=6, use_rslora=use_rslora))
    start_from_principal(ours)
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["0", "1"], use_rslora=use_rslora,
                        init_lora_weights="pissa")  # fmt: skip
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
