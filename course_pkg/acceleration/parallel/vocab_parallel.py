"""Embeddings and cross entropy with a vocabulary that is divided among ranks.

An embedding comes from the one rank that has the token; the others add zeros. The loss needs three
numbers per target from all ranks, in place of all logits: the largest logit, the sum of the
exponentials, and the label's own logit, which one rank has::

    loss = log Σ exp(logit − largest) − (label's logit − largest)

Its gradient with respect to a rank's logits needs no further message: softmax − [token is label].
Source: Shoeybi et al. 2019, section 3.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.tensor_parallel import leave
from course_pkg.acceleration.parallel.tensor_shards import COLUMNS, Placement, own_part
from course_pkg.common.arguments import require_between, require_choice

REDUCTIONS = ("none", "sum", "mean")


class VocabParallelEmbedding(nn.Module):
    """This rank's rows of an embedding matrix, (vocab / N rounded up, hidden).

    With sequence parallelism, each rank gets the vectors of its own tokens.
    """

    def __init__(self, embedding: nn.Embedding, group: Group, *, sequence_parallel: bool = False):
        super().__init__()
        self.weight = own_part(embedding.weight, Placement(COLUMNS), group, pad=True)
        self.vocab_size = embedding.num_embeddings
        self.group = group
        self.sequence_parallel = sequence_parallel

    def forward(self, ids: Tensor) -> Tensor:
        """From ids (batch, tokens) to (batch, tokens, hidden), or tokens / N of them."""
        if ids.numel() and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise IndexError(
                f"ids are from {int(ids.min())} to {int(ids.max())}: expected 0 to "
                f"{self.vocab_size - 1}"
            )
        rows = len(self.weight)
        place = ids - self.group.rank * rows
        elsewhere = (place < 0) | (place >= rows)
        x = F.embedding(place.masked_fill(elsewhere, 0), self.weight)  # (batch, tokens, hidden)
        x = x.masked_fill(elsewhere[..., None], 0)
        return leave(x, self.group, self.sequence_parallel)


def vocab_parallel_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    group: Group,
    vocab_size: int,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """F.cross_entropy of logits that no rank has whole; every rank gets the same loss.

    Every rank must call backward with the same gradient of the loss.

    Args:
        logits: this rank's, (…, vocab / N rounded up), as `decoder(ids, gather=False)` gives them.
        labels: (…), the same on all ranks; ignore_index marks those that don't count.
        vocab_size: of all ranks, without padding.
    """
    require_choice(reduction, "reduction", REDUCTIONS)
    require_between(label_smoothing, "label_smoothing", 0, 1, closed=True)
    columns = -(-vocab_size // group.size)
    if logits.shape != (*labels.shape, columns):
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}: expected labels (…) and "
            f"logits (…, {columns}), one of {group.size} equal parts of {vocab_size} tokens"
        )
    counts = labels != ignore_index
    wrong = counts & ((labels < 0) | (labels >= vocab_size))
    if wrong.any():
        raise ValueError(
            f"a label is {labels[wrong][0]}: expected 0 to {vocab_size - 1}, or {ignore_index} to "
            "ignore it"
        )
    losses = _CrossEntropy.apply(
        logits.flatten(0, -2),
        labels.flatten(),
        counts.flatten(),
        group,
        vocab_size,
        label_smoothing,
    )
    if reduction == "none":
        return losses.view(labels.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / counts.sum()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,  # (rows, columns)
        labels: Tensor,  # (rows,)
        counts: Tensor,  # (rows,), true where the label counts
        group: Group,
        vocab_size: int,
        smoothing: float,
    ) -> Tensor:
        columns = logits.shape[1]
        first = group.rank * columns
        real = min(max(vocab_size - first, 0), columns)  # the others are padding
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if real < columns:
            padding = torch.arange(columns, device=logits.device) >= real
            logits = logits.masked_fill(padding, -torch.inf)
        largest = group.all_reduce(logits.amax(1), "max")  # (rows,)
        shifted = logits - largest[:, None]
        place = labels - first
        here = counts & (place >= 0) & (place < columns)
        place = place.where(here, 0)[:, None]  # (rows, 1)
        label_logit = shifted.gather(1, place)[:, 0].where(here, 0)
        all_logits = shifted[:, :real].sum(1)
        softmax = shifted.exp_()
        sums = group.all_reduce(torch.stack([softmax.sum(1), label_logit, all_logits]))  # (3, rows)
        total, label_logit, all_logits = sums
        softmax /= total[:, None]
        ctx.save_for_backward(softmax, place, here, counts)
        ctx.sizes = (real, vocab_size, smoothing)
        mean_logit = all_logits / vocab_size
        losses = total.log() - (1 - smoothing) * label_logit - smoothing * mean_logit
        return losses.where(counts, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        softmax, place, here, counts = ctx.saved_tensors
        real, vocab_size, smoothing = ctx.sizes
        result = softmax.clone()  # (rows, columns)
        on_label = torch.zeros_like(place, dtype=result.dtype).masked_fill(
            here[:, None], smoothing - 1
        )
        result.scatter_add_(1, place, on_label)
        result[:, :real] -= smoothing / vocab_size
        result *= gradient.where(counts, 0)[:, None]
        return result, None, None, None, None, None
