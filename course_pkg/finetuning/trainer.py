"""A training loop, and the loss on held-out batches; `masking` and `batches` make the data.

AdamW, warm-up and decay, gradient accumulation, clipping, mixed precision, evaluation, early
stopping, and checkpoints from which a run resumes bit for bit.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.injection import adapter_layers
from course_pkg.finetuning.batches import (
    Batch,
    count_targets,
    on_device,
    repeat_batches,
    require_batches,
)
from course_pkg.finetuning.config import (
    Callback,
    Evaluate,
    FilePath,
    TrainConfig,
    learning_rate_at,
)
from course_pkg.finetuning.masking import IGNORE_INDEX
from course_pkg.finetuning.ranks import Ranks, SharedState
from course_pkg.finetuning.training_state import Evaluation, History, StepRecord, TrainingState


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

    The loss of a step is the mean over all target tokens of its batches. The caller's random state
    does not change. Under `torchrun`, inside `ranks.process_group`, the processes share the batches
    of each step; each must call `train` with the same model, batches and settings.

    Args:
        batches: a sequence of dicts of tensors in the form that transformers models take
            (input_ids, attention_mask and labels, each (batch, tokens)), reshuffled every epoch;
            or a repeatable iterable, in its order.
        evaluate: called with the model in eval mode, without gradients; lower values are better
            (see `mean_loss`).
        best_checkpoint: a file, written after each evaluation that is the best so far.
        restore_best: end with the weights of `best_checkpoint` instead of the last ones.
        resume_from: a checkpoint; bit for bit on one machine with the same number of processes.
        callback: `extra_loss()` is added to what is minimized (not to the history), and
            `after_step()` runs after each update; AdaLoRA's is a RankAllocator.
        sharded: each process holds only a part of each weight while it trains (FSDP2), and at the
            end the model has them whole; None means yes on GPUs, unless there is a callback.

    Raises:
        OSError: a checkpoint can't be written (before the first step, if that is known then).
        FloatingPointError: a loss or a gradient is not finite (fp16 skips such a gradient and
            lowers its scale).
    """
    ranks = Ranks()
    with ranks.agreement():
        _check_arguments(config, evaluate, callback, checkpoint, best_checkpoint, restore_best)
        if ranks.together:
            optional = (evaluate, checkpoint, best_checkpoint, resume_from, callback)
            present = [argument is not None for argument in optional]
            ranks.require_same("an argument", [replace(config, progress=False), present, sharded])
            state = SharedState(model, config, callback, ranks, sharded)
        elif sharded:
            raise ValueError(
                "sharded=True needs a process group: run the script with torchrun, and train "
                "inside `with process_group():`"
            )
        else:
            state = TrainingState(model, config, callback)
        if any(layer.merged for layer in adapter_layers(model).values()):
            raise RuntimeError("adapters are merged; call unmerge_adapters(model) before training")
        if callback is not None:
            callback.start(model, config.steps)
        for path in (checkpoint, best_checkpoint):
            if path is not None:
                state.check_path(path)
        was_training = model.training
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(state.seed)
            if resume_from is not None:
                state.load(resume_from)
            if best_checkpoint is not None:
                state.check_best(best_checkpoint)
            start = len(state.history.steps) * config.accumulation
            data = repeat_batches(batches, seed=config.seed, shuffle=config.shuffle, start=start)
            try:
                training_loop(state, data, evaluate, checkpoint, best_checkpoint)
                if restore_best and state.history.best is not None:
                    state.load_weights(best_checkpoint)
                return state.finish()
            finally:
                state.optimizer.zero_grad()
                model.train(was_training)


def training_loop(
    state: TrainingState,
    data: Iterator[Batch],
    evaluate: Evaluate | None = None,
    checkpoint: FilePath | None = None,
    best_checkpoint: FilePath | None = None,
) -> None:
    """Take steps until the last one, or until patience is exhausted; `data` is without end."""
    config = state.config
    history = state.history
    done = len(history.steps)
    steps = range(done + 1, config.steps + 1)
    bar = tqdm(steps, initial=done, total=config.steps, disable=not config.progress)
    for step in bar:
        if state.finished:
            break
        started = time.perf_counter()
        state.model.train()
        batches = list(itertools.islice(data, config.accumulation))
        counts = [count_targets(state.model, batch) for batch in batches]
        targets = sum(counts)
        if targets == 0:
            raise ValueError(f"step {step} has no target: every label is {IGNORE_INDEX}")

        # Forward and backward, batch by batch: each target of the step has the same weight.
        losses = state.backward(batches, [count / targets for count in counts])
        loss = 0.0
        for number, part in enumerate(losses, start=1):
            loss += _finite(part, f"loss at step {step} (batch {number} of {len(batches)})")
        penalty = None if state.callback is None else state.callback.extra_loss()
        if penalty is not None:
            _finite(penalty.item(), f"callback's loss at step {step}")
            state.scaler.scale(penalty).backward()

        # Clip the gradients, and take AdamW's step at the learning rate of the schedule.
        norm = state.clip_gradients()
        if not state.scaler.is_enabled():  # the scaler of fp16 skips the step instead
            _finite(norm, f"gradient's norm at step {step}")
        rate = learning_rate_at(step, config)
        state.update(rate)
        if state.callback is not None:
            state.callback.after_step(step)
        state.optimizer.zero_grad()
        seconds = time.perf_counter() - started
        history.steps.append(StepRecord(step, loss, rate, norm, targets, seconds))
        bar.set_postfix(loss=f"{loss:.3f}")

        # Evaluate, and write checkpoints.
        if evaluate is not None and (step == config.steps or _due(step, config.evaluate_every)):
            history.evaluations.append(Evaluation(step, state.evaluate(evaluate)))
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


def _check_arguments(
    config: TrainConfig,
    evaluate: Evaluate | None,
    callback: Callback | None,
    checkpoint: FilePath | None,
    best_checkpoint: FilePath | None,
    restore_best: bool,
) -> None:
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {config!r:.80}")
    if not (evaluate is None or callable(evaluate)):
        raise TypeError(f"evaluate must be a function of the model, got {evaluate!r:.80}")
    if not (callback is None or isinstance(callback, Callback)):
        raise TypeError(f"callback must have the methods of Callback, got {callback!r:.80}")
    if restore_best and best_checkpoint is None:
        raise ValueError("restore_best=True needs best_checkpoint, a file for the best weights")
    needing = {f"patience={config.patience}": config.patience, "best_checkpoint": best_checkpoint}
    for name, value in needing.items():
        if value and evaluate is None:
            raise ValueError(
                f"{name} needs evaluate, such as lambda model: mean_loss(model, held_out)"
            )
    both = [Path(path).resolve() for path in (checkpoint, best_checkpoint) if path is not None]
    if len(both) > len(set(both)):
        raise ValueError(f"checkpoint and best_checkpoint need two files, got {checkpoint} twice")


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood of the target tokens of all batches, in nats per token.

    It doesn't depend on how examples are put into batches. The model computes in eval mode, and
    then has its old mode again.
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
                total += model(**on_device(batch, device)).loss.item() * count
                targets += count
    finally:
        for module, training in modes.items():
            module.training = training
    if targets == 0:
        raise ValueError(f"there is no target: no batch, or every label is {IGNORE_INDEX}")
    return total / targets
