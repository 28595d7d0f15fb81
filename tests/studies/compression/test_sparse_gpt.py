"""SparseGPT: where its update is optimal, where it can't be, and what settings may not change."""

from dataclasses import replace

import pytest
import torch

from course_pkg.acceleration.quantization.gptq import GPTQ
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.layerwise import InputStatistics, quantize_layers
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.studies.compression.pruning import (
    SemiStructured,
    Unstructured,
    prune_layers,
    pruned_count,
)
from course_pkg.studies.compression.sparse_gpt import SparseGPT, damped_factor
from tests.acceleration.quantization.test_gptq import damped, layer, objective
from tests.refusals import require_refusals

DOUBLE = torch.float64
DAMPING = 0.01
HALF = Unstructured(0.5, "layer")


def best_for_mask(weight, mask, hessian):
    """The optimal weights on a mask, row by row: least squares with H."""
    best = torch.zeros_like(weight)
    for row, (w, kept) in enumerate(zip(weight, mask, strict=True)):
        if kept.any():
            best[row, kept] = torch.linalg.solve(hessian[kept][:, kept], hessian[kept] @ w)
    return best


def public_mask_and_weight(W, H, sparsity, prune_n=0, prune_m=0, blocksize=128):
    """The public program's algorithm, written again: its masks, its order, its update."""
    H = damped(H, DAMPING)
    U = torch.linalg.cholesky(torch.linalg.inv(H), upper=True)
    W = W.clone()
    removed = torch.zeros_like(W, dtype=torch.bool)
    for start in range(0, W.shape[1], blocksize):
        block = range(start, min(start + blocksize, W.shape[1]))
        if not prune_n:
            cost = W[:, block] ** 2 / U.diagonal()[block] ** 2
            threshold = cost.flatten().sort()[0][int(cost.numel() * sparsity)]
            removed[:, block] = cost <= threshold
        for j in block:
            if prune_n and (j - start) % prune_m == 0:
                cost = W[:, j : j + prune_m] ** 2 / U.diagonal()[j : j + prune_m] ** 2
                removed.scatter_(1, j + cost.topk(prune_n, 1, largest=False)[1], True)
            error = torch.where(removed[:, j], W[:, j], 0) / U[j, j]
            W[:, j:] -= error[:, None] * U[j, j:]
            W[removed[:, j], j] = 0
    return ~removed, W


@pytest.mark.parametrize("pattern", [HALF, Unstructured(0.3, "row"), SemiStructured(2, 4)])
def test_the_errors_explain_the_weights_and_the_objective(pattern):
    W, H, _ = layer()
    found = SparseGPT(pattern, block_size=10).solve(W, H)
    assert torch.allclose(W - found.Q, found.E @ found.U, atol=1e-12)
    assert torch.allclose(2 * objective(W, found.Q, damped(H, DAMPING)), found.E.square().sum(1))
    assert not found.Q[~found.mask].any() and not found.E[found.mask].any()
    identity = torch.eye(24, dtype=DOUBLE)
    assert torch.allclose(found.U.T @ found.U @ damped(H, DAMPING), identity, atol=1e-9)


@pytest.mark.parametrize("removed", [1, 12, 23])
def test_removing_the_first_columns_is_least_squares(removed):
    W, H, _ = layer()
    mask = torch.ones_like(W, dtype=torch.bool)
    mask[:, :removed] = False
    found = SparseGPT(HALF).solve(W, H, mask)
    assert torch.allclose(found.Q, best_for_mask(W, mask, damped(H, DAMPING)), atol=1e-9)


