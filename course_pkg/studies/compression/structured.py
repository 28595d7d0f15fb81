"""Structured pruning: remove neurons, query heads or key-value groups, and get a smaller Llama.

Every layer, and every group of heads, loses equally many. Sources: Ma et al. 2023 (LLM-Pruner),
section 3.1; Michel et al. 2019 (heads); Kurtic et al. 2023 (ZipLM; reconstruction).
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.acceleration.quantization.layerwise import InputStatistics
from course_pkg.common.arguments import require_choice, require_integer
from course_pkg.lm.smollm2 import quiet
from course_pkg.studies.compression.pruning import keep_largest

ModelUnit = Literal["neuron", "head", "kv_group"]


@dataclass(frozen=True)
class Part:
    """What a unit has of one linear layer: `width` rows, with their biases, or columns."""

    layer: str
    width: int
    columns: bool = False


def unit_parts(config: LlamaConfig, unit: ModelUnit) -> tuple[Part, ...]:
    """The parts of one unit in a block; the last is the columns that read the others' values."""
    require_choice(unit, "unit", get_args(ModelUnit))
    if unit == "neuron":
        rows = (Part("mlp.gate_proj", 1), Part("mlp.up_proj", 1))
        return (*rows, Part("mlp.down_proj", 1, columns=True))
    width = config.head_dim
    rows = ()
    if unit == "kv_group":
        rows = (Part("self_attn.k_proj", width), Part("self_attn.v_proj", width))
        width *= heads_per_group(config)
    return (*rows, Part("self_attn.q_proj", width), Part("self_attn.o_proj", width, columns=True))


def unit_count(config: LlamaConfig, unit: ModelUnit) -> int:
    """How many units each layer has."""
    require_choice(unit, "unit", get_args(ModelUnit))
    return {
        "neuron": config.intermediate_size,
        "head": config.num_attention_heads,
        "kv_group": config.num_key_value_heads,
    }[unit]


def unit_scores(
    model: LlamaForCausalLM, statistics: Mapping[str, InputStatistics], unit: ModelUnit
) -> Tensor:
    """‖X_u W_uᵀ‖² of each unit, (layers, units): the squared change if it alone is removed."""
    scores = []
    for index, block in enumerate(require_llama(model).model.layers):
        part = unit_parts(model.config, unit)[-1]
        weight = block.get_submodule(part.layer).weight.detach()
        inputs = _statistics_of(statistics, f"model.layers.{index}.{part.layer}")
        H = inputs.hessian.to(weight.device)
        columns = weight.unflatten(1, (-1, part.width)).transpose(0, 1).to(H.dtype)  # (units, …)
        places = torch.arange(len(H), device=H.device).view(-1, part.width)  # (units, width)
        blocks = H[places[:, :, None], places[:, None, :]]  # (units, width, width)
        scores.append(inputs.tokens / 2 * ((columns @ blocks) * columns).sum((1, 2)))
    return torch.stack(scores)


