"""The training loop: its arithmetic, evaluation, callbacks and errors; and the held-out loss."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration

from course_pkg.adapters.adapter_io import load_adapter
from course_pkg.adapters.injection import trainable_parameters
from course_pkg.finetuning.batches import count_targets
from course_pkg.finetuning.config import Callback
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.finetuning.training_state import Evaluation
from course_pkg.lm.load import load
from tests.tables import each_row

from .runs import adapted, config, make_batches, same, weights


class Toy(nn.Module):
    """A model whose loss is a function of its weight and of a batch's first token."""

    def __init__(self, loss, weight=None):
        super().__init__()
        self.loss = loss
        self.weight = nn.Parameter(torch.ones(()) if weight is None else weight)

    def forward(self, input_ids, labels):
        return type("Output", (), {"loss": self.loss(self.weight, int(input_ids[0, 0]))})


def numbered(count):
    labels = torch.ones(1, 3).long()
    return [{"input_ids": torch.full((1, 3), i), "labels": labels} for i in range(count)]


def test_training_learns_and_changes_only_the_adapter():
    model = adapted()
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    before = weights(model)
    history = train(model, make_batches(1), config(30))
    assert history.losses[-1] < 0.8 * history.losses[0]
    assert all(torch.equal(model.get_parameter(name), p) for name, p in frozen.items())
    assert not any(torch.equal(before[name], p) for name, p in weights(model).items())
    assert [record.step for record in history.steps] == list(range(1, 31))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_without_targets_is_skipped_and_a_step_without_any_is_an_error():
    [good] = make_batches(1)
    empty = {**good, "labels": torch.full_like(good["labels"], -100)}
    alone = adapted()
    beside = adapted()
    first = train(alone, [good], config(2))
    second = train(beside, [good, empty], config(2, accumulation=2))
    assert first.losses == second.losses and same(weights(alone), weights(beside))
    with pytest.raises(ValueError, match="step 1 has no target: every label is -100"):
        train(adapted(), [empty], config(1))


def test_an_encoder_decoder_predicts_every_label():
    labels = torch.tensor([[4, 5, -100, 6], [-100, -100, 7, 8]])
    assert count_targets(load("tiny").model, {"labels": labels}) == 4
    sizes = {"vocab_size": 32, "d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 1, "num_heads": 2}
    t5 = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0))
    history = train(t5, [{"input_ids": labels.abs() % 32, "labels": labels}], config(1))
    assert history.steps[0].tokens == 5


def test_the_callers_random_state_and_mode_do_not_change():
    model = adapted(0.5).eval()
    state = torch.get_rng_state()
    first = train(model, make_batches(), config(2))
    assert torch.equal(torch.get_rng_state(), state) and not model.training
    torch.manual_seed(1)
    assert train(adapted(0.5), make_batches(), config(2)).losses == first.losses
    assert train(adapted(0.5), make_batches(), config(2, seed=1)).losses != first.losses


def test_evaluation_runs_in_eval_mode_and_changes_nothing():
    calls = []

    def evaluate(model):
        calls.append(model.training or torch.is_grad_enabled())
        torch.rand(7)
        return len(calls)

    quiet = adapted(0.3)
    watched = adapted(0.3)
    plain = train(quiet, make_batches(), config(5))
    history = train(watched, make_batches(), config(5, evaluate_every=2), evaluate=evaluate)
    assert calls == [False] * 3
    assert history.evaluations == [Evaluation(2, 1.0), Evaluation(4, 2.0), Evaluation(5, 3.0)]
    assert history.losses == plain.losses and same(weights(quiet), weights(watched))


def order_of(batches, settings):
    seen = []
    train(Toy(lambda weight, token: seen.append(token) or weight * 1.0), batches, settings)
    return seen