@pytest.mark.parametrize(("blocksize", "sparsity"), [(8, 0.25), (24, 0.5), (128, 0.25)])
def test_the_public_programs_algorithm_gives_the_same_but_for_one_weight_per_block(
    blocksize, sparsity
):
    W, H, _ = layer(rows=8)
    size = 8 * min(blocksize, 24)
    # It removes int(size · s) + 1 weights of a block; asked for one less, it removes what we do.
    fewer = (pruned_count(size, sparsity) - 1) / size + 1e-9
    mask, expected = public_mask_and_weight(W, H, fewer, blocksize=blocksize)
    found = SparseGPT(Unstructured(sparsity, "layer"), block_size=blocksize).solve(W, H)
    assert torch.equal(found.mask, mask)
    assert torch.allclose(found.Q, expected, atol=1e-9)
    extra, _ = public_mask_and_weight(W, H, sparsity, blocksize=blocksize)
    assert (~extra).sum() == 24 * 8 * sparsity + -(-24 // blocksize)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (4, 8)])
def test_n_of_m_is_the_public_programs_with_the_count_of_what_goes(n, m):
    W, H, _ = layer(rows=8)
    mask, expected = public_mask_and_weight(W, H, 0, prune_n=m - n, prune_m=m)
    found = SparseGPT(SemiStructured(n, m)).solve(W, H)
    assert torch.equal(found.mask, mask)
    assert torch.allclose(found.Q, expected, atol=1e-9)


@pytest.mark.parametrize("block_size", [1, 10, 100])
def test_blocks_change_nothing_for_n_of_m_and_for_a_given_mask(block_size):
    W, H, _ = layer()
    for pattern, mask in [(SemiStructured(2, 4), None), (HALF, W > 0)]:
        expected = SparseGPT(pattern, block_size=24).solve(W, H, mask)
        found = SparseGPT(pattern, block_size=block_size).solve(W, H, mask)
        assert torch.equal(found.mask, expected.mask)
        assert torch.allclose(found.Q, expected.Q, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("block_size", "sparsity"), [(5, 0), (5, 0.29), (128, 0.29), (24, 1)])
def test_counts_are_exact(block_size, sparsity):
    W, H, _ = layer()
    whole = SparseGPT(Unstructured(sparsity, "layer"), block_size=block_size).solve(W, H)
    assert (~whole.mask).sum() == pruned_count(W.numel(), sparsity)
    rows = SparseGPT(Unstructured(sparsity, "row"), block_size=block_size).solve(W, H)
    assert (~rows.mask).sum(1).tolist() == [pruned_count(24, sparsity)] * 5
    if sparsity == 0:
        assert torch.equal(whole.Q, W)
    if sparsity == 1:
        assert not whole.Q.any()


def test_columns_whose_inputs_are_always_zero_become_zero():
    W, H, _ = layer()
    H[3] = H[:, 3] = 0
    found = SparseGPT(HALF).solve(W, H)
    assert not found.Q[:, 3].any() and torch.isfinite(found.Q).all()
    _, dead = damped_factor(H, 0.01)
    assert dead.nonzero().tolist() == [[3]]


# With a grid


def test_with_nothing_pruned_a_grid_gives_gptq():
    W, H, _ = layer()
    expected = GPTQ(Grid(3, 8)).solve(W, H)
    found = SparseGPT(Unstructured(0, "row"), grid=Grid(3, 8)).solve(W, H)
    assert torch.equal(found.Q, expected.Q)
    assert torch.equal(found.codes, expected.codes)


@pytest.mark.parametrize("grid", [Grid(4, 8), Grid(3, None, symmetric=True), Grid(2, 4)])
def test_weights_are_on_the_grid_and_the_errors_still_add_up(grid):
    W, H, _ = layer()
    method = SparseGPT(SemiStructured(2, 4), grid=grid)
    found = method.solve(W, H)
    assert not found.Q[~found.mask].any()
    assert torch.allclose(W - found.Q, found.E @ found.U, atol=1e-12)
    width = grid.width(24)
    scale = found.scale.repeat_interleave(width, 1)
    zero = found.zero.repeat_interleave(width, 1)
    assert torch.equal(scale * (found.codes - zero), found.Q)


def test_a_model_is_pruned_and_quantized_in_one_pass(tiny):
    batch = torch.arange(40).view(2, 20)
    quantize_layers(tiny.model, SparseGPT(SemiStructured(2, 4), grid=Grid(4, 32)), [batch])
    layers = [m for m in tiny.model.modules() if isinstance(m, QuantizedLinear)]
    assert len(layers) == 14
    for each in layers:
        stays = each.dequantized_weight().unflatten(1, (-1, 4)) != 0
        assert stays.sum(-1).max() <= 2
        assert each.quantized.describe() == "4 bits, groups of 32"


# Errors


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda W, H: (W, H[:4, :4]), "needs a Hessian"),
        (lambda W, H: (W[:, 0], H), "expected a matrix"),
        (lambda W, H: (W / 0, H), "NaN or infinite"),
        (lambda W, H: (W, 0 * H), "no calibration input"),
        (lambda W, H: (W, -H), "not positive definite"),
        (lambda W, H: (W, H, torch.ones(2, 2, dtype=torch.bool)), "mask of its own shape"),
        of=lambda change: SparseGPT(HALF).solve(*change(*layer(columns=8)[:2])),
    )


def test_settings_are_checked(tiny):
    method = SparseGPT(HALF)
    require_refusals(
        (lambda: replace(method, damping=-1), "ValueError.*damping"),
        (lambda: replace(method, block_size=0), "ValueError.*block_size"),
        (lambda: SparseGPT(0.5), "TypeError.*pattern"),
        (lambda: replace(method, grid=4), "TypeError.*grid"),
        (lambda: method.prune(torch.ones(2, 4), InputStatistics()), "ValueError.*needs statistics"),
        errors=(TypeError, ValueError),
    )
    batch = torch.arange(40).view(2, 20)
    with pytest.raises(ValueError, match="has no grid"):
        quantize_layers(tiny.model, method, [batch])
    assert len(prune_layers(tiny.model, method, [batch])) == 14
