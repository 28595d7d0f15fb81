"""A run's record; checkpoints are small and resume bit for bit; early stopping keeps the best."""

import json
import math
from dataclasses import replace

import matplotlib as mpl
import pytest
import torch

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.finetuning.trainer import train
from course_pkg.finetuning.training_state import Evaluation, History, StepRecord
from tests.refusals import require_refusals
from tests.tables import each_row

from .runs import adapted, config, make_batches, same, weights

mpl.use("Agg")
HISTORY = History(
    [StepRecord(step, 3.0 / step, 1e-3, 0.5, 100, 0.25) for step in (1, 2, 3)],
    [Evaluation(2, 1.7), Evaluation(3, 1.2)],
)
BATCHES = make_batches(1)
ADAPTER = {"rank": 2, "target_modules": ["q_proj"]}
CONFIG = config(9, evaluate_every=2, patience=2)
# Evaluations at steps 2, 4, 6, 8, 9: without patience, the best is the one at step 4.
VALUES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.5, 9: 2.2}


class StopsAfter:
    """A path-like object that interrupts the run at the first use after step `step`."""

    def __init__(self, step, path):
        self.step = step
        self.path = path

    def __fspath__(self):
        history = torch.load(self.path)["history"] if self.path.exists() else '{"steps": []}'
        if len(json.loads(history)["steps"]) == self.step:
            raise KeyboardInterrupt
        return str(self.path)


def assert_resumes_exactly(fresh, settings, path):
    """Compare a run with one that is interrupted in the middle and resumed by another model."""
    whole_model = fresh()
    interrupted = fresh()
    resumed_model = fresh()
    whole = train(whole_model, make_batches(), settings)
    half = settings.steps // 2
    with pytest.raises(KeyboardInterrupt):
        every_step = replace(settings, checkpoint_every=1)
        train(interrupted, make_batches(), every_step, checkpoint=StopsAfter(half, path))
    torch.manual_seed(99)  # the state of the caller's generator must not matter
    resumed = train(resumed_model, make_batches(), settings, resume_from=path)
    assert resumed.losses == whole.losses, "the losses must be equal to the last bit"
    norms = [[record.grad_norm for record in history.steps] for history in (resumed, whole)]
    assert norms[0] == norms[1]
    assert same(weights(resumed_model), weights(whole_model))
    assert not same(weights(resumed_model), weights(interrupted))


@pytest.mark.parametrize(("dropout", "schedule"), [(0.3, "linear"), (0.0, "cosine")])
def test_three_steps_and_three_resumed_ones_equal_six_bit_for_bit(tmp_path, dropout, schedule):
    settings = config(6, accumulation=2, warmup_steps=2, schedule=schedule, weight_decay=0.1)
    assert_resumes_exactly(lambda: adapted(dropout), settings, tmp_path / "runs" / "checkpoint.pt")


@pytest.mark.gpu
def test_training_on_a_gpu_resumes_exactly(tmp_path):
    assert_resumes_exactly(lambda: adapted(0.2).cuda(), config(4), tmp_path / "checkpoint.pt")


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    train(adapted(**ADAPTER), BATCHES, config(2), checkpoint=path)
    return path


