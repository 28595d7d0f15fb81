"""Which rank has which part of a decoder's tensors.

A tensor is cut, or whole on every rank::

    cut by output feature   q, k, v, gate and up (with bias); embeddings, by token
    cut by input feature    o and down
    whole on every rank     norms; the biases of o and down

With fewer key-value heads than ranks, neighboring ranks have copies of the same head, as in vLLM.
Rows of the embeddings are padded with zeros. Source: Shoeybi et al. 2019.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.lm.decoder_config import DecoderConfig

COLUMNS = 0  # the dimension of W that is cut: torch stores (out_features, in_features)
ROWS = 1
BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
KEY_VALUE = ("k_proj", "v_proj")
BY_ROWS = ("o_proj", "down_proj")
MOST_LISTED = 64  # ranks that an error may name


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a tensor is: cut along `dim` (None: whole); `replicas` neighbors have the same part."""

    dim: int | None
    replicas: int = 1


def placement(name: str, config: DecoderConfig, ranks: int) -> Placement:
    """Where a tensor is, by its name and the whole decoder's config."""
    module, _, kind = name.rpartition(".")
    module = module.rpartition(".")[2]
    if module in KEY_VALUE:
        return Placement(COLUMNS, max(1, ranks // config.kv_heads))
    if module in BY_COLUMNS:
        return Placement(COLUMNS)
    if module in BY_ROWS and kind == "weight":
        return Placement(ROWS)
    return Placement(None, ranks)


def local_config(config: DecoderConfig, ranks: int) -> DecoderConfig:
    """One rank's config: its heads, its key-value heads, its part of the MLP; the rest is whole."""
    if not _fits(config, ranks):
        fitting = [str(n) for n in range(1, MOST_LISTED + 1) if _fits(config, n)]
        raise ValueError(
            f"the decoder has {config.heads} heads, {config.kv_heads} key-value heads and "
            f"{config.intermediate_size} features inside each MLP, which {ranks} ranks can't share "
            f"evenly: use {' or '.join(fitting)}"
        )
    return dataclasses.replace(
        config,
        heads=config.heads // ranks,
        kv_heads=max(1, config.kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
    )


def _fits(config: DecoderConfig, ranks: int) -> bool:
    shares_heads = config.kv_heads % ranks == 0 or ranks % config.kv_heads == 0
    return shares_heads and config.heads % ranks == 0 and config.intermediate_size % ranks == 0


def cut(tensor: Tensor, place: Placement, group: Group, pad: bool = False) -> Tensor:
    """A copy of this rank's part; `pad` with zeros to a multiple of the parts, or ValueError."""
    if place.dim is None:
        return tensor.detach().clone()
    parts = group.size // place.replicas
    missing = -tensor.shape[place.dim] % parts
    if missing and not pad:
        raise ValueError(
            f"{tensor.shape[place.dim]} features of a weight of shape {tuple(tensor.shape)} can't "
            f"be divided among {parts} ranks: use a number of ranks that divides them"
        )
    if missing:
        zeros = tensor.new_zeros(missing, *tensor.shape[1:])  # embeddings, cut by rows
        tensor = torch.cat([tensor.detach(), zeros])
    return tensor.detach().chunk(parts, place.dim)[group.rank // place.replicas].clone()


def own_part(parameter: Tensor, place: Placement, group: Group, pad: bool = False) -> nn.Parameter:
    """This rank's part of a parameter as one of its own, which is frozen if the whole one is."""
    return nn.Parameter(cut(parameter, place, group, pad), parameter.requires_grad)


def gathered_tensors(
    tensors: Mapping[str, Tensor], config: DecoderConfig, group: Group
) -> dict[str, Tensor]:
    """Whole tensors from the ranks' parts, on each rank, in the same order; padding is cut off.

    Args:
        tensors: by the names of the decoder's parameters: themselves, their gradients, or an
            optimizer's averages.
        config: the whole decoder's. All ranks must call it.
    """
    whole = {}
    for name, tensor in tensors.items():
        place = placement(name, config, group.size)
        if place.dim is None:
            whole[name] = tensor.detach().clone()
            continue
        parts = group.all_gather(tensor.detach()[None])[:: place.replicas]  # (parts, …)
        whole[name] = torch.cat(list(parts), place.dim)
        if name.startswith(("embed_tokens.", "lm_head.")):
            whole[name] = whole[name][: config.vocab_size]
    return whole