def test_every_epoch_sees_every_batch_once_in_a_new_order():
    seen = order_of(numbered(7), config(7, accumulation=3))
    epochs = [seen[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert seen == order_of(numbered(7), config(7, accumulation=3))
    loader = DataLoader(numbered(3), batch_size=None)
    for batches, settings in ((numbered(3), config(5, shuffle=False)), (loader, config(5))):
        assert order_of(batches, settings) == [0, 1, 2, 0, 1]


def test_matrices_decay_and_vectors_do_not():
    idle = Toy(lambda weight, token: 0.0 * (weight.sum() + idle.vector.sum()), torch.ones(2, 2))
    idle.vector = nn.Parameter(torch.ones(2))
    train(idle, numbered(1), config(1, weight_decay=0.5))
    assert torch.allclose(idle.weight, torch.tensor(1 - 1e-2 * 0.5))
    assert torch.equal(idle.vector, torch.ones(2))


@each_row("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_fp32_adapters_to_nearly_the_same_losses(precision):
    model = adapted()
    reference = train(adapted(), make_batches(), config(4, precision="fp32"))
    history = train(model, make_batches(), config(4, precision=precision))
    assert all(p.dtype == torch.float32 for p in trainable_parameters(model).values())
    assert history.losses != reference.losses, "autocast must be on"
    assert history.losses == pytest.approx(reference.losses, rel=2e-2)


def test_the_recipe_for_your_own_examples_runs_as_the_page_has_it(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "book" / "api" / "finetuning.md"
    (recipe,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"prompt": "Why?", "response": "So."}\n' * 5)
    exec(recipe.replace("smollm2-135m", "tiny").replace("steps=20", "steps=2"), {})
    assert load_adapter(load("tiny").model, "my-adapter").rank == 8


def test_the_progress_bar_counts_steps(capsys):
    train(adapted(), make_batches(), config(2, progress=True))
    assert "2/2" in capsys.readouterr().err
    train(adapted(), make_batches(), config(2))
    assert not list(itertools.chain(*capsys.readouterr()))


@each_row(
    ("batches", "error", "says"),
    [
        ([], ValueError, "batches is empty"),
        (DataLoader([], batch_size=None), ValueError, "batches is empty"),
        (iter([1]), TypeError, "got a one-time iterator"),
        ({"input_ids": 1}, TypeError, "got a single batch"),
        ([{"input_ids": torch.ones(1, 3).long()}], ValueError, 'includes "labels"'),
        ([torch.ones(1, 3)], ValueError, "a batch must be a dict of tensors"),
    ],
)
def test_invalid_data_is_an_error(batches, error, says):
    with pytest.raises(error, match=says):
        train(adapted(), batches, config(2))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"config": {"steps": 2}}, TypeError, "config must be a TrainConfig, got {'steps': 2}"),
        ({"evaluate": 0.5}, TypeError, "evaluate must be a function of the model, got 0.5"),
        ({"evaluate": lambda model: None}, TypeError, "evaluate must return a number, got None"),
        ({"callback": print}, TypeError, "callback must have the methods of Callback, got <built"),
        ({"checkpoint": "/"}, IsADirectoryError, "the checkpoint / is a folder"),
        ({"checkpoint": "/dev/null/run.pt"}, OSError, "/dev/null"),
        (
            {"model": load("tiny").model.requires_grad_(False)},
            ValueError,
            "no parameter requires a gradient; inject an adapter",
        ),
        (
            {"config": config(9, patience=2, evaluate_every=2)},
            ValueError,
            r"patience=2 needs evaluate, such as lambda model: mean_loss\(",
        ),
        ({"best_checkpoint": "best.pt"}, ValueError, "best_checkpoint needs evaluate"),
        ({"restore_best": True}, ValueError, "restore_best=True needs best_checkpoint, a file"),
        (
            {"checkpoint": "run.pt", "best_checkpoint": "./run.pt", "evaluate": print},
            ValueError,
            "checkpoint and best_checkpoint need two files, got run.pt twice",
        ),
    ],
)
def test_an_invalid_argument_is_an_error(changes, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = adapted()
    before = [parameter.clone() for parameter in model.parameters()]
    arguments = {"model": model, "batches": make_batches(2), "config": config(1)} | changes
    with pytest.raises(error, match=says):
        train(**arguments)
    if "return" not in says:  # known before the first step
        assert all(map(torch.equal, model.parameters(), before))
    assert not list(tmp_path.iterdir())


def test_a_loss_or_gradient_that_is_not_finite_names_the_step():
    broken = Toy(lambda weight, token: weight / token, torch.ones(()))
    says = r"the loss at step 1 \(batch 1 of 2\) is inf; lower the learning rate"
    with pytest.raises(FloatingPointError, match=says):
        train(broken, numbered(2), config(3, accumulation=2, shuffle=False))
    assert broken.weight.grad is None
    root = Toy(lambda weight, token: weight.sqrt().sum(), torch.zeros(1))
    with pytest.raises(FloatingPointError, match="the gradient's norm at step 1 is inf"):
        train(root, numbered(1), config(1))


class Decay(Callback):
    """Adds half the square of every trained weight, and records what it sees."""

    def __init__(self, model, factor=0.1):
        self.parameters = list(trainable_parameters(model).values())
        self.factor = factor
        self.calls = []
        self.gradients = None

    def start(self, model, steps):
        self.calls.append(("start", steps))

    def extra_loss(self):
        return self.factor / 2 * sum((p**2).sum() for p in self.parameters)

    def after_step(self, step):
        self.gradients = [p.grad.clone() for p in self.parameters]
        self.calls.append(("step", step))

    def state_dict(self):
        return {"calls": len(self.calls)}

    def load_state_dict(self, state):
        self.calls.append(("loaded", state["calls"]))


def test_a_callback_adds_to_the_gradient_once_a_step_and_not_to_the_record():
    settings = config(1, accumulation=3, shuffle=False, max_grad_norm=math.inf)
    histories = []
    callbacks = []
    for factor in (0.0, 0.1):
        model = adapted()
        before = list(weights(model).values())
        callbacks.append(Decay(model, factor))
        histories.append(train(model, make_batches(3), settings, callback=callbacks[-1]))
    pairs = zip(callbacks[0].gradients, callbacks[1].gradients, before, strict=True)
    assert all(torch.allclose(decayed, plain + 0.1 * w, atol=1e-7) for plain, decayed, w in pairs)
    assert histories[0].losses == histories[1].losses
    assert callbacks[1].calls == [("start", 1), ("step", 1)]


def test_a_callbacks_state_is_in_the_checkpoint(tmp_path):
    path = tmp_path / "run.pt"
    model = adapted()
    other = adapted()
    train(model, make_batches(), config(4), checkpoint=path, callback=Decay(model))
    callback = Decay(other)
    train(other, make_batches(), config(4), resume_from=path, callback=callback)
    assert callback.calls == [("start", 4), ("loaded", 5)]
    assert same(weights(other), weights(model))
    with pytest.raises(ValueError, match="is from a run with a callback; resume it in the same"):
        train(adapted(), make_batches(), config(4), resume_from=path)
    train(adapted(), make_batches(), config(4), checkpoint=path)
    fresh = adapted()
    before = weights(fresh)
    with pytest.raises(ValueError, match="is from a run with no callback"):
        train(fresh, make_batches(), config(4), resume_from=path, callback=Decay(fresh))
    assert same(weights(fresh), before)


def test_a_callback_can_refuse_the_run_and_its_loss_must_be_finite():
    class Refuses(Callback):
        def start(self, model, steps):
            raise ValueError(f"not {steps} steps")

    model = adapted()
    before = weights(model)
    for callback, says in (
        (Refuses(), "not 2 steps"),
        (Decay(model, math.inf), "the callback's loss at step 1 is inf"),
    ):
        with pytest.raises((ValueError, FloatingPointError), match=says):
            train(model, make_batches(), config(2), callback=callback)
    assert same(weights(model), before)


def rows(*sizes):
    """Six rows of 12 tokens, with 1 to 11 targets, in batches of these sizes."""
    tokens = torch.randint(0, 256, (6, 12), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    for row, first in enumerate((11, 1, 9, 4, 2, 7)):
        labels[row, :first] = -100
    parts = zip(tokens.split(sizes), labels.split(sizes), strict=True)
    return [{"input_ids": ids, "labels": marked} for ids, marked in parts]


def test_the_held_out_loss_is_the_token_mean_however_examples_are_batched():
    model = load("tiny").model
    (whole,) = rows(6)
    with torch.no_grad():
        logits = model(whole["input_ids"]).logits[:, :-1].double()
    targets = whole["labels"][:, 1:].flatten()
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets).item()
    for sizes in ((6,), (1, 5), (1,) * 6, (4, 2)):
        made = rows(*sizes)
        assert mean_loss(model, made) == pytest.approx(expected, rel=1e-6)
        assert mean_loss(model, iter(made)) == mean_loss(model, made)
    means = [mean_loss(model, [batch]) for batch in rows(1, 5)]
    assert abs(sum(means) / 2 - expected) > 1e-3, "the mean of means is another number"


def test_a_batch_without_targets_adds_nothing_to_the_held_out_loss():
    model = load("tiny").model
    made = rows(3, 3)
    empty = {**made[0], "labels": torch.full_like(made[0]["labels"], -100)}
    assert mean_loss(model, [empty, *made]) == mean_loss(model, made)
    for without in ([empty], []):
        with pytest.raises(ValueError, match="there is no target: no batch, or every label is -10"):
            mean_loss(model, without)


def test_the_held_out_loss_needs_no_gradients_and_restores_every_mode():
    model = load("tiny").model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []
    model.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), any(m.training for m in model.modules())))
    )
    mean_loss(model, rows(6))
    assert seen == [(False, False)]
    assert [module.training for module in model.modules()] == modes


def test_the_held_out_loss_refuses_other_arguments():
    with pytest.raises(TypeError, match="model must be an nn"):
        mean_loss(("model", "tokenizer"), [])
    with pytest.raises(TypeError, match="batches must be a list or a DataLoader, got 3"):
        mean_loss(load("tiny").model, 3)
