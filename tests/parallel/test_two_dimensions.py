"""Tensor parallelism together with another kind, 2 × 2: equal to one process.

Data with pipeline parallelism is in `test_pipeline_parallel`.
"""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from course_pkg.parallel.collectives import Group
from course_pkg.parallel.launch import RankError, launch
from course_pkg.parallel.parallel_decoder import gathered_state, tensor_parallel
from course_pkg.parallel.pipeline_parallel import Pipeline, split_batch
from course_pkg.parallel.pipeline_stage import split_decoder
from course_pkg.parallel.schedules import one_f_one_b
from course_pkg.parallel.tensor_gradients import clip_gradients, finish_gradients
from course_pkg.parallel.tensor_shards import gathered_tensors
from course_pkg.parallel.vocab_parallel import vocab_parallel_cross_entropy
from tests.parallel.alone import (
    CLIP,
    IGNORED,
    LEARNING_RATE,
    WEIGHT_DECAY,
    batches,
    small_decoder,
    train_alone,
)

pytestmark = pytest.mark.exhaustive

CLOSE = {"rtol": 0, "atol": 1e-9}  # in fp64, so that AdamW magnifies no rounding
VOCAB = 48


def _groups(*names):
    """This rank's groups in a mesh of 2 × 2."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    return [Group(mesh.get_group(name)) for name in names]


def _loss_sum(tensor):
    def loss(logits, labels):
        return vocab_parallel_cross_entropy(logits, labels, tensor, VOCAB, reduction="sum")

    return loss


def _tensor_and_data(group):
    data, tensor = _groups("data", "tensor")
    decoder = tensor_parallel(small_decoder().double(), tensor)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    losses = []
    norms = []
    for ids, labels in batches():
        optimizer.zero_grad()
        mine = slice(0, 1) if data.rank == 0 else slice(1, None)  # uneven
        targets = (labels != IGNORED).sum()
        logits = decoder(ids[mine], gather=False)
        loss = _loss_sum(tensor)(logits, labels[mine]) / targets
        loss.backward()
        finish_gradients(decoder)
        for parameter in decoder.parameters():
            data.all_reduce(parameter.grad)
        norms.append(clip_gradients(decoder, CLIP))
        optimizer.step()
        losses.append(data.all_reduce(loss.detach()[None]).item())
    return losses, norms, gathered_state(decoder)


def test_tensor_and_data_parallel_together_equal_one_process():
    alone = train_alone(small_decoder().double(), batches())
    for losses, norms, state in launch(_tensor_and_data, 4):
        assert losses == pytest.approx(alone.losses, rel=0, abs=1e-9)
        assert norms == pytest.approx(alone.norms, rel=0, abs=1e-9)
        torch.testing.assert_close(state, alone.parameters, **CLOSE)


def _pipeline_of_parts():
    stages, tensor = _groups("pipeline", "tensor")
    decoder = tensor_parallel(small_decoder().double(), tensor)
    module = split_decoder(decoder, stages.size)[stages.rank]
    pipeline = Pipeline([module], one_f_one_b(2, 3), stages, _loss_sum(tensor))
    return pipeline, module, decoder, tensor


def _tensor_and_pipeline(group):
    pipeline, module, decoder, tensor = _pipeline_of_parts()
    ids, labels = batches()[0]
    step = pipeline.run(split_batch(ids, labels, 3), int((labels != IGNORED).sum()))
    pipeline.sum_tied_gradients()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return step.loss, gathered_tensors(gradients, decoder.whole_config, tensor)


def test_tensor_and_pipeline_parallel_together_have_one_process_s_gradients():
    alone = train_alone(small_decoder().double(), batches())
    found = set()
    for loss, gradients in launch(_tensor_and_pipeline, 4):
        assert loss == pytest.approx(alone.losses[0], rel=0, abs=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, alone.gradients[name], **CLOSE)
        found |= set(gradients)
    assert found == set(alone.gradients)


def test_a_norm_over_one_of_two_groups_is_refused():
    def clip(group):
        _pipeline_of_parts()[0].clip_gradients(1.0)

    with pytest.raises(RankError, match="is divided among several ranks: sum the squares"):
        launch(clip, 4)
