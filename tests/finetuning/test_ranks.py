"""Training on several ranks equals training in one process, and no rank waits for a failed one."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from course_pkg.acceleration.parallel.launch import PRELOAD, launch
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter
from course_pkg.adapters.injection import inject
from course_pkg.adapters.rank_allocator import RankAllocator
from course_pkg.finetuning.config import Callback
from course_pkg.finetuning.ranks import deal
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.lm.load import load
from tests.tables import each_row

from .runs import adapted, config, make_batches, same, weights
from .test_trainer import Toy, numbered

ROOT = Path(__file__).parents[2]
PRELOAD.append("course_pkg.lm.tiny")  # once for all processes, instead of by each
# Ranks add the gradients in another order than one process does.
CLOSE = {"rtol": 0, "atol": 1e-5}
CASES = {  # batches of a step: fewer than ranks, as many, and a number that neither 2 nor 3 divides
    "one": {"accumulation": 1},
    "two": {"accumulation": 2, "weight_decay": 0.1, "max_grad_norm": 0.3},
    "five": {"accumulation": 5, "schedule": "cosine", "warmup_steps": 2},
}


def whole_model():
    return load("tiny").model


def run(fresh, settings, **arguments):
    model = fresh()
    history = train(model, make_batches(), settings, **arguments)
    norms = [record.grad_norm for record in history.steps]
    return {"losses": history.losses, "norms": norms, "weights": weights(model)} | {
        "evaluations": history.evaluations,
        "tokens": [record.tokens for record in history.steps],
    }


def assert_close(one, other):
    """Whether two runs are equal up to the order of additions."""
    assert one["tokens"] == other["tokens"]
    for name in ("losses", "norms"):
        assert one[name] == pytest.approx(other[name], rel=0, abs=1e-5)
    for name, weight in other["weights"].items():
        torch.testing.assert_close(one["weights"][name], weight, **CLOSE)


def equal_runs(one, other):
    numbers = ("losses", "norms", "evaluations")
    return same(one["weights"], other["weights"]) and all(one[n] == other[n] for n in numbers)


SIX = config(6, accumulation=3, evaluate_every=2, precision="fp32")


def scores():
    """An evaluation that is best the first time, at step 2."""
    values = iter([1.0, 2.0, 3.0])
    return lambda model: next(values)


def resumed(path, dropout=0.0, **arguments):
    """Resume SIX from a file of step 2."""
    values = iter([2.0, 3.0])
    fresh = lambda: adapted(dropout)  # noqa: E731
    return run(fresh, SIX, evaluate=lambda model: next(values), resume_from=path, **arguments)


def adalora(**arguments):
    model = load("tiny").model
    plan = AdaLoRAConfig(total_step=6, initial_rank=3, target_rank=1, tinit=1, tfinal=2)
    inject(model, plan)
    allocator = RankAllocator(model)
    settings = config(6, accumulation=2, precision="fp32")
    train(model, make_batches(), settings, callback=allocator, **arguments)
    return allocator.allocations, allocator.masks, weights(model)


class Roots(nn.Module):
    """Its gradient is infinite, in the first of two rows, for the batch with the token 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, input_ids, labels):
        values = self.weight.sqrt() if input_ids[0, 0] == 1 else self.weight * 0.5
        return CausalLMOutput(loss=values.sum())


def skipped_step(path, **arguments):
    """fp16's first of two steps: skipped everywhere, although one rank's gradients are finite."""
    model = Roots()
    settings = config(2, accumulation=2, shuffle=False, precision="fp16", weight_decay=0.5)
    data = [*numbered(2), *(numbered(1) * 2)]  # the second step is finite
    train(model, data, settings, checkpoint=path, **arguments)
    saved = torch.load(path, weights_only=True)
    return weights(model), saved["scaler"]["scale"]


# Which error each rank gets when one of them fails.


class Quiet(Callback):
    pass


class Unsent(Exception):
    """It can't be pickled and read again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class FailsOnOne(list):
    """Batches that one rank can't read."""

    rank = None

    def __getitem__(self, index):
        if self.rank == 1:
            raise OSError("the disk of this rank failed")
        return super().__getitem__(index)


