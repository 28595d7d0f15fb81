"""Held-out loss: the mean over all target tokens of some batches.

The mean of the batches' means would give a token in a batch with few targets more weight than one
in a batch with many.

Chapter: finetuning/sft.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from course_pkg.adapters.argument_checks import require_model
from course_pkg.finetuning.masking import IGNORE_INDEX

Batch = Mapping[str, Tensor]


def count_targets(batch: Batch, *, shifted: bool) -> int:
    """The number of labels that are predicted; a causal model (shifted) never predicts the first.

    >>> count_targets({"labels": torch.tensor([[5, -100, 7, 8]])}, shifted=True)
    2
    """
    labels = batch["labels"]
    labels = labels[:, 1:] if shifted else labels
    return int((labels != IGNORE_INDEX).sum())


def targets_of(model: nn.Module, batch: Batch) -> int:
    """The number of labels of a batch that this model predicts.

    Raises ValueError unless the batch is a dict of tensors with labels.

    >>> from course_pkg.lm.load import load
    >>> targets_of(load("tiny").model, {"labels": torch.tensor([[5, -100, 7, 8]])})
    2
    """
    if not isinstance(batch, Mapping) or "labels" not in batch:
        raise ValueError('a batch must be a dict of tensors that includes "labels"')
    aligned = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return count_targets(batch, shifted=not aligned and batch["labels"].ndim > 1)


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood of the target tokens of all batches, in nats per token.

    batches: as for `train`. The result doesn't depend on how examples are put into batches. A batch
    without targets adds nothing. The model computes in eval mode, and then has its old mode again.
    For `train`, write `evaluate=lambda model: mean_loss(model, held_out)`.
    Raises TypeError for a model or batches of other types, ValueError if there is no target.

    >>> from course_pkg.lm.load import load
    >>> tokens = torch.tensor([[72, 105, 33]])
    >>> loss = mean_loss(load("tiny").model, [{"input_ids": tokens, "labels": tokens}])
    >>> 4 < loss < 7  # an untrained model's guess: log(259) is 5.6
    True
    """
    modes = {module: module.training for module in require_model(model).modules()}
    if isinstance(batches, Mapping):
        raise TypeError("batches must be a list of batches, got a single batch: write [batch]")
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a list or a DataLoader, got {batches!r:.80}")
    device = next(model.parameters()).device
    total, targets = 0.0, 0
    model.eval()
    try:
        for batch in batches:
            if count := targets_of(model, batch):  # without targets, the mean loss would be 0/0
                inputs = {name: tensor.to(device) for name, tensor in batch.items()}
                total += model(**inputs).loss.item() * count
                targets += count
    finally:
        for module, training in modes.items():
            module.training = training
    if targets == 0:
        raise ValueError(f"there is no target: no batch, or every label is {IGNORE_INDEX}")
    return total / targets