def test_a_checkpoint_contains_the_adapter_but_not_the_base(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    model = adapted(**ADAPTER)
    assert state["weights"].keys() == trainable_parameters(model).keys()
    assert checkpoint.stat().st_size < 100_000 < 4 * sum(p.numel() for p in model.parameters())
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint.pt"]


def test_resuming_a_finished_run_does_nothing(checkpoint):
    model = adapted(**ADAPTER)
    settings = config(2, checkpoint_every=1)  # a resumed run may change it
    history = train(model, BATCHES, settings, resume_from=checkpoint)
    assert len(history.steps) == 2
    assert same(weights(model), torch.load(checkpoint, weights_only=True)["weights"])


@pytest.mark.parametrize(
    ("settings", "adapter", "says"),
    [
        ({"learning_rate": 1.0}, {}, r"different settings: learning_rate=0\.01, now 1\.0"),
        ({"seed": 4, "accumulation": 2}, {}, "different settings: acc.*=1, now 2, seed=0, now 4"),
        ({}, {"rank": 3}, "different model or adapter: 4 trainable parameters"),
        ({}, {"target_modules": ["q_proj", "v_proj"]}, "different model or adapter: 4 trainable"),
    ],
)
def test_another_run_is_refused_and_not_changed(checkpoint, settings, adapter, says):
    model = adapted(**ADAPTER | adapter)
    before = weights(model)
    with pytest.raises(ValueError, match=f"is from a (run with )?{says}"):
        train(model, BATCHES, config(**{"steps": 2} | settings), resume_from=checkpoint)
    assert same(weights(model), before)


@pytest.mark.parametrize("content", ["empty", "part", "text", "another file of torch"])
def test_a_file_that_is_not_a_checkpoint_is_refused(checkpoint, content):
    if content == "another file of torch":
        torch.save({"weights": {}}, checkpoint)
    else:
        whole = checkpoint.read_bytes()
        checkpoint.write_bytes({"empty": b"", "part": whole[:-100], "text": b"loss"}[content])
    damaged = r"is damaged or not a checkpoint: use a file that train\(.*\) wrote$"
    with pytest.raises(ValueError, match=damaged):
        train(adapted(**ADAPTER), BATCHES, config(2), resume_from=checkpoint)


class Watched:
    """A tiny model with an adapter, and an evaluation whose values are given, by step."""

    def __init__(self, values=VALUES, done=0):
        self.model = adapted(**ADAPTER)
        self.values = iter([value for step, value in values.items() if step > done])
        self.weights = []

    def evaluate(self, model):
        self.weights.append(self.now())
        return next(self.values)

    def now(self):
        return torch.cat([p.detach().flatten() for p in trainable_parameters(self.model).values()])

    def train(self, config=CONFIG, **arguments):
        return train(self.model, BATCHES, config, evaluate=self.evaluate, **arguments)


@pytest.fixture
def files(tmp_path):
    return {"checkpoint": tmp_path / "last.pt", "best_checkpoint": tmp_path / "best.pt"}


def test_a_run_stops_after_as_many_evaluations_without_improvement_as_patience():
    history = Watched().train()
    # 3.0, then 2.0 is the best; 2.5 and 2.5 are two evaluations without improvement.
    assert (len(history.steps), history.stopped_early, history.best) == (8, True, Evaluation(4, 2))
    for patience in (3, 0):
        other = Watched().train(replace(CONFIG, patience=patience))
        assert (len(other.steps), other.stopped_early) == (9, False), "the last step is not early"
        assert other.losses[:8] == history.losses


def test_the_best_weights_are_kept_apart_and_restored_on_request(files):
    plain = Watched()
    restored = Watched()
    plain.train(**files)
    assert torch.equal(plain.now(), plain.weights[-1]), "without the request, the last weights"
    history = restored.train(**files, restore_best=True)
    assert torch.equal(restored.now(), restored.weights[1]) and history.best.step == 4
    assert not torch.equal(restored.now(), restored.weights[-1])
    for name, steps in (("checkpoint", 8), ("best_checkpoint", 4)):
        saved = json.loads(torch.load(files[name], weights_only=True)["history"])
        assert len(saved["steps"]) == steps
    continued = Watched(done=4)
    continued.train(resume_from=files["best_checkpoint"])
    assert torch.equal(continued.now(), plain.now()), "the best checkpoint resumes like the last"


def test_a_stopped_run_stays_stopped_and_goes_on_with_more_patience(files):
    files["restore_best"] = True
    stopped = Watched()
    expected = stopped.train(**files)
    again = Watched()
    assert again.train(resume_from=files["checkpoint"], **files) == expected
    assert not again.weights and torch.equal(again.now(), stopped.now())
    patient = replace(CONFIG, patience=9)
    continued = Watched(done=8)
    history = continued.train(patient, resume_from=files["checkpoint"])
    whole = Watched()
    assert history.losses == whole.train(patient).losses and not history.stopped_early
    assert torch.equal(continued.now(), whole.now())


def test_a_run_without_any_number_ends_with_its_last_weights(tmp_path):
    watched = Watched(dict.fromkeys(VALUES, math.nan))
    history = watched.train(best_checkpoint=tmp_path / "best.pt", restore_best=True)
    assert (history.best, len(history.steps)) == (None, 4) and not list(tmp_path.iterdir())
    assert torch.equal(watched.now(), watched.weights[-1])


def test_another_best_checkpoint_is_refused(files, tmp_path):
    Watched().train(**files)
    last = files["checkpoint"]
    other = tmp_path / "other.pt"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere"):
        Watched().train(resume_from=last, best_checkpoint=tmp_path / "nowhere.pt")
    Watched({2: 1.0, 4: 2.0, 6: 3.0}).train(best_checkpoint=other)
    with pytest.raises(ValueError, match=r"step of this run is 4, but .*other.pt is of step 2"):
        Watched().train(resume_from=last, best_checkpoint=other)


@each_row(
    ("values", "best", "since"),
    [
        ([], None, 0),
        ([5.0], 0, 0),
        ([5.0, 5.0], 0, 1),  # equal is not lower
        ([5.0, 4.9, 4.8], 2, 0),
        ([math.nan, 2.0, 1.0, 1.0], 2, 1),  # the first of the lowest
        ([5.0, math.nan, math.nan], 0, 2),
        ([math.nan, 5.0], 1, 0),
        ([math.inf, math.nan], None, 2),
        ([-1.0, -2.0, -1.5], 1, 1),  # minus an accuracy
    ],
)
def test_the_best_evaluation_and_the_number_since_by_hand(values, best, since):
    evaluations = [Evaluation(step, value) for step, value in enumerate(values)]
    history = History(evaluations=evaluations)
    assert history.best == (None if best is None else evaluations[best])
    assert history.evaluations_since_best == since


def test_json_round_trips():
    assert History.from_json(HISTORY.to_json()) == HISTORY
    assert History.from_json(History().to_json()) == History()
    odd = History([StepRecord(1, 2.0, 1e-3, float("inf"), 1, 0.1)], stopped_early=True)
    assert History.from_json(odd.to_json()) == odd


def test_text_that_is_not_a_history_is_refused():
    for text in ("", "[]", '{"steps": [{"step": 1}], "evaluations": []}'):
        require_refusals((text, "not a training history"), of=History.from_json)


def test_throughput_is_tokens_over_seconds():
    assert HISTORY.tokens_per_second == 300 / 0.75
    assert math.isnan(History().tokens_per_second)


def test_the_plot_shows_losses_and_evaluations_on_the_axes_it_is_given():
    axes = HISTORY.plot()
    assert HISTORY.plot(axes) is axes
    training, evaluation, *marks = History(HISTORY.steps, HISTORY.evaluations).plot().lines
    assert training.get_xydata().tolist() == [[1, 3.0], [2, 1.5], [3, 1.0]]
    assert evaluation.get_xydata().tolist() == [[2, 1.7], [3, 1.2]]
    assert not marks, "the last evaluation is the best"
    assert axes.get_xlabel() == "step" and "nats" in axes.get_ylabel()
    assert len(History(HISTORY.steps).plot().lines) == 1, "no evaluation, no second curve"
    with pytest.raises(ValueError, match="no steps to plot"):
        History().plot()


def test_the_plot_marks_the_best_evaluation_and_an_early_stop():
    worse = [*HISTORY.evaluations, Evaluation(4, 1.9)]
    star, end = History(HISTORY.steps, worse, stopped_early=True).plot().lines[2:]
    assert star.get_xydata().tolist() == [[3, 1.2]] and list(end.get_xdata()) == [3, 3]
    assert (star.get_label(), end.get_label()) == ("best: step 3", "stopped at step 3")