def failures(rank, folder):
    toy = {"config": config(2, accumulation=2, shuffle=False), "batches": numbered(2)}
    rotten = FailsOnOne(numbered(2))
    rotten.rank = rank

    def breaks(weight, token):
        if token == 1:
            raise Unsent("this", "that")
        return weight * 1.0

    def wrong_evaluation(model):
        return None if rank == 1 else 1.0

    trials = {
        "loss": {"model": Toy(lambda weight, token: weight / token)},
        "norm": {"model": Roots(), "sharded": False},
        "data": {"batches": rotten},
        "model fails": {"model": Toy(breaks)},
        "order": {"batches": numbered(2)[:: 1 if rank == 0 else -1]},
        "argument": {"checkpoint": folder / "x.pt" if rank == 0 else None},
        "another model": {"model": adapted(rank=2 + rank)},
        "type": {"evaluate": 0.5 if rank == 1 else None},
        "evaluation": {"evaluate": wrong_evaluation},
        "file": {"checkpoint": "/dev/null/run.pt"},
        "no checkpoint": {"resume_from": folder / f"none-{rank}.pt"},
        "callback": {"callback": Quiet(), "sharded": True},
    }
    found = {}
    for name, changes in trials.items():
        arguments = {"model": Toy(lambda weight, token: weight * 1.0)} | toy | changes
        try:
            train(**arguments)
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def drawn():
    numbers = []

    def loss(weight, token):
        numbers.append(torch.rand(()).item())
        return weight * 1.0

    train(Toy(loss), numbered(4), config(2, accumulation=4))
    return numbers


def bar():
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        train(adapted(), make_batches(1), config(1, progress=True))
    return printed.getvalue()


def disturbed(rank):
    """Rank 0 has the right weights, and rank 1 others."""
    model = adapted()
    if rank == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    return model


def equalities(group, folder):
    result = {name: run(adapted, config(3, **each)) for name, each in CASES.items()}
    result["full"] = run(whole_model, config(2, accumulation=2))
    result["first's weights"] = run(lambda: disturbed(group.rank), config(2))
    result["from one"] = resumed(folder / "one.pt")
    best = folder / f"ranks-{group.size}.pt"
    result["six"] = run(adapted, SIX, evaluate=scores(), best_checkpoint=best)
    result["errors"] = failures(group.rank, folder)
    return result


def all_of_it(group, folder):
    """Everything that the tests below look at, on one of two ranks."""
    result = equalities(group, folder)
    result["first's score"] = run(
        adapted,
        config(9, evaluate_every=1, patience=2),
        evaluate=lambda model: group.rank * torch.rand(()).item() + 1,
    )
    best = folder / "dropout.pt"
    result["dropout"] = run(lambda: adapted(0.3), SIX, evaluate=scores(), best_checkpoint=best)
    result["dropout resumed"] = resumed(best, 0.3)
    result["dropout by others"] = resumed(folder / "one-dropout.pt", 0.3)
    result["adalora"] = adalora()
    result["fp16"] = skipped_step(folder / "fp16.pt")
    result["drawn"] = drawn()
    result["bar"] = bar()
    return result


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    result = {name: run(adapted, config(3, **each)) for name, each in CASES.items()}
    result["full"] = run(whole_model, config(2, accumulation=2))
    result["first's weights"] = run(adapted, config(2))
    best = folder / "one.pt"
    result["six"] = run(adapted, SIX, evaluate=scores(), best_checkpoint=best)
    best = folder / "one-dropout.pt"
    run(lambda: adapted(0.3), SIX, evaluate=scores(), best_checkpoint=best)
    result["adalora"] = adalora()
    result["fp16"] = skipped_step(folder / "one-fp16.pt")
    return folder, result


@pytest.fixture(scope="module")
def pair(alone):
    folder, _ = alone
    return launch(all_of_it, 2, folder, timeout=200)


@pytest.fixture(scope="module")
def trio(alone):
    folder, _ = alone
    return launch(equalities, 3, folder, timeout=200)


@pytest.fixture(params=["pair", pytest.param("trio", marks=pytest.mark.exhaustive)])
def ranks(request):
    return request.getfixturevalue(request.param)


@each_row("name", [*CASES, "full", "first's weights", "six"])
def test_any_number_of_ranks_trains_as_one_process(ranks, alone, name):
    _, expected = alone
    assert_close(ranks[0][name], expected[name])
    for other in ranks[1:]:
        assert equal_runs(other[name], ranks[0][name]), "all ranks have the same, to the last bit"


def test_one_or_two_batches_a_step_give_the_same_bits(ranks, alone):
    """a + b is b + a. The first loss is the same for any number: each batch is computed alone."""
    _, expected = alone
    assert equal_runs(ranks[0]["one"], expected["one"])
    assert equal_runs(ranks[0]["two"], expected["two"])
    assert ranks[0]["five"]["losses"][0] == expected["five"]["losses"][0]


