"""Collectives and a loss that are divided among ranks equal the whole ones."""

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_pkg.acceleration.parallel.autograd_collectives import (
    all_gather,
    copy_to_group,
    gather_from_group,
    reduce_from_group,
    reduce_scatter,
)
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.tensor_parallel import (
    ColumnParallelLinear,
)
from course_pkg.acceleration.parallel.vocab_parallel import (
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from tests.tables import each_row

SECOND_OF_TWO = SimpleNamespace(rank=1, size=2)  # enough of a Group for what sends nothing


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _conjugates(group):
    """Forward and backward of each collective, on numbers that differ between ranks."""
    own = _random(2, 6, seed=group.rank)
    calls = {
        "copy": lambda x: copy_to_group(x, group),
        "reduce": lambda x: reduce_from_group(x, group),
        "gather": lambda x: gather_from_group(x, group),
        "all_gather": lambda x: all_gather(x, group, 1),
        "reduce_scatter": lambda x: reduce_scatter(x, group, 1),
    }
    results = {}
    for name, call in calls.items():
        x = own.clone().requires_grad_()
        y = call(x)
        weights = _random(*y.shape, seed=10 + group.rank)
        y.backward(weights)
        results[name] = y.detach(), x.grad, weights
    return own, results


def test_each_collective_and_its_gradient():
    results = launch(_conjugates, 3)
    owns = [own for own, _ in results]
    total = sum(owns)
    side_by_side = torch.cat(owns, 1)
    for rank, (own, by_name) in enumerate(results):

        def weights(name, rank=None):
            if rank is not None:
                return results[rank][1][name][2]
            return [result[name][2] for _, result in results]

        mine = slice(2 * rank, 2 * rank + 2)
        wide = slice(6 * rank, 6 * rank + 6)
        expected = {
            "copy": (own, sum(weights("copy"))),
            "reduce": (total, weights("reduce", rank)),
            "gather": (side_by_side, weights("gather", rank)[:, wide]),
            "all_gather": (side_by_side, sum(weights("all_gather"))[:, wide]),
            "reduce_scatter": (total[:, mine], torch.cat(weights("reduce_scatter"), 1)),
        }
        for name, pair in expected.items():
            torch.testing.assert_close(by_name[name][:2], pair, msg=name)


OPTIONS = [
    dict(zip(("reduction", "label_smoothing", "ignore_index"), values, strict=True))
    for values in itertools.product(("mean", "sum", "none"), (0.0, 0.1), (-100, 3))
]


def _parts(group, logits):
    """This rank's columns, padded with a number that must not matter."""
    columns = -(-logits.shape[-1] // group.size)
    padded = F.pad(logits, (0, columns * group.size - logits.shape[-1]), value=1e4)
    return padded[..., group.rank * columns :][..., :columns].clone().requires_grad_()


def _losses(group, logits, labels):
    vocab = logits.shape[-1]
    results = []
    for options in OPTIONS:
        own = _parts(group, logits)
        loss = vocab_parallel_cross_entropy(own, labels, group, vocab, **options)
        (loss * torch.arange(1, 1 + loss.numel()).view(loss.shape)).sum().backward()
        results.append((loss.detach(), group.all_gather(own.grad.movedim(-1, 0)).movedim(0, -1)))
    return results


@pytest.mark.parametrize(("ranks", "vocab", "shift"), [(2, 7, 1e3), (4, 5, -1e3)])
def test_the_loss_and_its_gradient_equal_torchs(ranks, vocab, shift):
    logits = 3 * _random(2, 6, vocab) + shift
    labels = torch.randint(vocab, (2, 6), generator=torch.Generator().manual_seed(1))
    labels[0, 2:4] = 3
    for results in launch(_losses, ranks, logits, labels):
        for options, (loss, gradient) in zip(OPTIONS, results, strict=True):
            x = logits.clone().requires_grad_()
            expected = F.cross_entropy(x.flatten(0, 1), labels.flatten(), **options)
            expected = expected.view(labels.shape) if expected.dim() else expected
            weights = torch.arange(1, 1 + expected.numel()).view(expected.shape)
            (expected * weights).sum().backward()
            torch.testing.assert_close(loss, expected.detach(), msg=str(options))
            torch.testing.assert_close(gradient[..., :vocab], x.grad, msg=str(options))
            assert not gradient[..., vocab:].any()


@each_row(
    ("labels", "columns", "message"),
    [
        ([7], 4, "a label is 7: expected 0 to 6, or -100 to ignore it"),
        ([-1], 4, "a label is -1"),
        ([1], 7, r"logits \(1, 7\), labels \(1,\): expected labels .* logits \(…, 4\), one of 2"),
    ],
)
def test_labels_and_logits_that_do_not_fit_are_refused(labels, columns, message):
    logits = torch.ones(1, columns)
    with pytest.raises(ValueError, match=message):
        vocab_parallel_cross_entropy(logits, torch.tensor(labels), SECOND_OF_TWO, 7)


def test_an_id_that_is_only_padding_is_refused():
    part = VocabParallelEmbedding(nn.Embedding(7, 4), SECOND_OF_TWO)
    with pytest.raises(IndexError, match="ids are from 7 to 7: expected 0 to 6"):
        part(torch.tensor([[7]]))


def test_features_and_dimensions_that_ranks_cannot_share_are_refused():
    with pytest.raises(ValueError, match=r"7 features of a weight of shape .* among 2 ranks"):
        ColumnParallelLinear(nn.Linear(4, 7), SECOND_OF_TWO)
    with pytest.raises(ValueError, match=r"dimension 1 of a tensor of shape \(2, 5\) can't"):
        reduce_scatter(torch.ones(2, 5), SECOND_OF_TWO, 1)
