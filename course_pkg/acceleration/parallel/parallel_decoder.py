"""A whole decoder on several ranks: each has some heads, a part of each MLP, and some tokens.

A layer communicates twice: after attention and after the MLP, where the ranks' partial sums become
one. With sequence parallelism, each rank has only its tokens between these places: an all-reduce
becomes a reduce-scatter and an all-gather, and norms keep 1/N for the backward pass.

The result is a `Decoder` with the config of one rank: `attend` and every cache see fewer heads.

After the backward pass, two kinds of gradients are partial sums, which `finish_gradients` adds up
once per step: those of a key-value head of which several ranks have a copy, and with sequence
parallelism those of what every rank has whole (norms, the biases of the row-parallel layers).

Sources: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2; Megatron's
finalize_model_grads and clip_grads.
"""

import copy
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.autograd_collectives import gather_from_group
from course_pkg.acceleration.parallel.collectives import Group, clip_by_norm, global_norm
from course_pkg.acceleration.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    enter,
)
from course_pkg.acceleration.parallel.tensor_shards import (
    COLUMNS,
    Placement,
    local_config,
    own_part,
    placement,
)
from course_pkg.acceleration.parallel.vocab_parallel import VocabParallelEmbedding
from course_pkg.common.arguments import require_bool
from course_pkg.lm.decoder import Attend, Decoder, Layer, RMSNorm
from course_pkg.lm.decoder_config import DecoderConfig


class ParallelLayer(Layer):
    """One rank's part of a layer; `kv_replicas` neighbors have the same key-value head."""

    def __init__(
        self,
        layer: Layer,
        config: DecoderConfig,
        group: Group,
        kv_replicas: int,
        sequence_parallel: bool,
    ):
        with torch.device("meta"):  # parameters without memory, replaced below
            super().__init__(config, layer.self_attn.layer)
        self.group = group
        self.sequence_parallel = sequence_parallel
        self.input_layernorm = copy.deepcopy(layer.input_layernorm)
        self.post_attention_layernorm = copy.deepcopy(layer.post_attention_layernorm)

        def columns(linear: nn.Linear, replicas: int = 1) -> ColumnParallelLinear:
            return ColumnParallelLinear(linear, group, replicas=replicas, entered=True)

        def rows(linear: nn.Linear) -> RowParallelLinear:
            return RowParallelLinear(linear, group, sequence_parallel=sequence_parallel)

        self.self_attn.q_proj = columns(layer.self_attn.q_proj)
        self.self_attn.k_proj = columns(layer.self_attn.k_proj, kv_replicas)
        self.self_attn.v_proj = columns(layer.self_attn.v_proj, kv_replicas)
        self.self_attn.o_proj = rows(layer.self_attn.o_proj)
        self.mlp.gate_proj = columns(layer.mlp.gate_proj)
        self.mlp.up_proj = columns(layer.mlp.up_proj)
        self.mlp.down_proj = rows(layer.mlp.down_proj)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x and the result: (batch, tokens, hidden), or tokens / N with sequence parallelism."""
        entered = enter(self.input_layernorm(x), self.group, self.sequence_parallel)
        x = x + self.self_attn(entered, cos, sin, attend)
        entered = enter(self.post_attention_layernorm(x), self.group, self.sequence_parallel)
        return x + self.mlp(entered)


class TensorParallelDecoder(Decoder):
    """One rank's part of a decoder; `tensor_parallel` makes it."""

    def __init__(self, decoder: Decoder, group: Group, sequence_parallel: bool):
        config = local_config(decoder.config, group.size)
        with torch.device("meta"):  # parameters without memory, replaced below
            super().__init__(config)
        self.whole_config = decoder.config
        self.group = group
        self.sequence_parallel = sequence_parallel
        options = {"sequence_parallel": sequence_parallel}
        kv_replicas = placement("k_proj.weight", decoder.config, group.size).replicas
        self.embed_tokens = VocabParallelEmbedding(decoder.embed_tokens, group, **options)
        self.layers = nn.ModuleList(
            ParallelLayer(layer, config, group, kv_replicas, sequence_parallel)
            for layer in decoder.layers
        )
        self.norm = copy.deepcopy(decoder.norm)
        self.lm_head = _head(decoder, self.embed_tokens, group, sequence_parallel)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        attend: Attend | None = None,
        last_only: bool = False,
        rows: slice | Tensor = slice(None),
        gather: bool = True,
    ) -> Tensor:
        """The logits, as `Decoder.forward` gives them, on every rank.

        Args:
            gather: False leaves each rank those of its own tokens of the vocabulary, (batch, rows,
                vocab / N rounded up), for `vocab_parallel_cross_entropy`.
        """
        if self.sequence_parallel:
            if ids.shape[-1] % self.group.size:
                raise ValueError(
                    f"{ids.shape[-1]} tokens can't be divided among {self.group.size} ranks: pad "
                    f"them to a multiple of {self.group.size}, or use sequence_parallel=False, "
                    "with which one generates"
                )
            logits = super().forward(ids, positions, attend)
            logits = logits[:, slice(-1, None) if last_only else rows]
        else:
            logits = super().forward(ids, positions, attend, last_only, rows)
        if not gather:
            return logits
        return gather_from_group(logits, self.group)[..., : self.config.vocab_size]

    def shared_seed(self) -> int:
        """A random number that all ranks agree on: the first rank's."""
        drawn = torch.tensor([random.SystemRandom().getrandbits(62)])
        return int(self.group.broadcast(drawn.to(self.norm.weight.device)))


