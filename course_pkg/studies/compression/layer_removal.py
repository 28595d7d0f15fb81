"""Students for distillation: a trained model without some of its layers.

Sources: Sanh et al. 2019 (DistilBERT), section 2; Men et al. 2024 (ShortGPT), section 3.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import LlamaForCausalLM

from course_pkg.common.arguments import require_integer
from course_pkg.studies.compression.distillation import evaluating
from course_pkg.studies.compression.structured import require_llama


def evenly_spaced(layers: int, keep: int) -> list[int]:
    """The indices of the layers to keep: the first, the last, and evenly spaced ones between.

    >>> evenly_spaced(12, keep=6)
    [0, 2, 4, 7, 9, 11]
    """
    require_integer(layers, "layers")
    if require_integer(keep, "keep") > layers:
        raise ValueError(f"keep must be at most the number of layers, {layers}, got {keep}")
    if keep == 1:
        return [0]
    gaps = keep - 1
    # The nearest integers to index · (layers − 1) / gaps, in integers alone.
    return [(2 * index * (layers - 1) + gaps - 1) // (2 * gaps) for index in range(keep)]


def most_influential(influence: Sequence[float], keep: int) -> list[int]:
    """The indices of the layers to keep: those with the highest influence, in their order."""
    if require_integer(keep, "keep") > len(influence):
        raise ValueError(f"keep must be at most the number of layers, {len(influence)}, got {keep}")
    order = sorted(range(len(influence)), key=lambda index: -influence[index])
    return sorted(order[:keep])


@torch.no_grad()
def block_influence(model: LlamaForCausalLM, batches: Iterable[Tensor]) -> list[float]:
    """1 − the mean cosine of what each layer reads and returns, over tokens without padding."""
    layers = require_llama(model).model.layers
    cosines = torch.zeros(len(layers), dtype=torch.float64)  # sums over tokens

    def measure(index: int) -> RemovableHandle:
        def add(layer: nn.Module, args: tuple, output: Tensor) -> None:
            similarity = F.cosine_similarity(args[0].double(), output.double(), dim=-1)
            cosines[index] += similarity.sum().item()  # of (batch, tokens)

        return layers[index].register_forward_hook(add)

    tokens = 0
    handles = [measure(index) for index in range(len(layers))]
    try:
        with evaluating(model):
            for ids in batches:
                model(ids, use_cache=False, logits_to_keep=1)
                tokens += ids.numel()
    finally:
        for handle in handles:
            handle.remove()
    if tokens == 0:
        raise ValueError("no tokens: block influence needs at least one batch of token ids")
    return (1 - cosines / tokens).tolist()


def keep_layers(model: LlamaForCausalLM, layers: Sequence[int]) -> LlamaForCausalLM:
    """A copy of the model that has only these layers, in this order, with new numbers.

    It shares no tensor with the model, and all its parameters require a gradient.
    """
    total = len(require_llama(model).model.layers)
    kept = [require_integer(index, "a layer's index", 0) for index in layers]
    if not kept or kept != sorted(set(kept)) or kept[-1] >= total:
        raise ValueError(
            f"layers must ascend from 0 to {total - 1} at most, got {list(layers)!r:.80}"
        )
    # deepcopy takes what is in `memo` instead of a copy: nothing much, for a layer that goes.
    gone = [layer for at, layer in enumerate(model.model.layers) if at not in kept]
    memo = {id(layer): nn.Identity() for layer in gone}
    student = copy.deepcopy(model, memo)
    student.model.layers = nn.ModuleList(student.model.layers[index] for index in kept)
    student.config.num_hidden_layers = len(kept)
    for number, layer in enumerate(student.model.layers):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = number
    return student.requires_grad_(True)
