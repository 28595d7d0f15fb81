"""AdaLoRA by hand: its output, masks and ranks, resumed runs, and everything it refuses."""

import pytest
import torch
from torch import nn

from course_pkg.adapters.adalora import AdaLoRAConfig, AdaLoRALinear
from course_pkg.adapters.adapter_io import save_adapter
from course_pkg.adapters.injection import adapter_layers, inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.rank_allocator import RankAllocator
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.adapters.builders import build, loaded
from tests.parity.small_models import BATCH, logits
from tests.tables import each_row

SMALL = {"initial_rank": 3, "target_rank": 1, "target_modules": ["q_proj", "v_proj"]}


def adapted(**settings):
    model = build()
    inject(model, AdaLoRAConfig(**{"total_step": 6} | SMALL | settings))
    return model


def steps(count, **settings):
    return TrainConfig(
        **{"steps": count, "learning_rate": 2e-2, "schedule": "constant", "progress": False}
        | settings
    )


def one_layer(**settings):
    """One module with Q = (1, 2), Λ = (0.5, 0.25), P = (1, 3)."""
    model = nn.Sequential(nn.Linear(1, 1))
    defaults = {"total_step": 3, "initial_rank": 2, "target_rank": 1}
    inject(model, AdaLoRAConfig(**defaults | settings))
    values = {"lora_A": [[1.0], [2.0]], "lora_E": [[0.5], [0.25]], "lora_B": [[1.0, 3.0]]}
    with torch.no_grad():
        for part, weight in model[0].weights_of("default").items():
            weight.copy_(torch.tensor(values[part]))
    return model


def with_gradients(model, Q, diagonal, P):
    for part, gradient in (("lora_A", Q), ("lora_E", diagonal), ("lora_B", P)):
        getattr(model[0], part)["default"].grad = torch.tensor(gradient)
    return model


def test_a_triplet_can_come_back_before_the_final_phase_but_not_after():
    model = one_layer(total_step=4, tfinal=1, beta1=0.01, beta2=0.01)
    allocator = RankAllocator(model)
    Q = [[0.1], [0.1]]
    P = [[0.1, 0.1]]
    with_gradients(model, Q, [[0.0], [9.0]], P)
    allocator.after_step(1)
    assert allocator.masks["0"].tolist() == [False, True]
    with torch.no_grad():  # as an optimizer would: the removed entry still has a gradient
        model[0].lora_E["default"][0] = 1.0
    with_gradients(model, Q, [[9.0], [0.0]], P)
    allocator.after_step(2)
    assert allocator.masks["0"].tolist() == [True, False] and not allocator.final
    with_gradients(model, Q, [[0.0], [9.0]], P)
    allocator.after_step(3)
    assert allocator.final and allocator.masks["0"].tolist() == [True, False]
    with torch.no_grad():
        model[0].lora_E["default"].fill_(5.0)
    with_gradients(model, Q, [[0.0], [99.0]], P)
    allocator.after_step(4)
    assert model[0].lora_E["default"].flatten().tolist() == [5.0, 0.0]
    assert [step for step, _ in allocator.allocations] == [1, 2, 3]


def test_triplets_with_the_same_score_are_removed_together():
    model = one_layer()
    with torch.no_grad():
        for weight in model[0].weights_of("default").values():
            weight.fill_(1.0)
    with_gradients(model, [[1.0], [1.0]], [[1.0], [1.0]], [[1.0, 1.0]])
    allocator = RankAllocator(model)
    allocator.after_step(1)
    assert allocator.ranks() == {"0": 0}
    assert torch.isfinite(model(torch.ones(1))).all()


def test_equal_ranks_remove_nothing():
    model = adapted(target_rank=3)
    allocator = RankAllocator(model)
    train(model, [BATCH], steps(6), callback=allocator)
    assert set(allocator.ranks().values()) == {3}
    allocator.prune()
    assert len(adapter_layers(model)) == 4


def ranks_of(model):
    return {
        name: len(layer.lora_E["default"])
        for name, layer in adapter_layers(model).items()
        if isinstance(layer, AdaLoRALinear)
    }


def test_a_pruned_adapter_loads_with_its_ranks_and_trains_on_without_an_allocator(tmp_path):
    model = adapted(modules_to_save=["lm_head"])
    allocator = RankAllocator(model)
    train(model, [BATCH], steps(6), callback=allocator)
    allocator.prune()
    ranks = ranks_of(model)
    assert ranks == allocator.ranks() and sum(ranks.values()) == 4
    save_adapter(model, tmp_path)
    back = loaded(tmp_path)
    config = next(iter(adapter_layers(back).values())).configs["default"]
    assert {name: config.rank_of(name) for name in ranks} == ranks
    assert torch.equal(logits(back.eval()), logits(model.eval()))
    train(back, [BATCH], steps(2))
    with pytest.raises(ValueError, match="ranks of 'default' are final; train it without"):
        RankAllocator(back)
    remove_adapters(back)
    inject(back, config)  # the same allocation, from the start
    assert ranks_of(back) == ranks


