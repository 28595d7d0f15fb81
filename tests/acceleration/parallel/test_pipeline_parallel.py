"""Pipelines on real ranks equal one process; what doesn't come is an error."""

import dataclasses
from functools import partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.flop_counter import FlopCounterMode

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.launch import RankError, launch
from course_pkg.acceleration.parallel.parallel_decoder import tensor_parallel
from course_pkg.acceleration.parallel.pipeline_parallel import Messages, Pipeline, split_batch
from course_pkg.acceleration.parallel.pipeline_stage import Stage, split_decoder
from course_pkg.acceleration.parallel.schedules import gpipe, interleaved, one_f_one_b, zero_bubble
from course_pkg.acceleration.parallel.tensor_shards import gathered_tensors
from course_pkg.acceleration.parallel.vocab_parallel import vocab_parallel_cross_entropy
from tests.acceleration.parallel.alone import (
    CLIP,
    IGNORED,
    LEARNING_RATE,
    WEIGHT_DECAY,
    batches,
    loss_sum,
    small_decoder,
    train_alone,
)
from tests.refusals import require_refusals
from tests.tables import each_row

ROWS = 6
CASES = [  # ranks, changes of the decoder, schedules
    (2, {}, [gpipe(2, 3), one_f_one_b(2, 5), interleaved(2, 4, 2), zero_bubble(2, 4)]),
    (
        3,  # four layers: 2, 1, 1
        {"tie_word_embeddings": False, "attention_bias": True},
        [gpipe(3, 4), one_f_one_b(3, 2), zero_bubble(3, 4)],
    ),
    (4, {}, [gpipe(4, 3), one_f_one_b(4, 6), zero_bubble(4, 3)]),
    (2, {"num_hidden_layers": 7}, [interleaved(2, 2, 3)]),  # 2, 1, 1, 1, 1, 1
    (1, {}, [interleaved(1, 2, 2), zero_bubble(1, 2)]),
]


def _targets(labels):
    return (labels != IGNORED).sum().item()


def _decoder(seed=0, **changes):
    """Of float64: AdamW divides gradients near its eps, 1e-8, by themselves, so that in float32 the
    order of a sum moves a few parameters by 1e-4, also in one process.
    """
    return small_decoder(seed, **changes).double()


def _pipeline(group, schedule, changes=None, seed=0):
    decoder = _decoder(seed, **(changes or {}))
    parts = split_decoder(decoder, schedule.stages)[group.rank :: group.size]
    return Pipeline(parts, schedule, group, loss_sum, timeout=200)


def _adamw(pipeline):
    parameters = list(pipeline.parameters.values())
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def _step(pipeline, optimizer, ids, labels, replicas=None):
    """One step, with the rows divided among replicas if there are several."""
    targets = torch.tensor([float(_targets(labels))])
    if replicas:
        replicas.all_reduce(targets)
    optimizer.zero_grad()
    step = pipeline.run(split_batch(ids, labels, pipeline.schedule.microbatches), targets.item())
    pipeline.sum_tied_gradients()
    loss = torch.tensor([step.loss], dtype=torch.float64)
    if replicas:
        for parameter in pipeline.parameters.values():
            replicas.all_reduce(parameter.grad)
        replicas.all_reduce(loss)
    gradients = {name: p.grad.clone() for name, p in pipeline.parameters.items()}  # before clipping
    norm = pipeline.clip_gradients(CLIP)
    optimizer.step()
    return loss.item(), norm, gradients


def _train(group, schedule, changes, replicas=None):
    """What `train_alone` returns, by the ranks of this pipeline."""
    pipeline = _pipeline(group, schedule, changes)
    optimizer = _adamw(pipeline)
    data = batches(ROWS)
    steps = []
    for ids, labels in data:
        if replicas:
            ids = ids.chunk(replicas.size)[replicas.rank]
            labels = labels.chunk(replicas.size)[replicas.rank]
        steps.append(_step(pipeline, optimizer, ids, labels, replicas))
    losses, norms, gradients = zip(*steps, strict=True)
    return losses, norms, pipeline.gather(gradients[0]), pipeline.state_dict()


CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def _assert_equal(results, alone):
    """Of every rank of a pipeline; sums in another order differ by rounding."""
    for losses, norms, gradients, parameters in results:
        torch.testing.assert_close(list(losses), alone.losses, **CLOSE)
        torch.testing.assert_close(list(norms), alone.norms, **CLOSE)
        torch.testing.assert_close(gradients, alone.gradients, **CLOSE)
        torch.testing.assert_close(parameters, alone.parameters, **CLOSE)


@pytest.mark.parametrize(
    ("ranks", "changes", "schedules"),
    CASES,
    ids=["2 ranks", "3 ranks", "4 ranks", "3 uneven chunks", "1 rank"],
)
def test_every_schedule_equals_one_process(ranks, changes, schedules):

    def work(group):
        return [_train(group, schedule, changes) for schedule in schedules]

    results = launch(work, ranks)
    alone = train_alone(_decoder(**changes), batches(ROWS))
    for number in range(len(schedules)):
        _assert_equal([result[number] for result in results], alone)


