"""Rings: equal to torch's collectives, with the bytes that the formulas state."""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist

from course_pkg.acceleration.parallel.collectives import Group, ring_bytes, ring_seconds
from course_pkg.acceleration.parallel.launch import launch
from tests.refusals import require_refusals
from tests.tables import each_row

SHAPES = [((4, 3), torch.float32), ((2, 5), torch.int64), ((1, 1), torch.bfloat16)]


def _all_pairs(group):
    return [_both(group, shape, dtype) for shape, dtype in SHAPES]


def _both(group, shape, dtype):
    """Each collective by a ring and by torch, on random numbers that differ between ranks."""
    torchs = Group(algorithm="torch")
    generator = torch.Generator().manual_seed(group.rank)
    x = torch.randint(-99, 99, shape, generator=generator).to(dtype)
    rows = x.repeat(group.size, *[1] * (x.dim() - 1))
    strided = x.T.contiguous().T  # not contiguous in memory
    pairs = {
        "all_reduce": [g.all_reduce(strided.clone()) for g in (group, torchs)],
        "largest": [g.all_reduce(strided.clone(), "max") for g in (group, torchs)],
        "reduce_scatter": [g.reduce_scatter(rows) for g in (group, torchs)],
        "all_gather": [g.all_gather(strided) for g in (group, torchs)],
    }
    for source in range(group.size):
        both = [g.broadcast(strided.clone(), source) for g in (group, torchs)]
        pairs[f"broadcast from {source}"] = both
    return pairs


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_rings_equal_torchs_collectives(ranks):
    for pairs in itertools.chain(*launch(_all_pairs, ranks)):
        for name, (ours, torchs) in pairs.items():
            assert ours.shape == torchs.shape, name
            torch.testing.assert_close(ours, torchs, rtol=0, atol=0, msg=name)


def _counted(group, numbers):
    counts = {}
    whole = torch.ones(numbers)
    for name, call in {
        "all_reduce": lambda: group.all_reduce(whole.clone()),
        "reduce_scatter": lambda: group.reduce_scatter(whole),
        "all_gather": lambda: group.all_gather(whole[: numbers // group.size]),
        "broadcast": lambda: group.broadcast(whole),
    }.items():
        group.sent_bytes = 0
        group.messages = 0
        call()
        counts[name] = (group.sent_bytes, group.messages)
    return counts


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_bytes_that_are_sent_are_those_of_the_formulas(ranks):
    results = launch(_counted, ranks, 240)
    for name in ("all_reduce", "reduce_scatter", "all_gather"):
        for counts in results:
            assert counts[name][0] == ring_bytes(name, ranks, 960)
    assert [counts["all_reduce"][1] for counts in results] == [2 * (ranks - 1)] * ranks
    sent = [counts["broadcast"][0] for counts in results]
    assert sent == [ring_bytes("broadcast", ranks, 960)] * (ranks - 1) + [0]


def _into_and_started(group):
    results = {}
    for algorithm in ("ring", "torch"):
        g = Group(algorithm=algorithm)
        whole = torch.full((2 * g.size, 3), -1.0)
        mine = whole[2 * g.rank : 2 * g.rank + 2].fill_(g.rank)
        results[algorithm] = g.all_gather(mine, into=whole) is whole, whole
        total = torch.ones(5)
        wait = g.start_all_reduce(total)
        wait()
        results[algorithm] += (total,)
    return results


def test_a_gather_fills_the_given_tensor_and_a_started_all_reduce_ends_with_the_sum():
    expected = torch.tensor([0.0, 0, 1, 1, 2, 2])[:, None].expand(6, 3)
    for results in launch(_into_and_started, 3):
        for same, whole, total in results.values():
            assert same
            torch.testing.assert_close(whole, expected)
            torch.testing.assert_close(total, torch.full((5,), 3.0))


def _subgroup(group):
    pairs = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    pair = Group(pairs[0])
    return pair.rank, pair.all_reduce(torch.tensor([float(group.rank)])).item()


def test_a_group_of_some_ranks_numbers_them_anew():
    assert launch(_subgroup, 4) == [(0, 2.0), (0, 4.0), (1, 2.0), (1, 4.0)]


def test_a_copy_of_a_model_talks_to_the_same_ranks():
    assert launch(lambda group: copy.deepcopy([group])[0] is group, 2) == [True, True]


def test_latency_grows_with_the_ranks_and_bytes_hardly():
    def seconds(ranks, latency):
        return ring_seconds("all_reduce", ranks, 10**9, latency=latency, bandwidth=10**9)

    assert seconds(2, 0) == 1.0
    assert seconds(1000, 0) == pytest.approx(1.998)
    assert seconds(1000, 1) - seconds(1000, 0) == pytest.approx(1998)


@each_row("bandwidth", [0, -1, float("inf")])
def test_a_bandwidth_must_be_positive_and_finite(bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be above 0 and finite"):
        ring_seconds("broadcast", 2, 1, latency=0, bandwidth=bandwidth)


def _misused(group):
    x = torch.ones(2)
    itself = f"rank {group.rank} can't send to itself, or receive from itself"
    require_refusals(
        (group.send, x, 2, "rank must be below the number of ranks, 2, got 2"),
        (group.receive, x, -1, "rank must be an integer of at least 0, got -1"),
        (group.send, x, group.rank, itself),
        (group.exchange, x, x.clone(), group.rank, group.rank, itself),
        (group.broadcast, x, 2, "rank must be below the number of ranks, 2, got 2"),
        (
            group.all_gather,
            torch.tensor(1.0),
            r"shape \(\) has no rows to gather; give",
        ),
        (
            group.reduce_scatter,
            torch.ones(3, 2),
            r"\(3, 2\) can't be divided among 2 ranks by",
        ),
        (group.all_reduce, x, "product", "operation must be one of sum, max, got 'product'"),
        (Group, None, "tree", "algorithm must be one of ring, torch, got 'tree'"),
    )


def test_what_no_rank_can_do_is_refused_before_anything_is_sent():
    launch(_misused, 2)