def keep_units(scores: Tensor, kept: int, groups: int = 1) -> Tensor:
    """The indices of the units with the largest scores in each layer, ascending, (layers, kept).

    Args:
        scores: (layers, units).
        groups: neighbors that keep equally many: the key-value heads, if the units are query heads.

    >>> scores = torch.tensor([[5.0, 4.0, 1.0, 2.0]])
    >>> keep_units(scores, 2).tolist(), keep_units(scores, 2, groups=2).tolist()
    ([[0, 1]], [[0, 3]])
    """
    units = scores.shape[1]
    require_integer(kept, "kept")
    if kept > units or units % groups or kept % groups:
        raise ValueError(
            f"cannot keep {kept} of {units} units in {groups} groups: keep at most {units}, and a "
            "multiple of the groups"
        )
    mask = keep_largest(scores.unflatten(1, (groups, -1)), kept // groups).flatten(1)
    return mask.nonzero()[:, 1].view(len(scores), kept)


@torch.no_grad()
def remove_units(
    model: LlamaForCausalLM,
    kept: Tensor,
    unit: ModelUnit,
    statistics: Mapping[str, InputStatistics] | None = None,
) -> LlamaForCausalLM:
    """A smaller model of the units kept, (layers, kept); statistics let them make up for others."""
    config = require_llama(model).config
    _require_kept(kept, config, unit)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, dim, chosen in _chosen(config, kept, unit):
        if name not in tensors:  # a layer without bias
            continue
        weight = tensors[name]
        tensors[name] = weight.index_select(dim, chosen)
        if dim == 1 and statistics is not None:
            H = _statistics_of(statistics, name.removesuffix(".weight")).hessian
            tensors[name] = reconstruct(weight, H, chosen)
    with quiet():
        smaller = LlamaForCausalLM.from_pretrained(
            None, config=smaller_config(config, kept.shape[1], unit), state_dict=tensors
        )
    smaller.generation_config = copy.deepcopy(model.generation_config)
    return smaller.to(model.device).train(model.training)


def smaller_config(config: LlamaConfig, kept: int, unit: ModelUnit) -> LlamaConfig:
    """The config of a model that keeps so many units in each layer; head_dim stays."""
    smaller = copy.deepcopy(config)
    smaller.head_dim = config.head_dim
    if unit == "neuron":
        smaller.intermediate_size = kept
    elif unit == "head":
        smaller.num_attention_heads = kept
    else:
        smaller.num_attention_heads = kept * heads_per_group(config)
        smaller.num_key_value_heads = kept
    if smaller.hidden_size % smaller.num_attention_heads:
        raise ValueError(
            f"transformers wants the heads to divide the hidden size {smaller.hidden_size}; "
            f"{smaller.num_attention_heads} query heads do not: keep another number"
        )
    return smaller


def reconstruct(weight: Tensor, hessian: Tensor, kept: Tensor, damping: float = 0.01) -> Tensor:
    """The best weight on the kept columns alone: Ŵ = W H_{:,K} H_{K,K}⁻¹, (rows, kept), in fp64.

    Args:
        hessian: 2 Xᵀ X or a multiple.
        damping: what is added to the Hessian's diagonal, as a share of its mean.

    >>> H = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> reconstruct(torch.tensor([[1.0, 2.0]]), H, torch.tensor([1]), damping=0.0)  # 2 + 1 · 0.5
    tensor([[2.5000]])
    """
    H = hessian.double().clone()
    H.diagonal().add_(damping * H.diagonal().mean())
    between = weight.double() @ H[:, kept]  # (rows, kept)
    return torch.linalg.solve(H[kept][:, kept], between, left=False).to(weight.dtype)


def heads_per_group(config: LlamaConfig) -> int:
    """How many query heads share a key-value head."""
    return config.num_attention_heads // config.num_key_value_heads


def require_llama(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the model if it is a LlamaForCausalLM; otherwise raise TypeError."""
    if not isinstance(model, LlamaForCausalLM):
        raise TypeError(f"expected a LlamaForCausalLM, got {type(model).__name__}")
    return model


def _chosen(
    config: LlamaConfig, kept: Tensor, unit: ModelUnit
) -> Iterator[tuple[str, int, Tensor]]:
    """For each tensor with a part of the units: its name, dimension, and the indices that stay."""
    for index, units in enumerate(kept):
        for part in unit_parts(config, unit):
            within = torch.arange(part.width, device=units.device)
            chosen = (units[:, None] * part.width + within).flatten()
            name = f"model.layers.{index}.{part.layer}"
            yield f"{name}.weight", int(part.columns), chosen
            if not part.columns:
                yield f"{name}.bias", 0, chosen


def _require_kept(kept: Tensor, config: LlamaConfig, unit: ModelUnit) -> None:
    units = unit_count(config, unit)
    layers = config.num_hidden_layers
    fits = kept.dim() == 2 and len(kept) == layers and kept.numel() and not kept.is_floating_point()
    if not fits or kept.min() < 0 or kept.max() >= units or (kept.diff() <= 0).any():
        raise ValueError(
            f"kept must have indices below {units} for each of {layers} layers, (layers, kept), "
            f"each row ascending without repeats; got {tuple(kept.shape)}: {kept.tolist()!r:.80}"
        )
    if unit == "head":
        groups = kept // heads_per_group(config)
        counts = torch.nn.functional.one_hot(groups, config.num_key_value_heads).sum(1)
        if (counts != counts[0, 0]).any():
            raise ValueError("keep equally many heads of every key-value group: keep_units' groups")


def _statistics_of(statistics: Mapping[str, InputStatistics], name: str) -> InputStatistics:
    if name not in statistics:
        raise ValueError(f"there are no statistics of {name}: calibrate this model first")
    return statistics[name]