def tensor_parallel(
    decoder: Decoder, group: Group, *, sequence_parallel: bool = False
) -> TensorParallelDecoder:
    """This rank's part of a decoder; all ranks must have the same decoder, which stays as it is.

    Heads, the inside of the MLPs and the vocabulary are divided. With fewer key-value heads than
    ranks, neighbors have copies. A vocabulary that the ranks don't divide is padded.

    Args:
        sequence_parallel: for training; the tokens of a batch are divided too.

    Raises:
        ValueError: heads or the MLP can't be divided; it names the numbers of ranks that fit.
        TypeError: layers are quantized or have adapters.
    """
    if type(decoder) is not Decoder:
        raise TypeError(
            f"expected a whole Decoder, got {type(decoder).__name__}; Decoder.from_folder and "
            "Decoder.from_transformers give one"
        )
    require_bool(sequence_parallel, "sequence_parallel")
    return TensorParallelDecoder(decoder, group, sequence_parallel).train(decoder.training)


def _head(
    decoder: Decoder, embedding: VocabParallelEmbedding, group: Group, sequence_parallel: bool
) -> ColumnParallelLinear:
    """The output layer of this rank's tokens; a tied one has the embedding's own parameter."""
    rows, hidden = embedding.weight.shape
    whole = nn.Linear(hidden, rows * group.size, bias=False, device="meta")
    head = ColumnParallelLinear(whole, group, sequence_parallel=sequence_parallel)
    head.weight = embedding.weight
    if not decoder.config.tied:
        head.weight = own_part(decoder.lm_head.weight, Placement(COLUMNS), group, pad=True)
    return head


@torch.no_grad()
def finish_gradients(decoder: TensorParallelDecoder) -> None:
    """Sum the gradients that are partial sums, in place.

    Call it once per step on every rank: after the last backward pass of the step, before
    `clip_gradients` and the optimizer. A second call would sum again.
    """
    group = decoder.group
    whole = []
    copied = []
    for name, parameter in decoder.named_parameters():
        if parameter.grad is None:
            continue
        place = placement(name, decoder.whole_config, group.size)
        if place.dim is not None and place.replicas > 1:
            copied.append(parameter.grad)
            replicas = place.replicas
        elif place.dim is None and decoder.sequence_parallel:
            whole.append(parameter.grad)
    if whole:
        _unflatten(group.all_reduce(_flatten(whole)), whole)
    if copied:
        # All ranks with a copy sum in the same order, so their copies stay equal to the last bit.
        every = group.all_gather(_flatten(copied)[None])  # (ranks, numbers)
        first = group.rank // replicas * replicas
        _unflatten(every[first : first + replicas].sum(0), copied)


@torch.no_grad()
def gradient_norm(decoder: TensorParallelDecoder) -> float:
    """The norm of the whole gradient, on every rank; tied weights and copies count once."""
    group = decoder.group
    counted = []
    for name, parameter in decoder.named_parameters():
        place = placement(name, decoder.whole_config, group.size)
        if parameter.grad is not None and group.rank % place.replicas == 0:
            counted.append(parameter.grad)
    return global_norm(counted, group).item()


def clip_gradients(decoder: TensorParallelDecoder, max_norm: float) -> float:
    """Scale the gradients so that their norm is at most `max_norm`; return the norm before."""
    norm = gradient_norm(decoder)
    gradients = [p.grad for p in decoder.parameters() if p.grad is not None]
    clip_by_norm(gradients, norm, max_norm)
    return norm


def _flatten(tensors: list[Tensor]) -> Tensor:
    return nn.utils.parameters_to_vector(tensors)


def _unflatten(vector: Tensor, into: list[Tensor]) -> None:
    parts = vector.split([tensor.numel() for tensor in into])
    for tensor, part in zip(into, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def kept_bytes(model: nn.Module, forward: Callable[[], object]) -> tuple[int, int]:
    """The bytes that `forward()` keeps: those that the norms keep, and all, without parameters.

    A norm keeps its input, the residual sum, and what it has normalized. A tensor that several
    operations keep counts once; if a norm keeps it, as the norm's.
    """
    norms = [module for module in model.modules() if isinstance(module, RMSNorm)]
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[bool, Tensor]] = {}  # by place in memory; holding it keeps the place
    inside: list[nn.Module] = []

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            by_norm = bool(inside) or (place in kept and kept[place][0])
            kept[place] = by_norm, tensor
        return tensor

    hooks = [norm.register_forward_pre_hook(lambda norm, _: inside.append(norm)) for norm in norms]
    hooks += [norm.register_forward_hook(lambda *_: inside.clear()) for norm in norms]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    sizes = [(by_norm, tensor.untyped_storage().nbytes()) for by_norm, tensor in kept.values()]
    return sum(size for by_norm, size in sizes if by_norm), sum(size for _, size in sizes)
