"""A short training loop with the features of long ones.

AdamW, warm-up and decay, gradient accumulation, clipping, mixed precision, evaluation, early
stopping, and checkpoints from which a run resumes bit for bit. It trains the parameters that
require a gradient: a LoRA adapter or a whole model. It does not tokenize, pad or mask (see masking
and batches).
Chapter: adapters/lora-training.
"""

import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from course_pkg.adapters.injection import adapter_layers
from course_pkg.finetuning.callback import Callback
from course_pkg.finetuning.checkpoint import check_path
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.evaluation import Batch, count_targets
from course_pkg.finetuning.history import History
from course_pkg.finetuning.logs import TensorBoardLog, summary_writer
from course_pkg.finetuning.optimization import Optimization
from course_pkg.finetuning.order import stream
from course_pkg.finetuning.run import Run

__all__ = ["Batch", "count_targets", "train"]
NO_EVALUATE = "needs evaluate, such as lambda model: mean_loss(model, held_out)"


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    config: TrainConfig,
    *,
    evaluate: Callable[[nn.Module], float] | None = None,
    checkpoint: str | os.PathLike | None = None,
    best_checkpoint: str | os.PathLike | None = None,
    restore_best: bool = False,
    resume_from: str | os.PathLike | None = None,
    callback: Callback | None = None,
    tensorboard: str | os.PathLike | None = None,
) -> History:
    """Train every parameter that requires a gradient, in place; return the record of every step.

    batches: a sequence of dicts of tensors in the form that transformers models take (input_ids,
    attention_mask and labels, each (batch, tokens)), reshuffled every epoch; or a repeatable
    iterable, in its order. evaluate: called with the model in eval mode, without gradients; lower
    values are better (see `evaluation.mean_loss`).
    checkpoint: a file to write; resume_from: a checkpoint to resume, bit for bit on one machine.
    best_checkpoint: another file, written after each evaluation that is the best so far;
    restore_best: end with its weights instead of the last ones.
    callback: adds a penalty to the loss (not to the record), and works after each step; AdaLoRA's
    is a RankAllocator. tensorboard: a folder for TensorBoard's logs, where it is installed.
    The loss of a step is the mean over all target tokens of its batches. The mean of the batches'
    means would give tokens in short batches more weight than tokens in long ones.
    The caller's random state does not change. Raises ValueError for no data, no targets or
    nothing to train, TypeError for arguments of other types, RuntimeError if adapters are merged,
    OSError if a checkpoint can't be written (before the first step, if that is known then),
    FloatingPointError if a loss or a gradient is not finite (fp16 skips such a gradient and lowers
    its scale), ModuleNotFoundError if tensorboard is asked for and missing.
    Source: Loshchilov & Hutter 2019 (AdamW).
    """
    _check_arguments(config, evaluate, callback)
    _check_best(checkpoint, best_checkpoint, restore_best, evaluates=evaluate is not None)
    run = Run(Optimization(model, config), callback)
    if any(layer.merged for layer in adapter_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) before training")
    if tensorboard is not None:
        summary_writer()  # raises now, before a checkpoint changes the model
    if callback is not None:
        callback.start(model, config.steps)
    for path in (checkpoint, best_checkpoint):
        if path is not None:
            check_path(path)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        torch.manual_seed(config.seed)
        if resume_from is not None:
            run.load(resume_from)
        if best_checkpoint is not None:
            run.check_best(best_checkpoint)
        stack.callback(model.train, model.training)
        stack.callback(run.optimization.clear)
        done = len(run.steps)
        bar = tqdm(total=config.steps, initial=done, disable=not config.progress)
        stack.enter_context(closing(bar))
        log = None
        if tensorboard is not None:
            log = stack.enter_context(closing(TensorBoardLog(tensorboard, done + 1)))
        data = stream(
            batches, seed=config.seed, shuffle=config.shuffle, start=done * config.accumulation
        )
        while not run.finished:
            record = run.step(list(itertools.islice(data, config.accumulation)))
            bar.update()
            bar.set_postfix(loss=f"{record.loss:.3f}")
            if log is not None:
                log.add(record)
            if evaluate is not None and _due(record.step, config.evaluate_every, config.steps):
                evaluation = run.evaluate(evaluate)
                if log is not None:
                    log.add(evaluation)
                if best_checkpoint is not None and run.history.best == evaluation:
                    run.save(best_checkpoint)
            due = run.finished or _due(record.step, config.checkpoint_every, config.steps)
            if checkpoint is not None and due:
                run.save(checkpoint)
        if restore_best:
            run.restore_best(best_checkpoint)
    return run.history


def _check_arguments(
    config: TrainConfig,
    evaluate: Callable[[nn.Module], float] | None,
    callback: Callback | None,
) -> None:
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {config!r:.80}")
    if not (evaluate is None or callable(evaluate)):
        raise TypeError(f"evaluate must be a function of the model, got {evaluate!r:.80}")
    if not (callback is None or isinstance(callback, Callback)):
        raise TypeError(f"callback must have the methods of Callback, got {callback!r:.80}")
    if config.patience and evaluate is None:
        raise ValueError(f"patience={config.patience} {NO_EVALUATE}")


def _check_best(
    checkpoint: str | os.PathLike | None,
    best_checkpoint: str | os.PathLike | None,
    restore_best: bool,
    evaluates: bool,
) -> None:
    if best_checkpoint is None:
        if restore_best:
            raise ValueError("restore_best=True needs best_checkpoint, a file for the best weights")
        return
    if not evaluates:
        raise ValueError(f"best_checkpoint {NO_EVALUATE}")
    if checkpoint is not None and Path(checkpoint).resolve() == Path(best_checkpoint).resolve():
        raise ValueError(f"checkpoint and best_checkpoint need two files, got {checkpoint} twice")


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)
