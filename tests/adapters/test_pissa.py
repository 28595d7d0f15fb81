"""PiSSA: the same output at the start, and the best approximation in the adapter."""

import pytest
import torch
from torch import nn

from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import adapter_layers, inject, merge_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.pissa import principal_factors, start_from_principal
from tests.tables import each_row


def build(rank=2, **settings) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 6, bias=False))
    inject(model, LoRAConfig(rank=rank, **settings))
    return model


@each_row("rank", [1, 3, 5])
@each_row("shape", [(5, 7), (7, 5)])
def test_the_factors_leave_exactly_the_other_singular_values(shape, rank):
    W = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    A, B = principal_factors(W, rank)
    assert (A.shape, B.shape) == ((rank, shape[1]), (shape[0], rank))
    left = torch.linalg.svdvals(W - B @ A)
    whole = torch.linalg.svdvals(W)
    torch.testing.assert_close(left[: 5 - rank], whole[rank:])
    torch.testing.assert_close(A @ A.T, B.T @ B, msg="both have the root of each value")


def test_factors_that_were_computed_before_give_the_same_start():
    one = build()
    other = build()
    factors = {n: principal_factors(x.base.weight, 2) for n, x in adapter_layers(other).items()}
    start_from_principal(one)
    start_from_principal(other, factors=factors)
    for ours, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_16_bit_base_keeps_16_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5)).bfloat16()
    W = model[0].weight.float()
    inject(model, LoRAConfig(rank=2))
    start_from_principal(model)
    assert model[0].base.weight.dtype == torch.bfloat16
    torch.testing.assert_close(model[0].merged_weight(), W, atol=0.01, rtol=0)


@each_row("rank", [0, 6])
def test_a_rank_that_the_weight_lacks_is_refused(rank):
    with pytest.raises(ValueError, match=rf"rank must be 1 to 5 for a \(5, 7\) weight: {rank}"):
        principal_factors(torch.ones(5, 7), rank)


def test_what_is_not_a_new_lora_adapter_is_refused_and_nothing_changes():
    model = build()
    W = model[0].base.weight.clone()
    with pytest.raises(ValueError, match="no LoRA adapter 'other'; inject one"):
        start_from_principal(model, "other")
    merge_adapters(model)
    with pytest.raises(RuntimeError, match="call unmerge_adapters"):
        start_from_principal(model)
    trained = build()
    nn.init.ones_(trained[1].lora_B["default"])
    with pytest.raises(ValueError, match="adapter 'default' in 1 is trained"):
        start_from_principal(trained)
    wide = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))
    wide[0].load_state_dict({"weight": W, "bias": torch.zeros(5)})
    inject(wide, LoRAConfig(rank=3))
    with pytest.raises(ValueError, match=r"rank must be 1 to 2 for a \(2, 5\) weight: 3"):
        start_from_principal(wide)
    quantized = build()
    quantized[1].base.weight = nn.Parameter(torch.ones(6, 5, dtype=torch.uint8), False)
    with pytest.raises(ValueError, match="1 is quantized"):
        start_from_principal(quantized)
    for unchanged in (trained, wide, quantized):
        assert torch.equal(unchanged[0].base.weight, W)
    scaled = nn.Sequential(nn.Linear(2, 2))
    inject(scaled, IA3Config(target_modules=["0"], feedforward_modules=[]))
    with pytest.raises(ValueError, match="no LoRA adapter 'default'"):
        start_from_principal(scaled)
