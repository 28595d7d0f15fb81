"""Data parallelism equals one process."""

import itertools
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from course_pkg.acceleration.parallel.collectives import Group, ring_bytes
from course_pkg.acceleration.parallel.data_parallel import (
    DataParallel,
    count_targets,
    gradient_buckets,
    rank_batches,
    seed_rank,
)
from course_pkg.acceleration.parallel.launch import RankError, launch
from tests.acceleration.parallel.alone import (
    CLIP,
    IGNORED,
    LEARNING_RATE,
    WEIGHT_DECAY,
    all_equal,
    assert_same,
    batches,
    loss_sum,
    own_rows,
    small_decoder,
    train,
    train_alone,
    uneven_batches,
)
from tests.tables import each_row

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest

BUCKET = 10_000  # bytes: six buckets


def _train(group, data, algorithm):
    group = Group(algorithm=algorithm)
    decoder = small_decoder(seed=group.rank)  # rank 0's weights replace the others
    parallel = DataParallel(decoder, group, bucket_bytes=BUCKET)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def step(ids, labels):
        ids, labels = own_rows(group, ids, labels)
        loss = loss_sum(decoder(ids), labels) / count_targets(labels, group)
        if len(ids):  # without rows there may be no backward pass
            loss.backward()
        parallel.synchronize()
        gradients = {name: p.grad.clone() for name, p in decoder.named_parameters()}
        norm = nn.utils.clip_grad_norm_(decoder.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return group.all_reduce(loss.detach()[None]).item(), gradients, norm.item()

    run = train(decoder, data, step)
    return run, all_equal(torch.cat([value.flatten() for value in run.parameters.values()]), group)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_five_steps_equal_one_process_and_replicas_stay_bit_equal(ranks):
    data = uneven_batches()
    alone = train_alone(small_decoder(), data)

    def work(group):
        algorithms = ("ring", "torch") if ranks == 2 else ("torch",)
        return [_train(group, data, algorithm) for algorithm in algorithms]

    for run, bit_equal in itertools.chain(*launch(work, ranks, timeout=120)):
        assert_same(run, alone)
        assert bit_equal


def _bytes_and_starts(group):
    decoder = small_decoder()
    parallel = DataParallel(decoder, group, bucket_bytes=BUCKET)
    ids, labels = own_rows(group, *batches()[0])
    seen = {}
    names = {parameter: name for name, parameter in decoder.named_parameters()}

    def record(parameter):
        seen[names[parameter]] = parallel.started

    for parameter in names:
        parameter.register_post_accumulate_grad_hook(record)
    sent = []
    for synchronized in (False, True):
        group.sent_bytes = 0
        if synchronized:
            loss_sum(decoder(ids), labels).backward()
            parallel.synchronize()
        else:
            with parallel.no_sync():
                loss_sum(decoder(ids), labels).backward()
            seen.clear()
        sent.append(group.sent_bytes)
    gradient = sum(p.nbytes for p in decoder.parameters())
    return sent, seen, gradient, len(list(decoder.parameters())), len(parallel.buckets)


def test_bytes_are_those_of_the_formula_and_buckets_start_during_the_backward_pass():
    ranks = 3
    results = launch(_bytes_and_starts, ranks)
    _, seen, gradient, parameters, buckets = results[0]
    assert [sent[0] for sent, *_ in results] == [0] * ranks  # accumulation
    # Summed over ranks, since chunks differ by a number where N doesn't divide a bucket.
    total = sum(sent[1] for sent, *_ in results)
    assert total == ranks * ring_bytes("all_reduce", ranks, gradient + parameters)
    assert buckets > 4
    # The tied embedding has its gradient last; all buckets before its own have started by then.
    assert list(seen)[-1] == "embed_tokens.weight"
    assert seen["embed_tokens.weight"] == buckets
    started = list(seen.values())
    assert started == sorted(started) and 1 < started[len(started) // 2] < buckets - 1


def test_microbatches_without_communication_equal_the_whole_batch():
    data = batches()[:1]
    alone = train_alone(small_decoder(), data)

    def work(group):
        decoder = small_decoder()
        parallel = DataParallel(decoder, group, bucket_bytes=BUCKET)
        ids, labels = own_rows(group, *data[0])
        targets = count_targets(labels, group)
        with parallel.no_sync():
            (loss_sum(decoder(ids[:1]), labels[:1]) / targets).backward()
        (loss_sum(decoder(ids[1:]), labels[1:]) / targets).backward()
        parallel.synchronize()
        return {name: p.grad for name, p in decoder.named_parameters()}

    for gradients in launch(work, 2):
        torch.testing.assert_close(gradients, alone.gradients, atol=1e-5, rtol=0)


def _two_backward_passes(group):
    model = nn.Linear(2, 1)
    DataParallel(model, group)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def test_a_second_backward_pass_before_synchronize_is_refused():
    with pytest.raises(RankError, match=r"a second backward pass began before synchronize\(\)"):
        launch(_two_backward_passes, 2)


def _unused(group):
    heads = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in "abc"})
    parallel = DataParallel(heads, group, bucket_bytes=1)
    x = torch.tensor([1.0, 2.0])
    if group.rank < 2:  # rank 2 takes no part
        heads["ab"[group.rank]](x * (group.rank + 1)).sum().backward()
    parallel.synchronize()
    return {
        name: None if h.weight.grad is None else h.weight.grad[0].tolist()
        for name, h in heads.items()
    }


def test_parameters_that_some_or_all_ranks_do_not_use_have_the_gradient_of_one_process():
    assert launch(_unused, 3) == [{"a": [1.0, 2.0], "b": [2.0, 4.0], "c": None}] * 3


def test_each_row_is_in_one_batch_of_one_rank():
    for rows, size, ranks in itertools.product((1, 7, 12), (1, 4, 5), (1, 2, 3)):
        every = [list(rank_batches(rows, size, rank=r, ranks=ranks)) for r in range(ranks)]
        assert {len(batches) for batches in every} == {-(-rows // size)}
        seen = torch.cat([row for batches in every for row in batches])
        assert sorted(seen.tolist()) == list(range(rows))
        for parts in zip(*every, strict=True):
            lengths = [len(part) for part in parts]
            assert max(lengths) - min(lengths) <= 1


def _dropout(group):
    masks = []
    for seed in (lambda: seed_rank(5, group), lambda: torch.manual_seed(5)):
        seed()
        masks.append(all_equal(nn.functional.dropout(torch.ones(64)), group))
    return masks


def test_dropout_differs_between_ranks_that_are_seeded_by_rank():
    assert launch(_dropout, 2) == [[False, True]] * 2


def test_a_bucket_has_one_dtype():
    weights = [nn.Parameter(torch.zeros(2, dtype=d)) for d in (torch.float32, torch.bfloat16)]
    assert [len(bucket) for bucket in gradient_buckets(weights * 2, 100)] == [1, 1, 1, 1]


@each_row(
    ("call", "message"),
    [
        (
            lambda group: count_targets(torch.tensor([IGNORED]), group),
            "no rank has a target: every label is -100",
        ),
        (lambda group: DataParallel(nn.ReLU(), group), "no parameter requires a gradient"),
        (lambda group: DataParallel(nn.Linear(1, 1), group, 0), "bucket_bytes must be an integer"),
        (lambda group: rank_batches(4, 2, rank=2, ranks=2), "rank must be below ranks, got rank 2"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(RankError, match=message):
        launch(call, 1)