def _two_by_two(group):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    replicas = Group(mesh.get_group("data"))
    return _train(Group(mesh.get_group("pipeline")), one_f_one_b(2, 3), {}, replicas)


def test_data_and_pipeline_parallel_together_equal_one_process():
    """Ranks 0 and 1 are one pipeline, 2 and 3 the other; replicas have unequal targets."""
    results = launch(_two_by_two, 4)
    alone = train_alone(_decoder(), batches(ROWS))
    _assert_equal(results, alone)


def _of_parts(group):
    """With tensor parallelism in each stage: the loss and the whole gradients of its weights."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
    stages, tensor = (Group(mesh.get_group(name)) for name in ("pipeline", "tensor"))
    decoder = tensor_parallel(_decoder(), tensor)
    module = split_decoder(decoder, 2)[stages.rank]
    loss = partial(vocab_parallel_cross_entropy, group=tensor, vocab_size=48, reduction="sum")
    pipeline = Pipeline([module], one_f_one_b(2, 3), stages, loss)
    ids, labels = batches()[0]
    step = pipeline.run(split_batch(ids, labels, 3), _targets(labels))
    pipeline.sum_tied_gradients()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    with pytest.raises(ValueError, match="is divided among several ranks: sum the squares"):
        pipeline.clip_gradients(1.0)
    return step.loss, gathered_tensors(gradients, decoder.whole_config, tensor)


@pytest.mark.exhaustive
def test_tensor_and_pipeline_parallel_together_have_one_process_s_gradients():
    alone = train_alone(_decoder(), batches())
    names = set()
    for loss, gradients in launch(_of_parts, 4):
        assert loss == pytest.approx(alone.losses[0], rel=0, abs=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, alone.gradients[name], **CLOSE)
        names |= set(gradients)
    assert names == set(alone.gradients)


def _held(group):
    """Counts and bytes of real runs with eight equal microbatches."""
    held = {}
    for schedule in (gpipe(4, 8), one_f_one_b(4, 8), zero_bubble(4, 8), one_f_one_b(4, 2)):
        pipeline = _pipeline(group, schedule)
        data = split_batch(*batches(rows=schedule.microbatches)[0], schedule.microbatches)
        step = pipeline.run(data, 1)
        held[schedule.name, len(data)] = (step.in_flight, step.in_flight_bytes)
    return held


def test_activations_in_flight_are_those_of_the_schedule():
    results = launch(_held, 4)
    for rank, held in enumerate(results):
        assert held["GPipe", 8][0] == 8
        assert held["1F1B", 8][0] == 4 - rank
        assert held["1F1B", 2][0] == min(4 - rank, 2)
        assert held["ZB-H1", 8][0] == 4
        one = held["GPipe", 8][1] / 8
        assert one > 0
        assert held["1F1B", 8][1] == one * (4 - rank)
        assert held["1F1B", 2][1] == one * min(4 - rank, 2)


def test_two_halves_of_a_backward_pass_are_the_whole_and_cost_the_same():
    decoder = _decoder(attention_bias=True)
    ids, labels = batches()[0]
    whole = Stage(decoder)
    whole.forward(0, ids, lambda y: loss_sum(y, labels))
    with FlopCounterMode(display=False) as at_once:
        whole.backward(0, None)
    wanted = {name: p.grad for name, p in decoder.named_parameters()}
    decoder.zero_grad()

    halves = Stage(decoder, split=True)
    halves.forward(0, ids, lambda y: loss_sum(y, labels))
    with FlopCounterMode(display=False) as first:
        halves.backward_input(0, None)
    assert decoder.layers[0].mlp.up_proj.weight.grad is None
    assert decoder.norm.weight.grad is not None
    with FlopCounterMode(display=False) as second:
        halves.backward_weight(0)
    assert halves.in_flight == 0
    for name, parameter in decoder.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], **CLOSE)
    assert first.get_total_flops() + second.get_total_flops() == at_once.get_total_flops()
    assert second.get_total_flops() > 0


def _tied_head(decoder):
    """A tied decoder whose head is a module with the embedding's parameter, as others build it."""
    rows, hidden = decoder.embed_tokens.weight.shape
    decoder.lm_head = torch.nn.Linear(hidden, rows, bias=False)
    decoder.lm_head.weight = decoder.embed_tokens.weight
    return decoder


def test_a_tied_head_that_is_a_module_has_the_embeddings_name():
    stages = split_decoder(_tied_head(_decoder()), 2)
    names = [dict(stage.named_parameters()).keys() for stage in stages]
    assert names[0] & names[1] == {"embed_tokens.weight"}
    assert "lm_head.weight" not in names[1]


def test_a_weight_that_is_used_twice_in_a_stage_gets_both_gradients_in_two_halves():
    decoder = _tied_head(_decoder())
    ids, labels = batches()[0]
    loss_sum(decoder(ids), labels).backward()
    wanted = decoder.embed_tokens.weight.grad
    decoder.zero_grad()
    stage = Stage(split_decoder(decoder, 1)[0], split=True)
    stage.forward(0, ids, lambda y: loss_sum(y, labels))
    stage.backward_input(0, None)
    stage.backward_weight(0)
    torch.testing.assert_close(decoder.embed_tokens.weight.grad, wanted, **CLOSE)


