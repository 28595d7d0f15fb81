"""What fine-tuning costs: the parameters that it trains, and the memory of a training step.

Parameters are counted without weights: the model is built on torch's meta device, where tensors
have shapes but no storage. `estimate_memory` leaves out allocator overhead, temporary buffers and
the CUDA context; `measure_step` counts tensor by tensor, so it is exact and repeatable on a CPU.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from course_pkg.acceleration.quantization.blockwise import (
    BLOCK_SIZE,
    CONSTANT_BLOCK_SIZE,
    effective_bits,
    stored_bytes,
)
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.argument_checks import require_model
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
from course_pkg.common.arguments import require_choice, require_integer

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

    Attributes:
        base: parameters of the model, tied ones counted once.
        adapter: parameters that it adds.
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
    config: PreTrainedConfig, method: str = "full", adapter: MethodConfig | None = None
) -> ParameterCount:
    """Parameters of a model, and how many of them a method trains.

    "full" trains all; the others what `adapter`, a config of that method, adds: for each target
    module r·(in + out) for LoRA and QLoRA, r·(in + out) + out for DoRA, r·(in + out + 1) for
    AdaLoRA with its initial rank, in or out for IA³, and 2·size·out + size + out for a bottleneck;
    a vector for each token of a prompt; a key and a value in every layer for each token of a
    prefix, or the MLP that computes them.

    >>> from transformers import LlamaConfig
    >>> lora = LoRAConfig(rank=8, target_modules=["q_proj"])
    >>> count = count_parameters(LlamaConfig(), "lora", lora)
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


def adapter_parameters(model: nn.Module, method: str, adapter: MethodConfig | None) -> int:
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


Activations = Literal["stored", "flash", "checkpointed"]


@dataclass(frozen=True)
class MemoryEstimate:
    """The peak memory of a training step in bytes, and the assumptions behind it."""

    method: str
    weights: int
    master_weights: int
    gradients: int
    optimizer_state: int
    activations: int
    assumptions: tuple[str, ...]

    @property
    def total(self) -> int:
        """The sum of the five parts, in bytes."""
        held = self.weights + self.master_weights + self.gradients + self.optimizer_state
        return held + self.activations


def estimate_memory(
    config: PreTrainedConfig,
    method: str = "full",
    adapter: MethodConfig | None = None,
    *,
    batch_size: int = 1,
    sequence_length: int = 512,
    activations: Activations = "stored",
) -> MemoryEstimate:
    """Bytes for one training step in mixed precision with AdamW.

    Args:
        batch_size: in sequences.
        sequence_length: in tokens.
        activations: see `activation_bytes`.

    Sources: Rajbhandari et al. 2020 (ZeRO), section 3.1, for 16 bytes per trained parameter;
    Dettmers et al. 2023 (QLoRA), section 3.
    """
    model = meta_model(config)
    base = sum(p.numel() for p in model.parameters())
    packed = _nf4_savings(model) if method == "qlora" else 0
    added = adapter_parameters(model, method, adapter)
    notes = ["AdamW with two fp32 moments; 16-bit base weights and activations"]
    if method == "full":
        weights = gradients = 2 * base
        master = 4 * base
        state = 8 * base
        notes.append("16-bit gradients; fp32 master weights: yes")
    else:
        weights = 2 * base - packed + 4 * added
        master = 0
        gradients = 4 * added
        state = 8 * added
        notes.append("adapters, their gradients and moments in fp32")
    if method == "qlora":
        bits = effective_bits(BLOCK_SIZE, CONSTANT_BLOCK_SIZE)
        notes.append(f"NF4 at {bits:.3f} bits for nn.Linear weights; everything else in 16 bits")
    size = activation_bytes(config, batch_size, sequence_length, activations)
    tokens = f"{batch_size} × {sequence_length} tokens"
    notes.append(f"activations {activations}, {tokens}: of a GPT block, for every method")
    return MemoryEstimate(method, weights, master, gradients, state, size, tuple(notes))


def activation_bytes(
    config: PreTrainedConfig, batch_size: int, sequence_length: int, keep: Activations = "stored"
) -> int:
    """Bytes of 16-bit activations that GPT blocks (4h GELU MLP, dropout) keep for backward.

    With s tokens, b sequences, width h, a heads, L layers, v words: per layer sbh(34 + 5as/h) if
    all are stored; 34sbh if the attention scores are recomputed ("flash"); 2sbh, plus one whole
    layer at a time, if "checkpointed". Embeddings and output add 4sbh(1 + v/h), with fp32 logits.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
    Models", equation 1 and sections 4.3 and 5.
    """
    require_choice(keep, "activations", get_args(Activations))
    b = require_integer(batch_size, "batch_size")
    s = require_integer(sequence_length, "sequence_length")
    text = getattr(config, "get_text_config", lambda: None)()
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    h, a, L, v = (getattr(text, name, None) for name in names)
    if None in (h, a, L, v):
        raise ValueError(f"{type(config).__name__} lacks one of {', '.join(names)}")
    linear = 34 * s * b * h
    whole = linear + 5 * a * s * s * b
    inputs = 2 * s * b * h
    layers = {"stored": L * whole, "flash": L * linear, "checkpointed": L * inputs + whole}[keep]
    return layers + 4 * s * b * (h + v)


def _nf4_savings(model: PreTrainedModel) -> int:
    """Bytes that NF4 saves against 16-bit weights; the output embedding is never quantized."""
    saved = 0
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
            size = module.weight.numel()
            saved += 2 * size - stored_bytes(size, BLOCK_SIZE, CONSTANT_BLOCK_SIZE)
    return saved


@dataclass(frozen=True)
class StepCost:
    """Bytes and seconds of one forward and backward pass.

    Attributes:
        weights: parameters and buffers, shared ones counted once.
        saved: what autograd keeps from the forward pass for the backward pass, without the weights.
    """

    loss: float
    weights: int
    saved: int
    gradients: int
    seconds: float


def measure_step(model: nn.Module, batch: Mapping[str, Tensor]) -> StepCost:
    """Run ``model(**batch).loss`` forward and backward once, and count; the gradients are dropped.

    While the blocks of a checkpointed model are computed again, each adds to the peak what an
    ordinary pass saves for it; `saved` does not include that.
    """
    trainable = [p for p in require_model(model).parameters() if p.requires_grad]
    if not trainable:
        raise ValueError("no parameter requires a gradient; inject an adapter or unfreeze some")
    own = _storages([*model.parameters(), *model.buffers()])
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)  # also keeps its memory from being used again during the count
        return tensor

    before = [p.grad for p in trainable]
    try:
        for parameter in trainable:
            parameter.grad = None
        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = getattr(model(**batch, use_cache=False), "loss", None)
        if loss is None:
            raise ValueError('the model returned no loss; the batch needs "labels"')
        saved = sum(size for key, size in _storages(kept).items() if key not in own)
        kept.clear()
        loss.backward()
        seconds = time.perf_counter() - started
        gradients = sum(p.grad.nbytes for p in trainable if p.grad is not None)
    finally:
        for parameter, gradient in zip(trainable, before, strict=True):
            parameter.grad = gradient
    return StepCost(loss.item(), sum(own.values()), saved, gradients, seconds)


def _storages(tensors: list[Tensor]) -> dict[int, int]:
    """The bytes of each storage by its address; views of one storage count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
