"""ZeRO's three stages equal one process, and hold and send what the formulas state."""

import dataclasses
import gc
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from course_pkg.acceleration.parallel.collectives import Group, clip_by_norm
from course_pkg.acceleration.parallel.data_parallel import count_targets
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.zero import ZeroAdamW
from course_pkg.acceleration.parallel.zero_costs import (
    bytes_per_parameter,
    held_bytes,
    sent_bytes_per_parameter,
)
from tests.acceleration.parallel.alone import (
    CLIP,
    LEARNING_RATE,
    WEIGHT_DECAY,
    assert_same,
    batches,
    loss_sum,
    own_rows,
    small_decoder,
    train,
    train_alone,
    uneven_batches,
)
from tests.refusals import require_refusals

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest

STAGES = (1, 2, 3)
ADAMW = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}


def _freeze_most(decoder):
    """Train a matrix in two layers and the last norm, as an adapter might."""
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(
            name == "norm.weight" or "s.1.self_attn.q" in name or "2.mlp.u" in name
        )
    return decoder


MODELS = {
    "tied": small_decoder,
    "untied": lambda seed=0: small_decoder(seed, tie_word_embeddings=False),
    "frozen": lambda seed=0: _freeze_most(small_decoder(seed)),
}


def _train(group, data, stage, model="tied", dtype=torch.float32):
    if group.size == 3:  # rings with 2, torch's collectives, which take less time, with 3
        group = Group(algorithm="torch")
    decoder = MODELS[model](seed=group.rank).to(dtype)  # rank 0's weights replace the others
    zero = ZeroAdamW(decoder, group, stage, **ADAMW)

    def step(ids, labels):
        ids, labels = own_rows(group, ids, labels)
        loss = loss_sum(decoder(ids).float(), labels) / count_targets(labels, group)
        loss.backward()
        zero.synchronize()
        gradients = zero.full_gradients()
        norm = zero.clip_grad_norm_(CLIP)
        zero.step()
        zero.zero_grad()
        return group.all_reduce(loss.detach()[None]).item(), gradients, norm

    return dataclasses.replace(train(decoder, data, step), parameters=zero.full_state_dict())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_five_steps_of_each_stage_equal_one_process(ranks):
    data = uneven_batches()
    cases = [("tied", 1), ("tied", 2), ("tied", 3)]
    if ranks == 2:
        cases += [("untied", 3), ("frozen", 1), ("frozen", 3)]

    def work(group):
        return [_train(group, data, stage, model) for model, stage in cases]

    results = launch(work, ranks, timeout=120)
    alone = {name: train_alone(model(), data) for name, model in MODELS.items()}
    for runs in results:
        for run, (model, _) in zip(runs, cases, strict=True):
            assert_same(run, alone[model])


def test_stages_equal_each_other_bit_by_bit_in_bf16():
    data = uneven_batches()

    def work(group):
        return [_train(group, data, stage, dtype=torch.bfloat16) for stage in STAGES]

    results = launch(work, 3, timeout=120)
    first = results[0][0]
    assert first.parameters["norm.weight"].dtype == torch.bfloat16
    for runs in results:
        for run in runs:
            assert_same(run, first, tolerance=0)


