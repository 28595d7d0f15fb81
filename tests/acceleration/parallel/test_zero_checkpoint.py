"""A training that is saved with N ranks goes on with M as if nothing had happened."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.data_parallel import count_targets, rank_batches
from course_pkg.acceleration.parallel.launch import RankError, launch
from course_pkg.acceleration.parallel.zero import ZeroAdamW
from course_pkg.acceleration.parallel.zero_checkpoint import (
    load_checkpoint,
    load_unsharded,
    save_checkpoint,
)
from tests.acceleration.parallel.alone import (
    CLIP,
    LEARNING_RATE,
    WEIGHT_DECAY,
    batches,
    loss_sum,
    small_decoder,
    train_alone,
)

pytestmark = pytest.mark.exhaustive

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest

SAVED_AFTER = 2  # of five steps
# The settings come from the checkpoint, so these must not matter.
OTHER_SETTINGS = {"lr": 1.0, "weight_decay": 0.9, "betas": (0.1, 0.2)}


def _odd_decoder(seed=0):
    """Three ranks need padding in every flat tensor."""
    return small_decoder(seed, hidden_size=16, intermediate_size=35)


def _steps(zero, group, data):
    for ids, labels in data:
        rows = next(rank_batches(len(ids), len(ids), rank=group.rank, ranks=group.size))
        targets = count_targets(labels[rows], group)
        (loss_sum(zero.model(ids[rows]).float(), labels[rows]) / targets).backward()
        zero.synchronize()
        zero.clip_grad_norm_(CLIP)
        zero.step()
        zero.zero_grad()


def _begin(group, folder, stage, dtype=torch.float32):
    group = Group(algorithm="torch")
    decoder = _odd_decoder().to(dtype)
    decoder.layers[1].requires_grad_(False)
    zero = ZeroAdamW(decoder, group, stage, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    _steps(zero, group, batches()[:SAVED_AFTER])
    save_checkpoint(zero, folder)
    _steps(zero, group, batches()[SAVED_AFTER:])
    return zero.full_state_dict()


def _resume(group, folder, stage, units=None, dtype=torch.float32):
    group = Group(algorithm="torch")
    decoder = _odd_decoder(seed=7).to(dtype)
    decoder.layers[1].requires_grad_(False)
    zero = ZeroAdamW(decoder, group, stage, units=units, **OTHER_SETTINGS)
    _steps(zero, group, batches()[:1])  # what it has learned before doesn't matter either
    load_checkpoint(zero, folder)
    _steps(zero, group, batches()[SAVED_AFTER:])
    return zero.full_state_dict()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_saved_with_n_ranks_it_goes_on_with_m_ranks_and_another_stage(ranks, tmp_path):
    def begin(group):
        return [_begin(group, tmp_path / str(stage), stage) for stage in (1, 3)]

    def resume(group):
        saved = [(1, 3, None), (3, 2, ())]
        return [_resume(group, tmp_path / str(a), b, units) for a, b, units in saved]

    expected = train_alone(_partly_frozen(), batches()).parameters
    for found in launch(begin, ranks, timeout=120)[0]:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    others = [other for other in (1, 2, 3) if other != ranks][:: 1 if ranks == 2 else -1]
    for states in launch(resume, others[0], timeout=120):
        for found in states:
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(_resume_alone(tmp_path / "3"), expected, atol=1e-5, rtol=0)


def _partly_frozen(seed=0):
    decoder = _odd_decoder(seed)
    decoder.layers[1].requires_grad_(False)
    return decoder


def _resume_alone(folder):
    decoder = _partly_frozen(seed=7)
    optimizer = torch.optim.AdamW(decoder.parameters(), **OTHER_SETTINGS)
    load_unsharded(folder, decoder, optimizer)
    for ids, labels in batches()[SAVED_AFTER:]:
        optimizer.zero_grad()
        (loss_sum(decoder(ids), labels) / (labels != -100).sum()).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), CLIP)
        optimizer.step()
    return dict(decoder.named_parameters())


def test_with_as_many_ranks_it_goes_on_bit_by_bit_also_in_bf16(tmp_path):
    def both(group):
        begun = _begin(group, tmp_path / "a", 3, torch.bfloat16)
        return begun, _resume(group, tmp_path / "a", 3, dtype=torch.bfloat16)

    for begun, resumed in launch(both, 2):
        torch.testing.assert_close(begun, resumed, atol=0, rtol=0)


def _save_and_load_before_the_first_step(group, folder):
    zero = ZeroAdamW(_odd_decoder(), group, 2)
    save_checkpoint(zero, folder)
    other = ZeroAdamW(_odd_decoder(seed=7), group, 3)
    load_checkpoint(other, folder)
    return len(other.optimizer.state), zero.full_state_dict(), other.full_state_dict()


def test_before_the_first_step_there_are_only_weights(tmp_path):
    for states, saved, loaded in launch(_save_and_load_before_the_first_step, 2, tmp_path):
        assert states == 0
        torch.testing.assert_close(saved, loaded, atol=0, rtol=0)


def test_buffers_and_tied_names_are_in_the_state_dict_and_the_checkpoint(tmp_path):
    def work(group):
        models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)) for _ in "ab"]
        for model in models:
            model[2].weight = model[0].weight
        models[0](torch.randn(4, 2))  # moves the running mean
        expected = {name: value.clone() for name, value in models[0].state_dict().items()}
        zeros = [ZeroAdamW(model, group, 3) for model in models]
        save_checkpoint(zeros[0], tmp_path)
        load_checkpoint(zeros[1], tmp_path)
        return expected, zeros[1].full_state_dict()

    expected, found = launch(work, 1)[0]
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_a_folder_with_a_checkpoint_or_without_one_of_its_files_is_refused(tmp_path):
    def save(group):
        save_checkpoint(ZeroAdamW(nn.Linear(2, 2), group, 1), tmp_path)

    launch(save, 2)
    with pytest.raises(RankError, match="has a checkpoint; give a new folder"):
        launch(save, 3)
    (tmp_path / "rank-0-of-2.pt").unlink()

    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(FileNotFoundError, match=r"the checkpoint lacks rank-0-of-2\.pt"):
        load_unsharded(tmp_path, model, optimizer)
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        load_unsharded(tmp_path / "other", model, optimizer)


def _save(folder, ranks, steps=0):
    def work(group):
        model = nn.BatchNorm1d(2)
        zero = ZeroAdamW(model, group, 1)
        for _ in range(steps):
            model(torch.ones(2, 2)).sum().backward()
            zero.synchronize()
            zero.step()
            zero.zero_grad()
        save_checkpoint(zero, folder)

    launch(work, ranks)


def test_files_of_several_checkpoints_and_damaged_ones_are_refused(tmp_path):
    first, second, third = (tmp_path / name for name in "abc")
    _save(first, 2)
    _save(second, 2, steps=1)
    _save(third, 1)

    def load():
        model = nn.BatchNorm1d(2)
        load_unsharded(first, model, torch.optim.AdamW(model.parameters()))

    load()
    (first / "rank-0-of-1.pt").write_bytes((third / "rank-0-of-1.pt").read_bytes())
    with pytest.raises(ValueError, match="has files of 1 and of 2 ranks"):
        load()
    (first / "rank-0-of-1.pt").unlink()
    (first / "rank-1-of-2.pt").write_bytes((second / "rank-1-of-2.pt").read_bytes())
    with pytest.raises(ValueError, match=r"rank-1-of-2\.pt and rank-0-of-2\.pt differ in their"):
        load()
    (first / "rank-1-of-2.pt").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"rank-1-of-2\.pt is damaged"):
        load()


def test_another_model_or_buffer_is_refused(tmp_path):
    _save(tmp_path, 1)
    wider = nn.BatchNorm1d(3)
    more = nn.BatchNorm1d(2)
    more.register_buffer("more", torch.ones(1))
    for model, says in (
        (wider, r"2 parameters differ .* bias has shape \(3,\), in the"),
        (more, "no buffers more of these shapes"),
    ):
        with pytest.raises(ValueError, match=says):
            load_unsharded(tmp_path, model, torch.optim.AdamW(model.parameters()))
