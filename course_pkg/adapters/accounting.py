"""How many parameters fine-tuning trains, for any transformers config, without weights.

The model is built on torch's meta device, where tensors have shapes but no storage, so
counting takes milliseconds and uses the real class, with its tied and grouped weights.
Chapter: adapters/lora.
"""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import trainable_parameters
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt
from course_pkg.adapters.prefixes import PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.adapters.virtual_tokens import VirtualTokenConfig
from course_pkg.common.arguments import require_choice

Method = Literal[
    "full", "lora", "qlora", "dora", "adalora", "ia3", "bottleneck", "prompt", "prefix"
]
MethodConfig = AdapterConfig | VirtualTokenConfig
CONFIGS: dict[str, type[MethodConfig] | None] = {  # the config that each method needs
    "full": None,
    "lora": LoRAConfig,
    "qlora": LoRAConfig,
    "dora": DoRAConfig,
    "adalora": AdaLoRAConfig,
    "ia3": IA3Config,
    "bottleneck": BottleneckConfig,
    "prompt": PromptTuningConfig,
    "prefix": PrefixTuningConfig,
}


@dataclass(frozen=True)
class ParameterCount:
    """How many parameters a fine-tuning method keeps and trains.

    base: parameters of the model, tied ones counted once; adapter: parameters that it adds;
    trainable: parameters that get a gradient.
    """

    method: str
    base: int
    adapter: int
    trainable: int

    @property
    def total(self) -> int:
        """Base plus adapter, which PEFT prints as "all params"."""
        return self.base + self.adapter

    @property
    def share(self) -> float:
        """Trainable divided by total, between 0 and 1."""
        return self.trainable / self.total


def lora_parameters(out_features: int, in_features: int, rank: int) -> int:
    """Parameters that LoRA adds to one layer: r(d + k), for A, (r, k), and B, (d, r).

    Source: Hu et al. 2021, section 4.1.

    >>> lora_parameters(4096, 4096, rank=8)  # of 16,777,216
    65536
    """
    return rank * (out_features + in_features)


def count_parameters(
    config: PreTrainedConfig, method: Method = "full", adapter: MethodConfig | None = None
) -> ParameterCount:
    """Parameters of a model, and how many of them a method trains.

    method: "full" trains all; the others what `adapter`, a config of that method, adds: for each
    target module r·(in + out) for LoRA and QLoRA, r·(in + out) + out for DoRA, r·(in + out + 1) for
    AdaLoRA with its initial rank, in or out for IA³, and 2·size·out + size + out for a bottleneck;
    a vector for each token of a prompt; a key and a value in every layer for each token of a
    prefix, or the MLP that computes them. Raises TypeError unless config is a transformers config;
    ValueError if adapter is missing or of another method; and what `adapt` raises.

    >>> from transformers import LlamaConfig
    >>> count = count_parameters(LlamaConfig(), "lora", LoRAConfig(8, target_modules=["q_proj"]))
    >>> f"{count.base:,} {count.trainable:,}"  # Llama-2-7B: 32 layers of 8·(4096 + 4096)
    '6,738,415,616 2,097,152'
    """
    model = meta_model(config)
    base = sum(parameter.numel() for parameter in model.parameters())
    added = adapter_parameters(model, method, adapter)
    return ParameterCount(method, base, added, base if method == "full" else added)


def meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The config's model on the meta device; a language model if transformers has one."""
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(f"config must be a transformers config, got {type(config).__name__}")
    # Encoder-decoders first: the other mappings contain only one half of BART or T5.
    kinds = (AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForCausalLM, AutoModel)
    kind = next((k for k in kinds if type(config) in k._model_mapping), None)
    if kind is None:
        raise ValueError(f"transformers has no model class for {type(config).__name__}")
    with torch.device("meta"):
        return kind.from_config(copy.deepcopy(config))


def adapter_parameters(model: nn.Module, method: Method, adapter: MethodConfig | None) -> int:
    """Parameters that the method adds to a model on the meta device, which it changes."""
    kind = CONFIGS[require_choice(method, "method", CONFIGS)]
    if type(adapter) is not (kind or type(None)):
        needs = f"needs a {kind.__name__}" if kind else "takes no adapter config"
        raise ValueError(f'method "{method}" {needs}, got {adapter!r:.80}')
    if adapter is None:
        return 0
    with torch.device("meta"):
        model = adapt(model, adapter)
    return sum(p.numel() for p in trainable_parameters(model).values())
