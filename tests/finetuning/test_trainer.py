"""The training loop: its arithmetic, its schedule, exact resumption, and its errors."""

import copy
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration

from course_pkg.adapters.adapter_io import load_adapter
from course_pkg.adapters.injection import (
    inject,
    merge_adapters,
    trainable_parameters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import count_targets
from course_pkg.finetuning.config import Callback, TrainConfig, learning_rate_at
from course_pkg.finetuning.history import History
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load


def make_batches(count=5, seed=0, rows=2):
    """Batches of unequal length with unequal numbers of masked labels."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for number in range(count):
        tokens = torch.randint(0, 256, (rows, 6 + 3 * number), generator=generator)
        labels = tokens.clone()
        labels[0, : 3 + number] = -100
        mask = torch.ones_like(tokens)
        batches.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return batches


def adapted(dropout=0.0, rank=4):
    model = load("tiny").model
    inject(model, LoRAConfig(rank=rank, dropout=dropout))
    return model


def config(steps, **changes):
    return TrainConfig(**{"steps": steps, "learning_rate": 1e-2, "progress": False} | changes)


def weights(model):
    return {name: p.detach().clone() for name, p in trainable_parameters(model).items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


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


def test_a_step_is_adamws_step_on_the_token_mean_loss():
    """Compare one accumulated step with torch's AdamW on the token mean of all batches."""
    model, batches = adapted(), make_batches(3)
    other = copy.deepcopy(model)
    history = train(model, batches, config(1, accumulation=3, shuffle=False, max_grad_norm=0.05))
    optimizer = torch.optim.AdamW(trainable_parameters(other).values(), lr=1e-2, weight_decay=0.0)
    total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    loss = sum(
        nn.functional.cross_entropy(
            other(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1),
            batch["labels"][:, 1:].flatten(),
            reduction="sum",
        )
        for batch in batches
    )
    (loss / total).backward()
    norm = nn.utils.clip_grad_norm_(trainable_parameters(other).values(), 0.05)
    optimizer.step()
    record = history.steps[0]
    assert record.loss == pytest.approx((loss / total).item(), rel=1e-6)
    assert record.grad_norm == pytest.approx(norm.item(), rel=1e-4) and norm > 0.05
    assert (record.tokens, record.learning_rate) == (total, 1e-2)
    for name, parameter in weights(other).items():
        assert torch.allclose(model.get_parameter(name), parameter, rtol=1e-3, atol=1e-6), name


def test_accumulation_weights_tokens_and_not_batches():
    batches = make_batches(4)
    model = adapted()
    counts = [count_targets(model, batch) for batch in batches]
    with torch.no_grad():
        means = [model(**batch).loss.item() for batch in batches]
    by_token = sum(m * n for m, n in zip(means, counts, strict=True)) / sum(counts)
    mean_of_means = sum(means) / len(means)
    assert abs(by_token - mean_of_means) > 1e-3, "the test needs means that differ"
    history = train(model, batches, config(1, accumulation=4))
    assert history.losses[0] == pytest.approx(by_token, rel=1e-6)


def test_accumulating_four_batches_equals_one_batch_of_four():
    tokens = torch.randint(0, 256, (8, 9), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[:5, 3:] = -100
    whole = {"input_ids": tokens, "labels": labels}
    parts = [{name: t[i : i + 2] for name, t in whole.items()} for i in range(0, 8, 2)]
    one, four = adapted(), adapted()
    first = train(one, [whole], config(3))
    second = train(four, parts, config(3, accumulation=4))
    assert first.losses == pytest.approx(second.losses, rel=1e-5)
    for name, parameter in weights(one).items():
        assert torch.allclose(four.get_parameter(name), parameter, atol=2e-5), name


def test_a_batch_without_targets_is_skipped_and_a_step_without_any_is_an_error():
    good, empty = make_batches(1)[0], make_batches(1, seed=1)[0]
    empty["labels"] = torch.full_like(empty["labels"], -100)
    alone, beside = adapted(), adapted()
    first = train(alone, [good], config(2))
    second = train(beside, [good, empty], config(2, accumulation=2))
    assert first.losses == second.losses and same(weights(alone), weights(beside))
    with pytest.raises(ValueError, match="step 1 has no target: every label is -100"):
        train(adapted(), [empty], config(1))


def test_targets_are_counted_as_the_model_counts_them():
    labels = torch.tensor([[4, 5, -100, 6], [-100, -100, 7, 8]])
    assert count_targets(load("tiny").model, {"labels": labels}) == 4
    t5 = T5ForConditionalGeneration(
        T5Config(
            vocab_size=32,
            d_model=8,
            d_ff=8,
            d_kv=4,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
            dropout_rate=0.0,
        )
    )
    history = train(t5, [{"input_ids": labels.abs() % 32, "labels": labels}], config(1))
    assert history.steps[0].tokens == 5, "an encoder-decoder does not shift its labels"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_three_steps_and_three_resumed_ones_equal_six_bit_for_bit(tmp_path, dropout, schedule):
    settings = config(6, accumulation=2, warmup_steps=2, schedule=schedule, weight_decay=0.1)
    batches, path = make_batches(5), tmp_path / "runs" / "checkpoint.pt"
    through = adapted(dropout)
    whole = train(through, batches, settings)

    interrupted = adapted(dropout)
    with pytest.raises(KeyboardInterrupt):
        every_step = replace(settings, checkpoint_every=1)
        train(interrupted, batches, every_step, checkpoint=_StopsAfter(3, path))
    fresh = adapted(dropout)
    torch.manual_seed(99)  # the state of the caller's generator must not matter
    resumed = train(fresh, batches, settings, resume_from=path)
    assert resumed.losses == whole.losses, "the losses must be equal to the last bit"
    norms = [[record.grad_norm for record in history.steps] for history in (resumed, whole)]
    assert norms[0] == norms[1]
    assert same(weights(fresh), weights(through))
    assert not same(weights(fresh), weights(interrupted))


class _StopsAfter:
    """A path-like object that interrupts the run after `step` writes."""

    def __init__(self, step, path):
        self.left, self.path = step, path

    def __fspath__(self):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return str(self.path)


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

    quiet, watched = adapted(0.3), adapted(0.3)
    plain = train(quiet, make_batches(), config(5))
    history = train(watched, make_batches(), config(5, evaluate_every=2), evaluate=evaluate)
    assert calls == [False] * 3
    assert [(e.step, e.value) for e in history.evaluations] == [(2, 1.0), (4, 2.0), (5, 3.0)]
    assert history.losses == plain.losses and same(weights(quiet), weights(watched))


def order_of(batches, settings):
    """The numbers of the batches in the order in which training saw them."""
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, input_ids, labels):
            seen.append(int(input_ids[0, 0]))
            return type("Output", (), {"loss": self.weight * 1.0})

    history = train(Spy(), batches, settings)
    assert isinstance(history, History)
    return seen


def numbered(count):
    return [
        {"input_ids": torch.full((1, 3), i), "labels": torch.ones(1, 3).long()}
        for i in range(count)
    ]


def test_every_epoch_sees_every_batch_once_in_a_new_order():
    seen = order_of(numbered(7), config(7, accumulation=3))
    epochs = [seen[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert seen == order_of(numbered(7), config(7, accumulation=3))
    assert order_of(numbered(3), config(5, shuffle=False)) == [0, 1, 2, 0, 1]


def test_an_iterable_keeps_its_order():
    loader = DataLoader(numbered(3), batch_size=None, shuffle=False)
    assert order_of(loader, config(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_vectors_do_not_decay_and_matrices_do():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix, self.vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))

        def forward(self, labels):
            loss = 0.0 * (self.matrix.sum() + self.vector.sum())
            return type("Output", (), {"loss": loss})

    model = Idle()
    train(model, [{"labels": torch.ones(1, 3).long()}], config(1, weight_decay=0.5))
    assert torch.allclose(model.matrix, torch.tensor(1 - 1e-2 * 0.5))
    assert torch.equal(model.vector, torch.ones(2))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Warm-up 0.5, 1; then from 1 at step 2 to 0 at step 7, in five steps: on a line …
        ("linear", [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]),
        # … or on half a cosine: (1 + cos(π/5)) / 2 = 0.9045, …
        ("cosine", [0.5, 1.0, 0.9045, 0.6545, 0.3455, 0.0955]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_by_hand(schedule, expected):
    settings = TrainConfig(steps=6, learning_rate=1.0, warmup_steps=2, schedule=schedule)
    rates = [learning_rate_at(step, settings) for step in range(1, 7)]
    assert rates == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("warmup", [0, 1, 3, 4, 100])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_every_learning_rate_is_positive_and_at_most_the_peak(warmup, schedule):
    settings = TrainConfig(steps=4, learning_rate=3e-4, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate_at(step, settings) for step in range(1, 5)]
    assert all(0 < rate <= 3e-4 for rate in rates)
    assert max(rates) == (3e-4 if warmup <= 4 else 3e-4 * 4 / 100)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_fp32_adapters_to_nearly_the_same_losses(precision):
    model, exact = adapted(), adapted()
    reference = train(exact, make_batches(), config(4, precision="fp32"))
    history = train(model, make_batches(), config(4, precision=precision))
    assert all(p.dtype == torch.float32 for p in trainable_parameters(model).values())
    assert history.losses != reference.losses, "autocast must be on"
    assert history.losses == pytest.approx(reference.losses, rel=2e-2)


def test_a_16_bit_base_trains_without_autocast():
    model = load("tiny", dtype=torch.bfloat16).model
    inject(model, LoRAConfig(rank=4))
    assert train(model, make_batches(1), config(10)).losses[-1] < 5.6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu_resumes_exactly(tmp_path):
    def fresh():
        return adapted(0.2).cuda()

    whole_model = fresh()
    whole = train(whole_model, make_batches(), config(4))
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        train(
            fresh(), make_batches(), config(4, checkpoint_every=1), checkpoint=_StopsAfter(2, path)
        )
    model = fresh()
    assert train(model, make_batches(), config(4), resume_from=path).losses == whole.losses
    assert same(weights(model), weights(whole_model))


def test_the_recipe_for_your_own_examples_runs_as_the_page_has_it(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "book" / "api" / "finetuning.md"
    (recipe,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"prompt": "Why?", "response": "So."}\n' * 5)
    exec(recipe.replace("smollm2-135m", "tiny").replace("steps=20", "steps=2"), {})
    assert load_adapter(load("tiny").model, "my-adapter").rank == 8


def test_nothing_to_train_is_an_error():
    model = load("tiny").model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter requires a gradient; inject an adapter"):
        train(model, make_batches(), config(1))


def test_merged_adapters_are_not_trained():
    model = adapted()
    merge_adapters(model)
    with pytest.raises(RuntimeError, match=r"call unmerge_adapters\(model\) before training"):
        train(model, make_batches(), config(1))


@pytest.mark.parametrize(
    ("batches", "error", "says"),
    [
        ([], ValueError, "batches is empty"),
        (DataLoader([], batch_size=None), ValueError, "batches is empty"),
        (iter([1]), TypeError, "got a one-time iterator"),
        ({"input_ids": 1}, TypeError, "got a single batch"),
        ([{"input_ids": torch.ones(1, 3).long()}], ValueError, 'includes "labels"'),
        ([torch.ones(1, 3)], ValueError, "a batch must be a dict of tensors"),
        (None, TypeError, "batches must be a list or a DataLoader, got None"),
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
        ({"model": ("model", "tokenizer")}, TypeError, "model must be an nn.Module, got tuple"),
    ],
)
def test_an_invalid_argument_is_an_error(changes, error, says):
    model = adapted()
    before = [parameter.clone() for parameter in model.parameters()]
    arguments = {"model": model, "batches": make_batches(2), "config": config(1)} | changes
    with pytest.raises(error, match=says):
        train(**arguments)
    if "return" not in says:  # known before the first step
        assert all(map(torch.equal, model.parameters(), before))


def test_a_loss_that_is_not_finite_names_the_step_and_batch():
    model, batches = adapted(), make_batches(2)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.lora_B["default"][0, 0] = math.nan
    says = r"the loss at step 1 \(batch 1 of 2\) is nan; lower the learning rate"
    with pytest.raises(FloatingPointError, match=says):
        train(model, batches, config(3, accumulation=2))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_names_the_step():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, labels):
            return type("Output", (), {"loss": self.weight.sqrt().sum()})

    batch = {"labels": torch.ones(1, 3).long()}
    with pytest.raises(FloatingPointError, match="the gradient's norm at step 1 is inf"):
        train(Root(), [batch], config(1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"accumulation": 0}, "accumulation must be an integer of at least 1"),
        ({"steps": 2.5}, "steps must be an integer of at least 1, got 2.5"),
        ({"warmup_steps": 0.1}, "warmup_steps must be an integer of at least 0, got 0.1"),
        ({"learning_rate": -1e-3}, "learning_rate must be at least 0"),
        ({"learning_rate": math.nan}, "learning_rate must be"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"weight_decay": math.inf}, "weight_decay"),
        ({"max_grad_norm": 0}, "max_grad_norm must be above 0 .or inf., got 0"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"precision": "int8"}, "precision must be one of"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(changes, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(**{"steps": 1} | changes)


@pytest.mark.parametrize("name", ["steps", "seed", "learning_rate", "max_grad_norm"])
def test_a_setting_that_is_not_a_number_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be a number, got '1e-3'"):
        TrainConfig(**{"steps": 1} | {name: "1e-3"})


def test_the_progress_bar_counts_steps(capsys):
    train(adapted(), make_batches(), config(2, progress=True))
    assert "2/2" in capsys.readouterr().err
    train(adapted(), make_batches(), config(2))
    assert not list(itertools.chain(*capsys.readouterr()))


class Decay(Callback):
    """Adds half the square of every trained weight, and records what it sees."""

    def __init__(self, model, factor=0.1):
        self.parameters = list(trainable_parameters(model).values())
        self.factor, self.calls, self.gradients = factor, [], None

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
    histories, callbacks = [], []
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
    model, other = adapted(), adapted()
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
    with pytest.raises(ValueError, match="not 2 steps"):
        train(model, make_batches(), config(2), callback=Refuses())
    with pytest.raises(FloatingPointError, match="the callback's loss at step 1 is inf"):
        train(model, make_batches(), config(2), callback=Decay(model, factor=math.inf))
    assert same(weights(model), before)
