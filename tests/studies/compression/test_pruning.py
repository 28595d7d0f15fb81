"""Exact counts, which weights go, and that the public programs' known faults are not here."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.acceleration.quantization.layerwise import InputStatistics, calibrate
from course_pkg.lm.decoder import Decoder
from course_pkg.studies.compression.pruning import (
    Magnitude,
    SemiStructured,
    Unstructured,
    Wanda,
    input_norms,
    prune_layers,
    pruned_count,
    wanda_scores,
)
from course_pkg.studies.compression.sparse_gpt import SparseGPT
from tests.acceleration.quantization.examples import normal
from tests.refusals import require_refusals


def statistics_of(x):
    found = InputStatistics()
    found.add(x)
    return found


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(256, (3, 2, 20), generator=generator))


# Counts


def test_a_sparsity_is_an_exact_number_of_weights():
    for size, sparsity, count in (
        (100, 0.29, 29),  # int(100 * 0.29) is 28
        (50, 0.07, 3),  # 3.5: a half is rounded down, though 50 * 0.07 is 3.5000000000000004
        (10, 0.35, 3),
        (3, 1 / 3, 1),
        (3, 2 / 3, 2),
        (7, 0, 0),
        (7, 1, 7),
        (7, 1.0, 7),
        (0, 0.5, 0),
        (7, 1e-5, 0),
    ):
        assert pruned_count(size, sparsity) == count


@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 20), st.sampled_from(["layer", "row"]))
def test_counts_hold_whatever_the_ties(rows, columns, twentieths, per):
    scores = normal(rows, columns).mul(2).round().abs()  # few values: many ties
    sparsity = twentieths / 20
    removed = ~Unstructured(sparsity, per).mask(scores)
    if per == "row":
        assert removed.sum(1).tolist() == [pruned_count(columns, sparsity)] * rows
    else:
        assert removed.sum() == pruned_count(rows * columns, sparsity)
    kept = scores[~removed]
    if removed.any() and kept.numel() and per == "layer":
        assert scores[removed].max() <= kept.min()


def test_of_equal_scores_the_first_stays():
    ties = torch.ones(2, 4)
    assert Unstructured(0.5, "layer").mask(ties).tolist() == [[True] * 4, [False] * 4]
    assert Unstructured(0.5, "row").mask(ties).tolist() == [[True, True, False, False]] * 2
    assert SemiStructured(1, 2).mask(ties).tolist() == [[True, False, True, False]] * 2


@pytest.mark.parametrize("per", ["layer", "row"])
@pytest.mark.parametrize("sparsity", [0.07, 0.5, 1])
def test_counts_of_blocks_of_columns_add_up_to_that_of_the_whole(per, sparsity):
    scores = normal(3, 37)
    pattern = Unstructured(sparsity, per)
    parts = [pattern.mask(scores[:, j : j + 5], before=j) for j in range(0, 37, 5)]
    found = torch.cat(parts, 1)
    if per == "row":
        assert torch.equal(found.sum(1), pattern.mask(scores).sum(1))
    else:
        assert found.sum() == pattern.mask(scores).sum()


def test_n_of_m_stay_in_every_group():
    scores = normal(6, 16).abs()
    for n, m in [(1, 4), (2, 4), (3, 4), (4, 8), (1, 2), (4, 4)]:
        mask = SemiStructured(n, m).mask(scores)
        assert (mask.unflatten(1, (-1, m)).sum(-1) == n).all(), (n, m)


def test_groups_are_neighbors_along_the_input_dimension():
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 7.0, 6.0]])
    expected = torch.tensor([[0.0, 0.0, 3.0, 4.0], [9.0, 8.0, 0.0, 0.0]])
    assert torch.equal(Magnitude(SemiStructured(2, 4)).prune(weight).weight, expected)


# Scores


def test_a_wanda_score_is_the_change_of_the_outputs_if_the_weight_alone_goes():
    x = normal(50, 6)
    W = normal(4, 6, seed=1)
    scores = wanda_scores(W, input_norms(statistics_of(x)))
    for i, j in [(0, 0), (3, 5), (2, 1)]:
        without = W.clone()
        without[i, j] = 0
        change = torch.linalg.norm(x @ W.T - x @ without.T)
        assert torch.allclose(scores[i, j], change, rtol=1e-5)


def test_wanda_keeps_small_weights_of_large_inputs():
    # by hand: scores 1 · 10, 2 · 1, 3 · 1, 0.5 · 10 in a row of which two stay
    x = torch.diag(torch.tensor([10.0, 1.0, 1.0, 10.0]))
    W = torch.tensor([[1.0, 2.0, 3.0, -0.5]])
    found = Wanda(Unstructured(0.5, "row")).prune(W, statistics_of(x))
    assert found.weight.tolist() == [[1.0, 0.0, 0.0, -0.5]]
    assert Magnitude(Unstructured(0.5, "row")).prune(W).weight.tolist() == [[0.0, 2.0, 3.0, 0.0]]


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_inputs_and_weights_does_not_matter(scale):
    x = normal(50, 16)
    W = normal(4, 16, seed=1)
    for method in (Wanda(Unstructured(0.5, "row")), SparseGPT(Unstructured(0.5, "row"))):
        expected = method.prune(W, statistics_of(x)).mask
        assert torch.equal(method.prune(W * scale, statistics_of(x)).mask, expected)
        assert torch.equal(method.prune(W, statistics_of(x * scale)).mask, expected)


# Whole models


@pytest.mark.parametrize(
    "method",
    [
        Magnitude(Unstructured(0.29, "layer")),
        Wanda(Unstructured(0.5, "row")),
        Wanda(SemiStructured(1, 4)),
        SparseGPT(SemiStructured(2, 4)),
        SparseGPT(Unstructured(0.3, "layer"), block_size=48),
    ],
)
def test_a_models_layers_get_exact_counts_and_the_rest_stays(tiny, batches, method):
    model = tiny.model
    before = copy.deepcopy(model.state_dict())
    masks = prune_layers(model, method, batches)
    assert len(masks) == 14
    for name, mask in masks.items():
        weight = model.get_submodule(name).weight
        expected = method.pattern.mask(torch.ones_like(weight)).sum()
        assert mask.sum() == expected
        assert not weight[~mask].any()
        assert (weight[mask] != 0).all()
        if not isinstance(method, SparseGPT):
            assert torch.equal(weight[mask], before[f"{name}.weight"][mask])
    for name, tensor in model.state_dict().items():
        if name.removesuffix(".weight") not in masks:
            assert torch.equal(tensor, before[name])


def test_a_block_is_pruned_with_the_inputs_that_pruned_blocks_make(tiny, batches):
    model = tiny.model
    expected = copy.deepcopy(tiny.model)
    method = Wanda(Unstructured(0.5, "row"))
    prune_layers(model, method, batches)
    for index in range(2):  # by hand: statistics of the model as it is, then prune one block
        statistics = calibrate(expected, batches)
        for name, found in statistics.items():
            if name.startswith(f"model.layers.{index}."):
                weight = expected.get_submodule(name).weight
                weight.data = method.prune(weight, found).weight
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_a_decoder_is_pruned_like_the_model_that_it_was_made_from(tiny, batches):
    decoder = Decoder.from_transformers(copy.deepcopy(tiny.model))
    masks = prune_layers(decoder, Wanda(SemiStructured(2, 4)), batches)
    expected = prune_layers(tiny.model, Wanda(SemiStructured(2, 4)), batches)
    for name, mask in masks.items():
        assert torch.equal(mask, expected[f"model.{name}"])


# Errors


def test_bad_input_is_one_clear_error():
    row, wanda = torch.ones(1, 4), Wanda(SemiStructured())
    require_refusals(
        (lambda: Unstructured(1.5, "row"), "from 0 to 1"),
        (lambda: Unstructured(float("nan"), "row"), "from 0 to 1"),
        (lambda: Unstructured(0.5, "column"), "layer, row"),
        (lambda: SemiStructured(0, 4), "at least 1"),
        (lambda: SemiStructured(5, 4), "m must be an integer of at least 5"),
        (lambda: SemiStructured().mask(torch.ones(2, 6)), "multiple of 4 columns, got"),
        (lambda: Unstructured(0.5, "row").mask(torch.ones(3)), "rows, columns"),
        (lambda: Unstructured(0.5, "layer").mask(row / 0), "infinite"),
        (lambda: wanda.prune(row), "needs statistics"),
        (lambda: wanda.prune(row, statistics_of(torch.ones(1, 8))), "inputs of size 4"),
    )


def test_a_pattern_that_does_not_fit_leaves_the_model_as_it_was(tiny):
    state = copy.deepcopy(tiny.model.state_dict())
    with pytest.raises(ValueError, match="multiple of 48 columns"):
        prune_layers(tiny.model, Magnitude(SemiStructured(2, 48)))
    assert all(torch.equal(state[name], t) for name, t in tiny.model.state_dict().items())
    with pytest.raises(ValueError, match="no batches"):
        prune_layers(tiny.model, Wanda(SemiStructured()))