def test_a_checkpoint_resumes_with_another_number_of_ranks(ranks, alone):
    folder, expected = alone
    assert_close(ranks[0]["from one"], expected["six"])
    path = folder / f"ranks-{len(ranks)}.pt"
    assert_close(resumed(path), expected["six"])
    several = torch.load(path, weights_only=True)
    one = torch.load(folder / "one.pt", weights_only=True)
    assert several.keys() == one.keys() and len(several["other_ranks"]) == len(ranks) - 1
    assert several["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]


def test_with_dropout_the_same_number_of_ranks_resumes_bit_for_bit(pair):
    for rank in pair:
        assert equal_runs(rank["dropout resumed"], rank["dropout"])
        assert not equal_runs(rank["dropout"], rank["six"])
        assert equal_runs(rank["dropout by others"], pair[0]["dropout by others"])


def test_each_rank_draws_its_own_random_numbers(pair):
    numbers = [number for rank in pair for number in rank["drawn"]]
    assert len(set(numbers)) == len(numbers) == 8, "4 batches in each of 2 steps, each once"


def test_the_first_ranks_evaluation_decides_on_all(pair):
    """Rank 0 always scores 1, so patience ends the run after 3; the others' scores are random."""
    for rank in pair:
        values = [each.value for each in rank["first's score"]["evaluations"]]
        assert values == [1.0] * 3


def test_adalora_has_the_same_masks_on_all_ranks_and_those_of_one_process(pair, alone):
    _, expected = alone
    allocations, masks, trained = expected["adalora"]
    for rank in pair:
        assert rank["adalora"][0] == allocations and same(rank["adalora"][1], masks)
        assert same(rank["adalora"][2], pair[0]["adalora"][2])
    for name, weight in trained.items():
        torch.testing.assert_close(pair[0]["adalora"][2][name], weight, **CLOSE)


def test_all_ranks_skip_the_step_of_fp16_that_overflows_on_one(pair, alone):
    _, expected = alone
    trained, scale = expected["fp16"]
    assert scale == 2**15 and torch.equal(trained["unused"], torch.ones(2, 2))
    for rank in pair:
        assert same(rank["fp16"][0], trained) and rank["fp16"][1] == scale


SAYS = {
    "loss": r"FloatingPointError: the loss at step 1 \(batch 1 of 2\) is inf; lower the learning",
    "norm": "FloatingPointError: the gradient's norm at step 1 is inf",
    "data": "OSError: the disk of this rank failed",
    "model fails": "(Unsent: |RuntimeError: Unsent: )this and that",
    "order": "ValueError: the data of step 1 differs between rank 0 and rank 1: give every rank",
    "argument": "ValueError: an argument differs between rank 0 and rank 1",
    "another model": "ValueError: the model differs between rank 0 and rank 1",
    "type": "TypeError: evaluate must be a function of the model, got 0.5",
    "evaluation": "TypeError: evaluate must return a number, got None",
    "file": "(NotADirectory|FileExists)Error: .*/dev/null",
    "no checkpoint": "FileNotFoundError: no checkpoint at .*none-0.pt",
    "callback": "ValueError: a callback needs whole weights: train with sharded=False",
}


@each_row("name", SAYS)
def test_a_failure_of_one_rank_is_the_same_error_on_all(ranks, name):
    for rank in ranks:
        assert re.match(SAYS[name], rank["errors"][name]), rank["errors"][name]


def test_only_the_first_rank_shows_a_bar(pair):
    assert "1/1" in pair[0]["bar"]
    assert not any(rank["bar"] for rank in pair[1:])


def in_parts(group, folder):
    held_out = make_batches(2)
    score = {"evaluate": lambda model: mean_loss(model, held_out)}
    result = {"one": run(adapted, config(2, weight_decay=0.1), sharded=True, **score)}
    result["full"] = run(whole_model, config(2, max_grad_norm=0.3), sharded=True)
    best = {"best_checkpoint": folder / "parts.pt", "restore_best": True}
    result["restored"] = run(adapted, SIX, evaluate=scores(), sharded=True, **best)
    result["from one"] = resumed(folder / "one.pt", sharded=True)
    result["fp16"] = skipped_step(folder / "parts-fp16.pt", sharded=True)
    toy = Toy(lambda weight, token: weight.sum(), torch.ones(2))
    with pytest.raises(RuntimeError, match="FSDP2 found no gradient: the model's output must be"):
        train(toy, numbered(1), config(1), sharded=True)
    return result


@pytest.mark.slow
def test_weights_in_parts_train_as_whole_ones(alone):
    folder, expected = alone
    held_out = make_batches(2)
    score = {"evaluate": lambda model: mean_loss(model, held_out)}
    runs = {"one": run(adapted, config(2, weight_decay=0.1), **score), "from one": expected["six"]}
    runs["full"] = run(whole_model, config(2, max_grad_norm=0.3))
    both = first, second = launch(in_parts, 2, folder, timeout=200)
    for name, each in runs.items():
        assert_close(first[name], each)
        assert equal_runs(second[name], first[name])
    (ours,) = first["one"]["evaluations"]
    (theirs,) = runs["one"]["evaluations"]
    assert ours.value == pytest.approx(theirs.value, abs=1e-5)
    # What two ranks save is what one process saves, and it resumes there.
    assert_close(resumed(folder / "parts.pt"), expected["six"])
    parts = torch.load(folder / "parts.pt", weights_only=True)
    one = torch.load(folder / "one.pt", weights_only=True)
    assert parts["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]
    for index, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            torch.testing.assert_close(parts["optimizer"]["state"][index][name], value, **CLOSE)
    # The model ends with the best weights, and fp16 skips a step whose infinity only rank 0 has.
    trained, scale = expected["fp16"]
    for rank in both:
        assert same(rank["restored"]["weights"], parts["weights"])
        assert rank["fp16"][1] == scale and same(rank["fp16"][0], trained)


def test_parts_need_a_process_group():
    with pytest.raises(ValueError, match="sharded=True needs a process group: run the script with"):
        train(adapted(), make_batches(1), config(1), sharded=True)


@each_row("counts", [[3, 1], [0, 2, 0, 5, 1], [4]])
@each_row("size", [1, 2, 3, 8])
def test_every_batch_with_targets_is_dealt_once_and_parts_go_round_together(counts, size):
    weights = [count / sum(counts) for count in counts]
    for equally in (False, True):
        dealt = [deal(weights, rank, size, equally=equally) for rank in range(size)]
        totals = [0.0] * len(counts)
        for index, weight in (batch for own in dealt for batch in own):
            totals[index] += weight
        assert totals == weights
        assert all(weights[index] > 0 for own in dealt for index, _ in own)
        if equally:
            assert len({len(own) for own in dealt}) == 1


def script():
    """The file that the documentation shows, with the tiny model and three steps."""
    page = (ROOT / "book" / "api" / "finetuning.md").read_text("utf-8")
    (recipe,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return recipe.replace("smollm2-135m", "tiny").replace("steps=20", "steps=3")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_documented_script_does_the_same_in_one_process_and_in_two(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("one", "torchrun")]
    for folder in folders:
        folder.mkdir()
        asked = [f'{{"prompt": "{n} + 1?", "response": "{n + 1}."}}\n' for n in range(9)]
        (folder / "mine.jsonl").write_text("".join(asked))
    with monkeypatch.context() as patch:
        patch.chdir(folders[0])
        exec(script(), {})
    (folders[1] / "train.py").write_text(script())
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = subprocess.run(
        [*start, "train.py"],
        cwd=folders[1],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("9 records: 9 kept") == 2, "rank 0 alone prints its two reports"
    assert done.stderr.count("0/3 [00:00<?, ?it/s]") == 1, "and its bar"
    trained = []
    for folder in folders:
        content = torch.load(folder / "run.pt", weights_only=True)
        losses = [step["loss"] for step in json.loads(content["history"])["steps"]]
        model = load("tiny").model
        load_adapter(model, folder / "my-adapter")
        assert same(content["weights"], weights(model)) and len(losses) == 3
        trained.append((losses, content["weights"]))
    one, two = trained
    assert two[0] == pytest.approx(one[0], rel=0, abs=1e-5)
    for name, weight in one[1].items():
        torch.testing.assert_close(two[1][name], weight, **CLOSE)


@pytest.mark.gpu
def test_gpus_train_in_parts_as_a_cpu_does(alone):
    folder, expected = alone
    count = min(2, torch.cuda.device_count())
    for rank in launch(on_gpus, count, folder, timeout=300, backend="nccl"):
        assert rank["losses"] == pytest.approx(expected["six"]["losses"], abs=1e-4)
        for name, weight in expected["six"]["weights"].items():
            assert rank["weights"][name].device.type == "cpu", "the caller's model stays there"
            torch.testing.assert_close(rank["weights"][name], weight, rtol=0, atol=1e-3)


def on_gpus(group, folder):
    return resumed(folder / "one.pt")
