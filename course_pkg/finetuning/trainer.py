"""A training loop, and the loss on held-out batches; `masking` and `batches` make the data.

AdamW, warm-up and decay, gradient accumulation, clipping, mixed precision, evaluation, early
stopping, and checkpoints from which a run resumes bit for bit. Chapter: finetuning/sft.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from tqdm import tqdm

from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.injection import adapter_layers
from course_pkg.finetuning.batches import Batch, count_targets, repeat_batches, require_batches
from course_pkg.finetuning.checkpoint import TrainingState, check_path
from course_pkg.finetuning.config import (
    Callback,
    Evaluate,
    FilePath,
    TrainConfig,
    check_arguments,
    learning_rate_at,
)
from course_pkg.finetuning.history import Evaluation, History, StepRecord
from course_pkg.finetuning.masking import IGNORE_INDEX
from course_pkg.finetuning.ranks import Ranks


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    config: TrainConfig,
    *,
    evaluate: Evaluate | None = None,
    checkpoint: FilePath | None = None,
    best_checkpoint: FilePath | None = None,
    restore_best: bool = False,
    resume_from: FilePath | None = None,
    callback: Callback | None = None,
    sharded: bool | None = None,
) -> History:
    """Train every parameter that requires a gradient, in place; return the record of every step.

    batches: a sequence of dicts of tensors in the form that transformers models take (input_ids,
    attention_mask and labels, each (batch, tokens)), reshuffled every epoch; or a repeatable
    iterable, in its order. evaluate: called with the model in eval mode, without gradients; lower
    values are better (see `mean_loss`).
    checkpoint: a file to write; resume_from: a checkpoint to resume, bit for bit on one machine.
    best_checkpoint: another file, written after each evaluation that is the best so far;
    restore_best: end with its weights instead of the last ones.
    callback: `extra_loss()` is added to what is minimized (not to the history), and `after_step()`
    runs after each update; AdaLoRA's is a RankAllocator.
    Under `torchrun`, inside `ranks.process_group`, the processes share the batches of each step;
    each must call `train` with the same model, batches and settings. A checkpoint, which rank 0
    writes and all read, resumes with any number of processes; bit for bit with the same.
    sharded: each process holds only a part of each weight while it trains (FSDP2), and at the end
    the model has them whole; None means yes on GPUs, unless there is a callback.
    The loss of a step is the mean over all target tokens of its batches. The caller's random state
    does not change.
    Raises ValueError for no data, no targets or nothing to train, TypeError for arguments of other
    types, RuntimeError if adapters are merged, OSError if a checkpoint can't be written (before the
    first step, if that is known then), FloatingPointError if a loss or a gradient is not finite
    (fp16 skips such a gradient and lowers its scale).
    """
    ranks = Ranks(sharded, callback)
    with ranks.agree():
        check_arguments(config, evaluate, callback, checkpoint, best_checkpoint, restore_best)
    optional = (evaluate, checkpoint, best_checkpoint, resume_from, callback)
    given = [each is not None for each in optional]
    ranks.require_same("an argument", [replace(config, progress=False), given, ranks.sharded])
    state = TrainingState(model, config, callback, ranks)
    if any(layer.merged for layer in adapter_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) before training")
    if callback is not None:
        callback.start(model, config.steps)
    for path in (checkpoint, best_checkpoint):
        if path is not None:
            ranks.on_first(check_path, path)
    was_training = model.training
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed + ranks.rank)  # each rank drops out other numbers
        with ranks.agree():
            if resume_from is not None:
                state.load(resume_from)
            if best_checkpoint is not None:
                state.check_best(best_checkpoint)
        start = len(state.history.steps) * config.accumulation
        data = repeat_batches(batches, seed=config.seed, shuffle=config.shuffle, start=start)
        try:
            training_loop(state, data, evaluate, checkpoint, best_checkpoint)
            if restore_best and state.history.best is not None:
                with ranks.agree():
                    state.load_weights(best_checkpoint)
            state.give_weights(model)
        finally:
            state.optimizer.zero_grad()
            model.train(was_training)
    state.history.stopped_early = len(state.history.steps) < config.steps
    return state.history


def training_loop(
    state: TrainingState,
    data: Iterator[Batch],
    evaluate: Evaluate | None = None,
    checkpoint: FilePath | None = None,
    best_checkpoint: FilePath | None = None,
) -> None:
    """Take steps until the last one, or until patience is exhausted.

    state: changed in place; a resumed one goes on after its last step. data: batches without end.
    The other arguments, and the errors, are those of `train`.
    """
    model = state.model
    config = state.config
    history = state.history
    ranks = state.ranks
    done = len(history.steps)
    last = config.steps
    steps = range(done + 1, last + 1)
    bar = tqdm(steps, initial=done, total=last, disable=not config.progress or ranks.rank > 0)
    for step in bar:
        if state.finished:
            break
        started = time.perf_counter()
        model.train()
        with ranks.agree():
            batches = list(itertools.islice(data, config.accumulation))
            counts = [count_targets(model, batch) for batch in batches]
            targets = sum(counts)
            if targets == 0:
                raise ValueError(f"step {step} has no target: every label is {IGNORE_INDEX}")
        ranks.require_same(f"the data of step {step}", batches)

        # Forward and backward, batch by batch: each target of the step has the same weight.
        losses = [0.0] * len(batches)
        with ranks.agree(computing=True):
            for index, weight in ranks.deal(counts):
                with state.autocast():
                    part = model(**_on_device(batches[index], state.device)).loss * weight
                state.scaler.scale(part).backward()
                losses[index] += part.item()
        loss = 0.0
        for number, part in enumerate(ranks.sum(losses), start=1):
            loss += _finite(part, f"loss at step {step} (batch {number} of {len(batches)})")
        ranks.sum_gradients(state.parameters.values())
        penalty = None if state.callback is None else state.callback.extra_loss()
        if penalty is not None:
            _finite(penalty.item(), f"callback's loss at step {step}")
            state.scaler.scale(penalty).backward()

        # Clip the gradients, and take AdamW's step at the learning rate of the schedule.
        state.scaler.unscale_(state.optimizer)
        norm = ranks.clip(state.parameters.values(), config.max_grad_norm).item()
        if not state.scaler.is_enabled():  # the scaler of fp16 skips the step instead
            _finite(norm, f"gradient's norm at step {step}")
        rate = learning_rate_at(step, config)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.callback is not None:
            state.callback.after_step(step)
        state.optimizer.zero_grad()
        seconds = time.perf_counter() - started
        history.steps.append(StepRecord(step, loss, rate, norm, targets, seconds))
        bar.set_postfix(loss=f"{loss:.3f}")

        # Evaluate, and write checkpoints.
        if evaluate is not None and (step == last or _due(step, config.evaluate_every)):
            with ranks.agree(computing=True):
                value = _evaluated(evaluate, model)
            history.evaluations.append(Evaluation(step, ranks.of_first(value)))
            if best_checkpoint is not None and history.best is history.evaluations[-1]:
                state.save(best_checkpoint)
        if checkpoint is not None and (state.finished or _due(step, config.checkpoint_every)):
            state.save(checkpoint)


def _due(step: int, every: int) -> bool:
    """Whether something happens at this step; `every` counts steps, and 0 means never."""
    return every > 0 and step % every == 0


def _finite(number: float, name: str) -> float:
    """The number. Raises FloatingPointError if it is infinite or NaN."""
    if not math.isfinite(number):
        raise FloatingPointError(
            f"the {name} is {number}; lower the learning rate, warm up longer, or look at the data"
        )
    return number


def _evaluated(evaluate: Evaluate, model: nn.Module) -> float:
    """The value of a function of the model in eval mode; random numbers are as before it."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        value = evaluate(model.eval())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"evaluate must return a number, got {value!r:.80}") from error


def _on_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood of the target tokens of all batches, in nats per token.

    batches: as for `train`. The result doesn't depend on how examples are put into batches. The
    model computes in eval mode, and then has its old mode again.
    For `train`, write `evaluate=lambda model: mean_loss(model, held_out)`.
    Raises TypeError for a model or batches of other types, ValueError if there is no target.

    >>> from course_pkg.lm.load import load
    >>> tokens = torch.tensor([[72, 105, 33]])
    >>> loss = mean_loss(load("tiny").model, [{"input_ids": tokens, "labels": tokens}])
    >>> 4 < loss < 7  # an untrained model's guess: log(259) is 5.6
    True
    """
    modes = {module: module.training for module in require_model(model).modules()}
    require_batches(batches)
    device = next(model.parameters()).device
    total = 0.0
    targets = 0
    model.eval()
    try:
        for batch in batches:
            if count := count_targets(model, batch):  # without targets, the mean would be 0/0
                total += model(**_on_device(batch, device)).loss.item() * count
                targets += count
    finally:
        for module, training in modes.items():
            module.training = training
    if targets == 0:
        raise ValueError(f"there is no target: no batch, or every label is {IGNORE_INDEX}")
    return total / targets