def _live_bytes():
    """The storages of all tensors that Python can reach, made since `gc.freeze`."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.nbytes()}.values())


def _backward(zero, group, data, count=1.0):
    ids, labels = own_rows(group, *data)
    loss_sum(zero.model(ids).float(), labels).div(count).backward()
    zero.synchronize()


def _memory(group):
    data = batches()
    gc.freeze()
    measured = []
    for stage in STAGES:
        decoder = small_decoder(hidden_size=16, intermediate_size=35)  # 3 ranks need padding
        zero = ZeroAdamW(decoder.bfloat16(), group, stage, **ADAMW)
        del decoder
        _backward(zero, group, data[0])
        zero.step()
        zero.zero_grad()
        _backward(zero, group, data[1])
        live = _live_bytes()
        flats = zero.flats()
        padded = sum(group.size * flat.shard_size for flat in flats)
        numbers = sum(flat.numbers for flat in flats)
        units = [sum(2 * len(flat.flat) for flat in unit.flats) for unit in zero.units]
        measured.append(
            (held_bytes(zero), live, padded, numbers, len(flats), units, zero.peak_gathered_bytes)
        )
        del zero, flats
    return measured


def test_a_rank_holds_the_bytes_of_the_formula_plus_padding():
    ranks = 3
    results = launch(_memory, ranks)
    for stage in STAGES:
        expected = bytes_per_parameter(stage, ranks)
        without_padding = 0
        for measured in results:
            held, live, padded, numbers, flats, units, peak = measured[stage - 1]
            assert held.total == round(expected * padded)
            assert live == held.total + 4 * flats  # AdamW's step counters
            assert padded - numbers == flats + 1  # by hand: 4 × 1 + 2
            without_padding += held.total - held.padding
            # One layer at a time, besides what is in no layer.
            assert peak == (max(units[:-1]) + units[-1] if stage == 3 else 0)
        assert without_padding == round(expected * numbers * ranks)


def test_bytes_by_hand():
    # ZeRO's figure 1: 7.5 billion parameters on 64 GPUs, in GB.
    billions = [round(7.5 * bytes_per_parameter(stage, 64), 1) for stage in (0, 1, 2, 3)]
    assert billions == [120.0, 31.4, 16.6, 1.9]


def _sent(group):
    counts = []
    for stage in STAGES:
        zero = ZeroAdamW(small_decoder().bfloat16(), group, stage, **ADAMW)
        group.sent_bytes = 0
        _backward(zero, group, batches()[0])
        zero.step()
        counts.append(group.sent_bytes)
    return counts, sum(group.size * flat.shard_size for flat in zero.flats())


def test_a_rank_sends_the_bytes_of_the_formula():
    ranks = 3
    for counts, padded in launch(_sent, ranks):
        assert counts == [round(padded * sent_bytes_per_parameter(s, ranks)) for s in STAGES]
        assert counts[2] == 1.5 * counts[0] == 1.5 * counts[1]


def _frozen_memory(group):
    zero = ZeroAdamW(_freeze_most(small_decoder()).bfloat16(), group, 3, **ADAMW)
    for _ in range(2):
        _backward(zero, group, batches()[0])
        zero.step()
        held = held_bytes(zero)
        zero.zero_grad()
    units = [sum(2 * len(flat.flat) for flat in unit.flats) for unit in zero.units]
    return (
        held,
        units,
        zero.peak_gathered_bytes,
        sum(f.shard_size for f in zero.flats() if f.trained),
    )


def test_frozen_weights_are_sharded_freed_after_use_and_have_no_state():
    for held, units, peak, trained in launch(_frozen_memory, 2):
        assert held.weights == sum(units) // 2
        assert (held.gradients, held.master, held.moments) == (
            2 * trained,
            4 * trained,
            8 * trained,
        )
        assert peak == max(units[:-1]) + units[-1]


def _microbatches(group):
    data = batches()[0]
    ids, labels = own_rows(group, *data)
    targets = count_targets(labels, group)
    gradients = []
    sent = []
    for stage in STAGES:
        zero = ZeroAdamW(small_decoder(), group, stage, **ADAMW)
        group.sent_bytes = 0
        with zero.no_sync():
            (loss_sum(zero.model(ids[:1]), labels[:1]) / targets).backward()
        sent.append(group.sent_bytes)
        (loss_sum(zero.model(ids[1:]), labels[1:]) / targets).backward()
        zero.synchronize()
        gradients.append(zero.full_gradients())
        if stage > 1:  # the shards add up
            zero.zero_grad()
            for part in (slice(0, 1), slice(1, None)):
                (loss_sum(zero.model(ids[part]), labels[part]) / targets).backward()
                zero.synchronize()
            gradients.append(zero.full_gradients())
    return gradients, sent


def test_microbatches_equal_the_whole_batch_and_need_no_communication():
    alone = train_alone(small_decoder(), batches()[:1])
    for gradients, sent in launch(_microbatches, 2):
        for accumulated in gradients:
            torch.testing.assert_close(accumulated, alone.gradients, atol=1e-5, rtol=0)
        assert sent[:2] == [0, 0]


class _Switch(nn.Module):
    """One layer for each rank, of which a rank uses its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(4))

    def forward(self, x, used):
        x = self.first(x)
        for index in used:
            x = self.layers[index](x)
        return x


def _units_not_run(group):
    torch.manual_seed(0)
    model = _Switch()
    x = torch.eye(2)
    use = [[0, 2], [1, 2], [2]]
    for used in use:  # one process
        model(x, used).square().sum().backward()
    expected = {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }
    model.zero_grad()
    zero = ZeroAdamW(model, group, 2)
    model(x, use[group.rank]).square().sum().backward()
    zero.synchronize()
    return zero.full_gradients(), expected


def test_at_stage_2_ranks_may_run_other_units_and_nothing_hangs():
    for gradients, expected in launch(_units_not_run, 3, timeout=300):
        torch.testing.assert_close(gradients, expected)


def _shares_a_weight():
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.layers[1].weight = model.layers[0].weight
    return model


def _run_twice(group, stage):
    decoder = small_decoder()
    zero = ZeroAdamW(decoder, group, stage)
    for _ in range(2):
        decoder(batches()[0][0]).sum().backward()
        if stage == 1:
            zero.synchronize()


def _cast_afterwards(group, stage):
    model = nn.Linear(2, 2)
    zero = ZeroAdamW(model, group, stage)
    model.double()
    model(torch.ones(1, 2).double()).sum().backward()
    zero.synchronize()


def _mistakes(group):
    require_refusals(
        (lambda: ZeroAdamW(nn.Linear(1, 1), group, 4), "stage must be 1, 2 or 3, got 4"),
        (lambda: ZeroAdamW(nn.ReLU(), group, 1), "no parameter requires a gradient"),
        (lambda: ZeroAdamW(_shares_a_weight(), group, 3), "two units share .* layers.0.weight"),
        (ZeroAdamW(nn.Linear(1, 1), group, 3).step, r"call synchronize\(\) after the backward"),
        (_cast_afterwards, group, 1, "the model was moved or cast after ZeroAdamW"),
        (_cast_afterwards, group, 2, "the model was moved or cast after ZeroAdamW"),
        (_run_twice, group, 1, "stage 1 synchronizes once in a step"),
        (_run_twice, group, 2, r"a unit ran backward twice before synchronize\(\)"),
        (_run_twice, group, 3, r"a unit ran backward twice before synchronize\(\)"),
        errors=(ValueError, RuntimeError),
    )


def test_mistakes_of_the_caller_are_refused():
    launch(_mistakes, 1)


def test_a_norm_that_is_nan_makes_all_gradients_nan_as_torchs_clipping_does():
    both = []
    for clip in ("ours", "torch"):
        parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
        parameters[0].grad = torch.tensor([torch.nan, 1.0])
        parameters[1].grad = torch.ones(2)
        if clip == "ours":
            clip_by_norm([p.grad for p in parameters], torch.tensor(torch.nan), 1.0)
        else:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        both.append([p.grad for p in parameters])
    torch.testing.assert_close(*both, equal_nan=True)
    assert both[0][1].isnan().all()
    with pytest.raises(ValueError, match="max_norm must be above 0, got 0"):
        clip_by_norm([], torch.tensor(1.0), 0)
