"""A short training loop with the features of long ones.

AdamW, warm-up and decay, gradient accumulation, clipping, mixed precision, evaluation, and
checkpoints from which a run resumes bit for bit. It trains the parameters that require a gradient:
a LoRA adapter or a whole model. It does not tokenize, pad or mask (see masking and batches).
Chapter: adapters/lora-training.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable

import torch
from torch import nn
from tqdm import tqdm

from course_pkg.adapters.injection import adapter_layers
from course_pkg.finetuning.callback import Callback
from course_pkg.finetuning.checkpoint import check_path, load_checkpoint, save_checkpoint
from course_pkg.finetuning.config import TrainConfig, learning_rate_at
from course_pkg.finetuning.evaluation import Batch, count_targets
from course_pkg.finetuning.history import Evaluation, History, StepRecord
from course_pkg.finetuning.optimization import Optimization
from course_pkg.finetuning.order import stream

__all__ = ["Batch", "count_targets", "train"]


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    config: TrainConfig,
    *,
    evaluate: Callable[[nn.Module], float] | None = None,
    checkpoint: str | os.PathLike | None = None,
    resume_from: str | os.PathLike | None = None,
    callback: Callback | None = None,
) -> History:
    """Train every parameter that requires a gradient, in place; return the record of every step.

    batches: a sequence of dicts of tensors in the form that transformers models take (input_ids,
    attention_mask and labels, each (batch, tokens)), reshuffled every epoch; or a repeatable
    iterable, in its order. evaluate: called with the model in eval mode, without gradients.
    checkpoint: a file to write; resume_from: a checkpoint to resume, bit for bit on one machine.
    callback: adds a penalty to the loss (not to the record), and works after each step; AdaLoRA's
    is a RankAllocator.
    The loss of a step is the mean over all target tokens of its batches. The mean of the batches'
    means would give tokens in short batches more weight than tokens in long ones.
    The caller's random state does not change. Raises ValueError for no data, no targets or
    nothing to train, TypeError for arguments of other types, RuntimeError if adapters are merged,
    OSError if the checkpoint can't be written (before the first step, if that is known then),
    FloatingPointError if a loss or a gradient is not finite (fp16 skips such a gradient and lowers
    its scale).
    Source: Loshchilov & Hutter 2019 (AdamW).
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {config!r:.80}")
    if not (evaluate is None or callable(evaluate)):
        raise TypeError(f"evaluate must be a function of the model, got {evaluate!r:.80}")
    if not (callback is None or isinstance(callback, Callback)):
        raise TypeError(f"callback must have the methods of Callback, got {callback!r:.80}")
    optimization = Optimization(model, config)
    if any(layer.merged for layer in adapter_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) before training")
    if callback is not None:
        callback.start(model, config.steps)
    if checkpoint is not None:
        check_path(checkpoint)
    records, evaluations = [], []
    was_training = model.training
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        if resume_from is not None:
            saved = load_checkpoint(resume_from, optimization, callback)
            records, evaluations = list(saved.steps), list(saved.evaluations)
        start = len(records) * config.accumulation
        data = stream(batches, seed=config.seed, shuffle=config.shuffle, start=start)
        bar = tqdm(total=config.steps, initial=len(records), disable=not config.progress)
        try:
            for step in range(len(records) + 1, config.steps + 1):
                started = time.perf_counter()
                model.train()
                micro = list(itertools.islice(data, config.accumulation))
                loss, tokens = optimization.accumulate(micro, step)
                if callback is not None:
                    optimization.add(callback.extra_loss(), step)
                norm = optimization.update(step)
                if callback is not None:
                    callback.after_step(step)
                optimization.clear()
                rate, seconds = learning_rate_at(step, config), time.perf_counter() - started
                records.append(StepRecord(step, loss, rate, norm, tokens, seconds))
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}")
                if evaluate is not None and _due(step, config.evaluate_every, config.steps):
                    evaluations.append(Evaluation(step, _evaluate(model, evaluate)))
                if checkpoint is not None and _due(step, config.checkpoint_every, config.steps):
                    history = History(tuple(records), tuple(evaluations))
                    save_checkpoint(checkpoint, optimization, history, callback)
        finally:
            bar.close()
            optimization.clear()
            model.train(was_training)
    return History(tuple(records), tuple(evaluations))


def _evaluate(model: nn.Module, evaluate: Callable[[nn.Module], float]) -> float:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        value = evaluate(model.eval())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"evaluate must return a number, got {value!r:.80}") from error


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)