def test_a_new_allocator_continues_from_a_saved_state():
    model = with_gradients(
        one_layer(tinit=1, tfinal=1), [[0.1], [0.2]], [[1.0], [2.0]], [[0.3, 0.1]]
    )
    first = RankAllocator(model)
    second = RankAllocator(model)
    first.after_step(1)
    second.load_state_dict(first.state_dict())
    assert second._importance("0").tolist() == first._importance("0").tolist()
    first.after_step(2)
    second.load_state_dict(first.state_dict())
    assert second.masks["0"].tolist() == [False, True] and second.allocations == [(2, {"0": 1})]
    assert second.final


def test_a_gradient_that_is_not_finite_does_not_spoil_the_scores():
    model = one_layer()
    allocator = RankAllocator(model)
    with_gradients(model, [[0.1], [0.2]], [[1.0], [2.0]], [[0.3, 0.1]])
    allocator._update_averages()
    before = allocator._importance("0")
    with_gradients(model, [[0.1], [float("inf")]], [[1.0], [2.0]], [[0.3, 0.1]])
    allocator._update_averages()
    assert torch.equal(allocator._importance("0"), before)


def test_without_any_finite_gradient_no_ranks_are_chosen():
    model = one_layer(total_step=2)
    allocator = RankAllocator(model)
    with_gradients(model, [[0.1], [float("inf")]], [[1.0], [2.0]], [[0.3, 0.1]])
    allocator.after_step(1)
    assert allocator.ranks() == {"0": 2} and not allocator.allocations
    with pytest.raises(RuntimeError, match="no step before 2 had finite gradients"):
        allocator.after_step(2)


@each_row(
    ("settings", "error", "says"),
    [
        ({"initial_rank": 4, "target_rank": 5}, ValueError, "5 is above initial_rank 4"),
        ({"tinit": 6, "tfinal": 4}, ValueError, "leave none of total_step 10 to remove ranks"),
        ({"tfinal": 9}, ValueError, "total_step 10 and tfinal 9 make the ranks final at step 1"),
        ({"delta_t": 0}, ValueError, "delta_t must be an integer of at least 1, got 0"),
        ({"tinit": -1}, ValueError, "tinit must be an integer of at least 0"),
        ({"beta2": "high"}, TypeError, "beta2 must be a number, got 'high'"),
        ({"rank_pattern": [True]}, TypeError, r"rank_pattern must be a dict, got \[True\]"),
        ({"rank_pattern": {"q.lora_E": (True,)}}, ValueError, "to 12 .* booleans, got 'q.lora_E'"),
        ({"rank_pattern": {"q.lora_E": [1] * 12}}, ValueError, "booleans"),
        ({"rank_pattern": {"q": [True] * 12}}, ValueError, "names that end in .lora_E"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(settings, error, says):
    with pytest.raises(error, match=says):
        AdaLoRAConfig(**{"total_step": 10} | settings)


@each_row(
    ("names", "says"),
    [
        (["0", "2", "7"], "rank_pattern has '7', which is not a target module"),
        (["0"], "rank_pattern lacks the target module '2'"),
    ],
)
def test_a_rank_pattern_must_match_the_targets(names, says):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    pattern = {f"{name}.lora_E": (True, False) for name in names}
    config = AdaLoRAConfig(5, initial_rank=2, target_rank=1, rank_pattern=pattern)
    with pytest.raises(ValueError, match=says):
        inject(model, config)
    assert not adapter_layers(model)


def test_the_allocator_refuses_what_it_cannot_train():
    with pytest.raises(ValueError, match="no AdaLoRA adapter 'default'; inject one"):
        RankAllocator(build())
    lora = build()
    inject(lora, LoRAConfig())
    with pytest.raises(ValueError, match="no AdaLoRA adapter"):
        RankAllocator(lora)
    model = adapted()
    other = adapted()
    allocator = RankAllocator(model)
    with pytest.raises(ValueError, match="total_step is 6, but training has 5 steps"):
        train(model, [BATCH], steps(5), callback=allocator)
    with pytest.raises(ValueError, match="the allocator is for another model"):
        train(other, [BATCH], steps(6), callback=allocator)
    with pytest.raises(RuntimeError, match="no gradients; call after_step before"):
        allocator.after_step(1)
    with pytest.raises(RuntimeError, match="not final; train for total_step steps first"):
        allocator.prune()
    layer = next(iter(adapter_layers(model).values()))
    layer.merge()
    with pytest.raises(RuntimeError, match="cannot remove ranks while merged"):
        layer.prune("default", torch.ones(3, dtype=torch.bool))


@pytest.mark.gpu
def test_the_schedule_runs_and_resumes_on_a_gpu(tmp_path):
    settings = {"total_step": 8, "tinit": 2, "tfinal": 2}
    model = adapted(**settings).cuda()
    allocator = RankAllocator(model)
    train(
        model,
        [BATCH],
        steps(8, checkpoint_every=4),
        checkpoint=tmp_path / "run.pt",
        callback=allocator,
    )
    assert allocator.final and sum(allocator.ranks().values()) == 4
    allocator.prune()
    assert all(p.is_cuda for p in model.parameters())
    other = adapted(**settings).cuda()
    again = RankAllocator(other)
    train(other, [BATCH], steps(8), resume_from=tmp_path / "run.pt", callback=again)
    assert again.ranks() == allocator.ranks()
