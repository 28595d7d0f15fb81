"""GPTQ's identities, its optimality where it has one, and what its settings may not change."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.quantization.gptq import (
    GPTQ,
    column_blocks,
    fit_groups,
    inverse_factor,
    quantize_columns,
)
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from tests.refusals import require_refusals
from tests.tolerance import rounding

DOUBLE = torch.float64


def layer(rows=5, columns=24, tokens=60, seed=0, mixing=1.0):
    """A weight and the Hessian of inputs whose channels are correlated and of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(rows, columns, generator=generator, dtype=DOUBLE)
    mix = torch.randn(columns, columns, generator=generator, dtype=DOUBLE) * mixing
    sizes = torch.rand(columns, generator=generator, dtype=DOUBLE) * 3 + 0.1
    X = (mix + torch.eye(columns, dtype=DOUBLE) * 2) @ torch.randn(
        columns, tokens, generator=generator, dtype=DOUBLE
    )
    X = X * sizes[:, None]
    return W, 2 * X @ X.T, X


def objective(weight, quantized, hessian):
    """½ tr(Δ H Δᵀ) = ‖W X − Ŵ X‖², of each row."""
    D = weight - quantized
    return ((D @ hessian) * D).sum(1) / 2


def damped(hessian, damping):
    return hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=DOUBLE)


SETTINGS = [
    {},
    {"act_order": True},
    {"act_order": True, "static_groups": True},
    {"static_groups": True, "damping": 0.3},
]


@pytest.mark.parametrize(
    ("grid", "options"),
    list(zip([Grid(4, 8), Grid(3, None), Grid(2, 12, True), Grid(4, 8)], SETTINGS, strict=True)),
)
def test_the_errors_explain_the_weights_and_the_objective(grid, options):
    W, H, X = layer()
    method = GPTQ(grid, **options)
    solution = method.solve(W, H)
    order = solution.permutation
    Hd = damped(H, method.damping)[order][:, order]
    D = W[:, order] - solution.Q
    scale = W.abs().max()
    assert (D - solution.E @ solution.U).abs().max() < 1e-12 * scale
    # the factor: tr(Δ H Δᵀ) = Σ E², with no factor of 2 left over, if U is that of this same H
    total = torch.trace(D @ Hd @ D.T)
    assert abs(total - solution.E.square().sum()) < 1e-12 * total
    assert torch.allclose(solution.U.T @ solution.U @ Hd, torch.eye(24, dtype=DOUBLE), atol=1e-9)
    # and ‖Δ X‖² is half of it, without the damping
    error = (D @ X[order]).square().sum()
    assert torch.allclose(objective(W[:, order], solution.Q, H[order][:, order]).sum(), error)


@pytest.mark.parametrize(
    ("width", "options", "block_sizes"),
    [
        (4, SETTINGS[0], (2, 8, 100)),
        (6, SETTINGS[1], (5, 12)),
        (12, SETTINGS[2], (8, 17)),
        (None, SETTINGS[0], (5, 100)),
    ],
)
def test_blocks_change_nothing(width, options, block_sizes):
    W, H, _ = layer()
    method = GPTQ(Grid(3, width), block_size=1, **options)
    expected = method.solve(W, H)
    for block_size in block_sizes:
        solution = replace(method, block_size=block_size).solve(W, H)
        assert torch.equal(solution.codes, expected.codes), block_size
        assert torch.allclose(solution.E, expected.E, rtol=1e-9, atol=1e-11), block_size
        assert torch.equal(solution.scale, expected.scale), block_size


@given(columns=st.integers(1, 12), groups=st.integers(1, 6), size=st.integers(1, 40))
def test_blocks_cover_all_columns_once_and_split_no_two_groups(columns, groups, size):
    width = columns
    blocks = list(column_blocks(width * groups, width, size))
    assert [j for start, end in blocks for j in range(start, end)] == list(range(width * groups))
    for start, end in blocks:
        assert 0 < end - start <= size
        whole = start % width == 0 and end % width == 0
        assert whole or start // width == (end - 1) // width


