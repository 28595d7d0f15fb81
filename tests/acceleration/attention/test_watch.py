"""The steps that `watch` receives tell what the algorithm does, in its order."""

import pytest
import torch

from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.masks import visible

from .examples import tensors


def watched(*inputs, **options):
    steps = []
    result = flash_attention(*inputs, watch=steps.append, return_lse=True, **options)
    return steps, result


def test_an_online_softmax_by_hand():
    # Scores ln 1, ln 2, ln 4 in tiles of one key; values 1, 1, 8.
    query = torch.ones(1, 1, 1, 1)
    key = torch.tensor([1.0, 2.0, 4.0]).log().view(1, 1, 3, 1)
    value = torch.tensor([1.0, 1.0, 8.0]).view(1, 1, 3, 1)
    steps, (output, lse) = watched(query, key, value, block_keys=1)
    tiles = [step for step in steps if step.kind == "tile"]
    numbers = [
        (s.maximum.exp().item(), s.rescale.item(), s.total.item(), s.output.item()) for s in tiles
    ]
    # exp(maximum), rescale, total, output: the total is Σ 2^j / exp(maximum).
    assert numbers == [
        pytest.approx((1, 0, 1, 1)),
        pytest.approx((2, 1 / 2, 1 / 2 + 1, 1 / 2 + 1)),
        pytest.approx((4, 1 / 2, 3 / 4 + 1, 3 / 4 + 8)),
    ]
    assert output.item() == pytest.approx((1 + 2 + 4 * 8) / 7)
    assert lse.exp().item() == pytest.approx(7)


def test_steps_come_in_the_order_of_the_loops_and_cover_the_matrix():
    inputs = tensors(1, 2, 1, 5, 6)
    steps, (output, _) = watched(*inputs, causal=True, block_queries=2, block_keys=2)
    kinds = [f"{s.kind} {s.queries.start} {s.keys.start}" for s in steps]
    # Query i sees keys up to i + 1: rows 0–1 see keys 0–2, rows 2–3 keys 0–4, row 4 all.
    assert ", ".join(kinds) == (
        "load 0 0, tile 0 0, tile 0 2, skip 0 4, store 0 0, "
        "load 2 0, tile 2 0, tile 2 2, tile 2 4, store 2 0, "
        "load 4 0, tile 4 0, tile 4 2, tile 4 4, store 4 0"
    )
    stored = torch.cat([s.output for s in steps if s.kind == "store"], 2)
    assert torch.equal(stored, output)


def test_in_the_backward_pass_keys_are_the_outer_loop():
    inputs = tensors(1, 2, 1, 4, 4)
    steps, (output, _) = watched(*inputs, causal=True, block_queries=2, block_keys=2)
    before = len(steps)
    output.sum().backward()
    kinds = [f"{s.kind} {s.queries.start}:{s.queries.stop} {s.keys.start}" for s in steps[before:]]
    # The first loads the output and its gradient, for delta.
    assert ", ".join(kinds) == (
        "load 0:4 0, load 0:0 0, tile 0:2 0, tile 2:4 0, store 0:4 0, "
        "load 0:0 2, skip 0:2 2, tile 2:4 2, store 0:4 2"
    )
    assert {s.phase for s in steps[before:]} == {"backward"}


def test_a_received_step_never_changes_afterwards():
    kept = []
    copies = []

    def watch(step):
        kept.append(step)
        copies.append(None if step.output is None else step.output.clone())

    flash_attention(*tensors(1, 2, 2, 6, 6), block_queries=3, block_keys=2, watch=watch)
    for step, copy in zip(kept, copies, strict=True):
        assert copy is None or torch.equal(step.output, copy)


@pytest.mark.parametrize("window", [None, 3])
def test_exactly_the_tiles_that_nobody_sees_are_skipped(window):
    key_mask = torch.ones(2, 12, dtype=torch.bool)
    key_mask[:, 8:] = False  # the last two blocks are padding in both sequences
    key_mask[1, 4:] = False
    options = {"causal": True, "window": window, "key_mask": key_mask}
    steps, _ = watched(*tensors(2, 2, 1, 10, 12), block_queries=3, block_keys=2, **options)
    seen = visible(10, 12, **options)
    tiles = [step for step in steps if step.kind in ("tile", "skip")]
    assert len(tiles) == 4 * 6
    for s in tiles:
        part = seen[:, :, s.queries.start : s.queries.stop, s.keys.start : s.keys.stop]
        assert (s.kind == "tile") == bool(part.any())
