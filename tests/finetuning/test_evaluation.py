"""The held-out loss is a mean over tokens, whatever the batches."""

import pytest
import torch
from torch import nn

from course_pkg.finetuning.batches import count_targets
from course_pkg.finetuning.trainer import mean_loss
from course_pkg.lm.load import load


def rows():
    """Six rows of 12 tokens, with 1 to 11 targets."""
    tokens = torch.randint(0, 256, (6, 12), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    for row, first in enumerate((11, 1, 9, 4, 2, 7)):
        labels[row, :first] = -100
    return tokens, labels


def cut(tokens, labels, *sizes):
    parts = zip(tokens.split(sizes), labels.split(sizes), strict=True)
    return [{"input_ids": ids, "labels": marked} for ids, marked in parts]


def test_the_loss_is_the_token_mean_however_examples_are_batched():
    model = load("tiny").model
    tokens, labels = rows()
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1].double()
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).item()
    for sizes in ((6,), (1, 5), (1,) * 6, (4, 2)):
        made = cut(tokens, labels, *sizes)
        assert mean_loss(model, made) == pytest.approx(expected, rel=1e-6)
        assert mean_loss(model, iter(made)) == mean_loss(model, made)
    means = [mean_loss(model, [batch]) for batch in cut(tokens, labels, 1, 5)]
    assert abs(sum(means) / 2 - expected) > 1e-3, "the mean of means is another number"


def test_a_batch_without_targets_adds_nothing():
    model = load("tiny").model
    made = cut(*rows(), 3, 3)
    empty = {**made[0], "labels": torch.full_like(made[0]["labels"], -100)}
    assert mean_loss(model, [empty, *made]) == mean_loss(model, made)
    with pytest.raises(ValueError, match="there is no target: no batch, or every label is -100"):
        mean_loss(model, [empty])
    with pytest.raises(ValueError, match="there is no target"):
        mean_loss(model, [])


def test_it_computes_in_eval_mode_without_gradients_and_restores_every_mode():
    model = load("tiny").model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []
    model.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), any(m.training for m in model.modules())))
    )
    mean_loss(model, cut(*rows(), 6))
    assert seen == [(False, False)]
    assert [module.training for module in model.modules()] == modes


def test_an_encoder_decoder_predicts_every_label():
    model = load("tiny").model
    batch = {"labels": torch.tensor([[4, 5, -100]])}
    assert count_targets(model, batch) == 1
    model.config.is_encoder_decoder = True
    assert count_targets(model, batch) == 2


@pytest.mark.parametrize(
    ("model", "batches", "error", "says"),
    [
        (("model", "tokenizer"), [], TypeError, "model must be an nn.Module, got tuple"),
        (None, {"labels": 1}, TypeError, r"got a single batch: write \[batch\]"),
        (None, 3, TypeError, "batches must be a list or a DataLoader, got 3"),
        (None, [{"input_ids": 1}], ValueError, 'a batch must be a dict .* includes "labels"'),
    ],
)
def test_invalid_arguments_are_errors(model, batches, error, says):
    with pytest.raises(error, match=says):
        mean_loss(model or load("tiny").model, batches)