@pytest.mark.parametrize(("width", "act_order"), [(4, False), (12, True)])
def test_scales_are_those_of_the_updated_weights(width, act_order):
    """Not those of the weights before the errors of the same block, as in the authors' program."""
    W, H, _ = layer()
    grid = Grid(3, width)
    solution = GPTQ(grid, block_size=128, act_order=act_order).solve(W, H)
    W = W[:, solution.permutation]
    for group in range(24 // width):
        j = group * width
        updated = W[:, j : j + width] - solution.E[:, :j] @ solution.U[:j, j : j + width]
        scale, zero = grid.fit(updated)
        assert torch.allclose(solution.scale[:, group : group + 1], scale, rtol=1e-3)
        assert torch.equal(solution.zero[:, group : group + 1], zero)
    stale, _ = fit_groups(W, grid)
    assert not torch.allclose(solution.scale[:, 1:], stale[:, 1:], rtol=1e-2)


def test_static_scales_are_those_of_the_original_weights():
    W, H, _ = layer()
    grid = Grid(3, 6)
    solution = GPTQ(grid, static_groups=True, act_order=True).solve(W, H)
    scale, zero = fit_groups(W, grid)
    assert torch.equal(solution.scale, scale)
    assert torch.equal(solution.zero, zero)


@pytest.mark.parametrize(
    ("factor", "options"), list(zip([4.0, 2.0**-20, 3.7, 1e6], SETTINGS, strict=True))
)
def test_the_scale_of_the_hessian_does_not_matter(factor, options):
    W, H, _ = layer()
    H[3] = 0  # a dead column, whose diagonal must not become a number of another scale
    H[:, 3] = 0
    method = GPTQ(Grid(3, 8), **options)
    first = method.quantize(W, H)
    second = method.quantize(W, factor * H)
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(first.scale, second.scale)


@pytest.mark.parametrize(
    ("grid", "act_order"),
    [(Grid(3, 8), True), (Grid(4, None, symmetric=True), True), (Grid(2, 4), False)],
)
def test_uncorrelated_inputs_mean_rounding_to_nearest(grid, act_order):
    """With a diagonal H nothing is passed on, and rounding is the best of all choices."""
    W, H, _ = layer()
    method = GPTQ(grid, act_order=act_order, static_groups=True)
    quantized = method.quantize(W, H.diagonal().diag())
    expected = round_to_nearest(W, grid)
    assert quantized.order is None
    assert torch.equal(quantized.codes, expected.codes)
    assert torch.equal(quantized.scale, expected.scale)
    assert torch.equal(quantized.zero, expected.zero)


def test_a_group_of_one_sign_has_a_grid_that_begins_at_zero():
    for sign in (1, -1):
        W = sign * (torch.rand(3, 16, generator=torch.Generator().manual_seed(0)) + 1)
        rounded = round_to_nearest(W, Grid(4, 8))
        steps = rounded.scale.float().repeat_interleave(8, 1)
        assert ((rounded.dequantize() - W).abs() <= 0.51 * steps).all()


def nearest_plane(basis, target):
    """Babai's nearest plane: integers z such that basis @ z is close to the target.

    basis: (dimension, n), a lattice vector in each column. As in textbooks, Gram and Schmidt go
    from the first vector to the last, and the integers are chosen from the last to the first.
    """
    orthogonal = []
    for vector in basis.T:
        rest = vector.clone()
        for earlier in orthogonal:
            rest -= (vector @ earlier) / (earlier @ earlier) * earlier
        orthogonal.append(rest)
    z = torch.zeros(len(orthogonal), dtype=DOUBLE)
    for k in reversed(range(len(orthogonal))):
        z[k] = ((target @ orthogonal[k]) / (orthogonal[k] @ orthogonal[k])).round()
        target = target - z[k] * basis[:, k]
    return z


@pytest.mark.parametrize("seed", range(2))
def test_it_is_babais_nearest_plane_on_the_reversed_columns(seed):
    """Chen et al. 2025, "The Geometry of LLM Quantization", as long as no code is clamped."""
    W, H, X = layer(rows=3, columns=9, seed=seed)
    scale = torch.full((3, 1), 0.25, dtype=DOUBLE)
    zero = torch.full((3, 1), 128.0, dtype=DOUBLE)
    groups = torch.zeros(9, dtype=torch.long)
    before = W.clone()
    solution = quantize_columns(W, inverse_factor(H), Grid(8, 9), 4, groups, (scale, zero))
    assert torch.equal(W, before)
    assert solution.codes.min() > 0
    assert solution.codes.max() < 255
    bound = 0.125 / solution.U.diagonal()  # half a step: the guarantee that comes with it
    assert (solution.E.abs() <= bound * (1 + 1e-12)).all()
    basis = (0.25 * X.T).flip(1)  # (tokens, columns), the columns of the weight in reverse
    for row in range(3):
        z = nearest_plane(basis, X.T @ W[row]).flip(0)
        assert torch.equal(solution.codes[row] - 128, z)


@pytest.mark.parametrize(("width", "static_groups"), [(8, False), (8, True), (None, False)])
def test_act_order_is_gptq_on_sorted_columns_put_back(width, static_groups):
    W, H, _ = layer()
    grid = Grid(4, width)
    order = H.diagonal().argsort(descending=True)
    assert not torch.equal(order, torch.arange(24))
    quantized = GPTQ(grid, act_order=True, static_groups=static_groups).quantize(W, H)
    if static_groups:
        U = inverse_factor(damped(H, 0.01)[order][:, order])
        solution = quantize_columns(
            W[:, order], U, grid, 3, order // grid.width(24), fit_groups(W, grid)
        )
        sorted_columns = solution.Q
    else:
        sorted_columns = GPTQ(grid).solve(W[:, order], H[order][:, order]).Q
    assert torch.allclose(
        quantized.dequantize()[:, order], sorted_columns, rtol=rounding(4), atol=0
    )
    neighbors = static_groups or width is None
    assert (quantized.order is None) == neighbors
    if not neighbors:
        assert quantized.order[order].tolist() == [j // width for j in range(24)]


def test_dead_columns_become_zero_and_do_not_disturb_the_others():
    W, H, _ = layer()
    alive = [j for j in range(24) if j not in (2, 9)]
    H[[2, 9]] = 0
    H[:, [2, 9]] = 0
    W[:, 2] = 100.0  # would widen the range
    quantized = GPTQ(Grid(4, None)).quantize(W, H).dequantize()
    assert (quantized[:, [2, 9]] == 0).all()
    expected = GPTQ(Grid(4, None), damping=0.01).quantize(W[:, alive], H[alive][:, alive])
    assert torch.equal(quantized[:, alive], expected.dequantize())
    assert W[0, 2] == 100  # the caller's weight stays


def test_the_arguments_stay_as_they_are():
    W, H, _ = layer()
    before = W.clone(), H.clone()
    GPTQ(Grid(4, 8), act_order=True).quantize(W, H)
    assert torch.equal(W, before[0])
    assert torch.equal(H, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stored_weight_is_what_was_computed(dtype):
    W, H, _ = layer()
    W = W.to(dtype)
    method = GPTQ(Grid(3, 8), act_order=True)
    stored = method.quantize(W, H.float())
    solution = method.solve(W, H.float())
    assert stored.dtype == dtype
    assert solution.Q.dtype == torch.float32
    assert torch.equal(stored.dequantize(torch.float32)[:, solution.permutation], solution.Q)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 4, 8]), st.booleans(), st.booleans())
