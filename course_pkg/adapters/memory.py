"""The memory of a training step in bytes, for any transformers config, without weights.

Bytes are calculated, not measured: they leave out allocator overhead, temporary buffers and the
CUDA context. Chapter: adapters/lora.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from course_pkg.adapters.accounting import (
    Method,
    MethodConfig,
    adapter_parameters,
    align,
    meta_model,
)
from course_pkg.quantization.blockwise import (
    BLOCK_SIZE,
    CONSTANT_BLOCK_SIZE,
    effective_bits,
    stored_bytes,
)

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

    def table(self) -> str:
        """The parts in GiB (2^30 bytes) as aligned text, followed by the assumptions."""
        names = ("weights", "master_weights", "gradients", "optimizer_state", "activations")
        rows = [(name, f"{getattr(self, name) / 2**30:.3f} GiB") for name in (*names, "total")]
        notes = "\n".join(f"- {note}" for note in self.assumptions)
        return f"{align([(self.method, ''), *rows])}\n{notes}"


def estimate_memory(
    config: PreTrainedConfig,
    method: Method = "full",
    adapter: MethodConfig | None = None,
    *,
    batch_size: int = 1,
    sequence_length: int = 512,
    activations: Activations = "stored",
    master_weights: bool = True,
) -> MemoryEstimate:
    """Bytes for one training step in mixed precision with AdamW.

    batch_size in sequences, sequence_length in tokens. activations: see `activation_bytes`.
    master_weights: whether full fine-tuning keeps an fp32 copy of its 16-bit weights.
    Raises what count_parameters raises; ValueError for sizes below 1 or an unknown choice.
    Sources: Rajbhandari et al. 2020 (ZeRO), section 3.1, for 16 bytes per trained parameter;
    Dettmers et al. 2023 (QLoRA), section 3.

    >>> from transformers import LlamaConfig
    >>> estimate = estimate_memory(LlamaConfig())  # 7B: 2 + 2 + 4 + 8 bytes each
    >>> (estimate.total - estimate.activations) / 6_738_415_616
    16.0
    """
    model = meta_model(config)
    base = sum(p.numel() for p in model.parameters())
    packed = _nf4_savings(model) if method == "qlora" else 0
    added = adapter_parameters(model, method, adapter)
    notes = ["AdamW with two fp32 moments; 16-bit base weights and activations"]
    if method == "full":
        weights, master, gradients, state = 2 * base, 4 * base, 2 * base, 8 * base
        master *= master_weights
        notes.append(f"16-bit gradients; fp32 master weights: {'yes' if master_weights else 'no'}")
    else:
        weights, master = 2 * base - packed + 4 * added, 0
        gradients, state = 4 * added, 8 * added
        notes.append("adapters, their gradients and moments in fp32")
    if method == "qlora":
        bits = effective_bits(BLOCK_SIZE, CONSTANT_BLOCK_SIZE)
        notes.append(f"NF4 at {bits:.3f} bits for nn.Linear weights; everything else in 16 bits")
    size = activation_bytes(config, batch_size, sequence_length, activations)
    tokens = f"{batch_size} × {sequence_length} tokens"
    notes.append(f"activations {activations}, {tokens}: those of a GPT block, for every method")
    return MemoryEstimate(method, weights, master, gradients, state, size, tuple(notes))


def activation_bytes(
    config: PreTrainedConfig, batch_size: int, sequence_length: int, keep: Activations = "stored"
) -> int:
    """Bytes of 16-bit activations that GPT blocks (4h GELU MLP, dropout) keep for backward.

    With s tokens, b sequences, width h, a heads, L layers, v words: per layer sbh(34 + 5as/h) if
    all are stored; 34sbh if the attention scores are recomputed ("flash"); 2sbh, plus one whole
    layer at a time, if "checkpointed". Embeddings and output add 4sbh(1 + v/h), with fp32 logits.
    Raises ValueError for sizes below 1, an unknown choice, or a config that lacks these numbers.
    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
    Models", equation 1 and sections 4.3 and 5.

    >>> from transformers import LlamaConfig
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=16)
    >>> activation_bytes(LlamaConfig(**sizes), 1, 4)  # 34·4·8 + 5·2·4·4 + 4·4·(8 + 16)
    1632
    """
    if keep not in get_args(Activations):
        raise ValueError(f"activations must be one of {get_args(Activations)}, got {keep!r}")
    b, s = batch_size, sequence_length
    if not all(isinstance(size, int) and size >= 1 for size in (b, s)):
        raise ValueError(f"batch_size and sequence_length must be at least 1, got {b} and {s}")
    text = getattr(config, "get_text_config", lambda: None)()
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    h, a, L, v = (getattr(text, name, None) for name in names)
    if None in (h, a, L, v):
        raise ValueError(f"{type(config).__name__} lacks one of {', '.join(names)}")
    whole, linear, inputs = 34 * s * b * h + 5 * a * s * s * b, 34 * s * b * h, 2 * s * b * h
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