def test_large_messages_in_both_directions_do_not_wait_for_each_other():
    """8 MB each: more than the operating system buffers. In 1F1B neighbors send at once."""

    def work(group):
        pipeline = Pipeline(
            [torch.nn.Identity()],
            one_f_one_b(3, 4),
            group,
            lambda y, labels: y.sum(),
            activation=torch.empty_like,
            timeout=200,
        )
        step = pipeline.run([(torch.ones(2**21), torch.ones(1))] * 4, 2**21)
        return step.loss, group.rank

    assert launch(work, 3) == [(4.0, rank) for rank in range(3)]


def _seeded_by_rank(group):
    pipeline = _pipeline(group, one_f_one_b(3, 2), seed=group.rank)
    return pipeline.tied, pipeline.state_dict()["embed_tokens.weight"], pipeline.parameters


def test_the_last_rank_begins_with_the_first_ones_embedding():
    for tied, embedding, parameters in launch(_seeded_by_rank, 3):
        assert tied == {"embed_tokens.weight": (0, 2)}
        assert torch.equal(embedding, _decoder(0).embed_tokens.weight)
        if "norm.weight" in parameters:
            assert torch.equal(parameters["embed_tokens.weight"], embedding)


# What doesn't come must not hang.


class _Lossy(Messages):
    def send(self, step):
        if step.value != ("activation", 1, 2):
            super().send(step)

    def take(self, value):
        if value == ("activation", 1, 2):
            self.timeout = 1  # so that its receiver is the first to give up
        return super().take(value)


def _dropped(group):
    pipeline = _pipeline(group, one_f_one_b(3, 3))
    pipeline.messages = _Lossy
    pipeline.run(split_batch(*batches(3)[0], 3), 1)


def test_a_dropped_message_is_an_error_that_names_it():
    message = (
        "rank 2 waited for the activation of microbatch 2 from stage 1, which rank 1 sends, at "
        "most 1 s: Timed out"
    )
    with pytest.raises(RankError, match=message):
        launch(_dropped, 3, timeout=200)


class _Half(torch.nn.Module):
    """Sends other numbers than the next stage expects, of half as many bytes."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage
        self.activation = stage.activation

    def forward(self, x):
        y = self.stage(x)
        return y.half() if self.stage.first else y


def _sends_half(group):
    stage = _Half(split_decoder(small_decoder(), 2)[group.rank])
    Pipeline([stage], gpipe(2, 1), group, loss_sum).run([batches()[0]], 1)


def test_an_activation_that_the_next_stage_does_not_expect_is_refused():
    message = (
        r"rank 0 of 2 failed: ValueError: the activation of microbatch 0 .* torch\.float16, but"
    )
    with pytest.raises(RankError, match=message):
        launch(_sends_half, 2, timeout=200)


# Frozen weights.


def _freeze(decoder, frozen):
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    return decoder


def _train_partly(group, frozen):
    ids, labels = batches()[0]
    norms = []
    for schedule in (gpipe(2, 2), zero_bubble(2, 2)):
        decoder = _freeze(small_decoder(), frozen)
        pipeline = Pipeline([split_decoder(decoder, 2)[group.rank]], schedule, group, loss_sum)
        pipeline.run(split_batch(ids, labels, 2), _targets(labels))
        pipeline.sum_tied_gradients()
        norms.append(pipeline.gradient_norm())
    return norms


@each_row(
    "frozen",
    [("embed_tokens",), ("embed_tokens", "layers.0", "layers.1"), ("layers.2", "layers.3")],
)
def test_frozen_weights_change_nothing_for_the_others(frozen):
    alone = train_alone(_freeze(small_decoder(), frozen), batches()[:1]).norms
    for norms in launch(_train_partly, 2, frozen, timeout=200):
        assert norms == pytest.approx(alone * 2, rel=1e-5)


def _refused(group):
    pipeline = _pipeline(group, gpipe(1, 2))
    ids, labels = batches()[0]
    lonely = dataclasses.replace(gpipe(1, 2), actions=gpipe(2, 2).actions)
    require_refusals(
        (pipeline.run, split_batch(ids, labels, 3), 1, "is for 2 microbatches, got 3"),
        (pipeline.run, split_batch(ids, labels, 2), 0, "divisor must be above 0 and finite, got 0"),
        (Pipeline, [], gpipe(1, 2), group, loss_sum, "1 stages each, .* 1 ranks and 0 modules"),
        (Pipeline, pipeline.stages, lonely, group, loss_sum, "2 ranks with .* 1 ranks and 1 modul"),
        (split_batch, ids, labels, 5, "4 rows can't be split into 5 microbatches: use fewer"),
        (split_decoder, small_decoder(), 5, "4 layers can't be split into 5 stages: use at most 4"),
    )


def test_bad_arguments_are_refused():
    launch(_refused, 1)