def test_any_layer_gets_codes_in_range_and_finite_numbers(seed, bits, symmetric, act_order):
    W, H, _ = layer(rows=3, columns=16, tokens=4, seed=seed)  # fewer tokens than columns
    quantized = GPTQ(Grid(bits, 4, symmetric), act_order=act_order).quantize(W, H)
    assert quantized.shape == W.shape
    assert torch.isfinite(quantized.dequantize()).all()


def test_bad_input_is_one_clear_error():
    W, H, _ = layer(columns=8)
    method = GPTQ(Grid(4, 4))
    require_refusals(
        (lambda W, H: (W, H[:4, :4]), "weight has 8 columns, so the Hessian must be"),
        (lambda W, H: (W[:, 0], H), "expected a matrix of floats"),
        (lambda W, H: (W / 0, H), "NaN or infinite"),
        (lambda W, H: (W * 1e7, H), "needs the scale .*, which is too large for torch.float16"),
        (lambda W, H: (W, H * float("nan")), "NaN or infinite"),
        (lambda W, H: (W, H.triu()), "not symmetric"),
        (lambda W, H: (W, -H), "diagonal must be 0 or above"),
        (lambda W, H: (W, 0 * H), "no calibration input"),
        (lambda W, H: (W, torch.ones_like(H) - 100 * (1 - torch.eye(8))), "positive definite"),
        (lambda W, H: (W[:, :6], H[:6, :6]), "groups of 4 do not divide 6 columns"),
        of=lambda change: method.quantize(*change(W, H)),
    )


def test_settings_are_checked():
    require_refusals(
        ({"damping": -0.1}, "ValueError: damping"),
        ({"damping": "1"}, "TypeError: damping"),
        ({"block_size": 0}, "ValueError: block_size"),
        ({"act_order": 1}, "TypeError: act_order"),
        ({"static_groups": None}, "TypeError: static_groups"),
        ({"grid": 4}, "TypeError: grid"),
        of=lambda options: GPTQ(**{"grid": Grid(4, 4)} | options),
        errors=(TypeError, ValueError),
    )
