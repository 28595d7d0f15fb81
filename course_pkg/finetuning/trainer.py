"""A short training loop with the features of long ones.

AdamW, warm-up and decay, gradient accumulation, clipping, mixed precision, evaluation, and
checkpoints from which a run resumes bit for bit. It trains the parameters that require a gradient:
a LoRA adapter or a whole model. It does not tokenize, pad or mask (see masking and batches).
Chapter: adapters/lora-training.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict

import torch
from torch import Tensor, nn
from tqdm import tqdm

from course_pkg.adapters.injection import adapter_layers, trainable_parameters
from course_pkg.finetuning.callback import Callback
from course_pkg.finetuning.checkpoint import check_path, load_checkpoint, save_checkpoint
from course_pkg.finetuning.config import Precision, TrainConfig, learning_rate_at
from course_pkg.finetuning.history import Evaluation, History, StepRecord
from course_pkg.finetuning.masking import IGNORE_INDEX

Batch = Mapping[str, Tensor]


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
    parameters = trainable_parameters(model)
    if not parameters:
        raise ValueError("no parameter requires a gradient; inject an adapter or unfreeze some")
    if any(layer.merged for layer in adapter_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) before training")
    if callback is not None:
        callback.start(model, config.steps)
    device = next(iter(parameters.values())).device
    dtype = _autocast_dtype(config.precision, device)
    if dtype is torch.float16 and any(p.dtype is torch.float16 for p in parameters.values()):
        raise ValueError("fp16 training needs its trainable parameters in fp32; convert them first")
    if checkpoint is not None:
        check_path(checkpoint)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    optimizer = torch.optim.AdamW(_decay_groups(parameters, config.weight_decay))
    settings = {
        k: v for k, v in asdict(config).items() if k not in ("progress", "checkpoint_every")
    }
    records, evaluations = [], []
    was_training = model.training
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        if resume_from is not None:
            saved = load_checkpoint(resume_from, model, optimizer, scaler, settings, callback)
            records, evaluations = list(saved.steps), list(saved.evaluations)
        stream = _stream(batches, config, start=len(records) * config.accumulation)
        bar = tqdm(total=config.steps, initial=len(records), disable=not config.progress)
        try:
            for step in range(len(records) + 1, config.steps + 1):
                started = time.perf_counter()
                model.train()
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate_at(step, config)
                micro = list(itertools.islice(stream, config.accumulation))
                loss, tokens = _accumulate(model, micro, step, device, dtype, scaler)
                if (penalty := _penalty(callback, step)) is not None:
                    scaler.scale(penalty).backward()
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(parameters.values(), config.max_grad_norm).item()
                if not (math.isfinite(norm) or scaler.is_enabled()):
                    raise FloatingPointError(f"the gradient at step {step} is not finite ({norm})")
                scaler.step(optimizer)
                scaler.update()
                if callback is not None:
                    callback.after_step(step)
                optimizer.zero_grad(set_to_none=True)
                rate, seconds = learning_rate_at(step, config), time.perf_counter() - started
                records.append(StepRecord(step, loss, rate, norm, tokens, seconds))
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}")
                if evaluate is not None and _due(step, config.evaluate_every, config.steps):
                    evaluations.append(Evaluation(step, _evaluate(model, evaluate)))
                if checkpoint is not None and _due(step, config.checkpoint_every, config.steps):
                    history = History(tuple(records), tuple(evaluations))
                    state = None if callback is None else callback.state_dict()
                    save_checkpoint(checkpoint, model, optimizer, scaler, history, settings, state)
        finally:
            bar.close()
            optimizer.zero_grad(set_to_none=True)
            model.train(was_training)
    return History(tuple(records), tuple(evaluations))


def count_targets(batch: Batch, *, shifted: bool) -> int:
    """The number of labels that are predicted; a causal model (shifted) never predicts the first.

    >>> count_targets({"labels": torch.tensor([[5, -100, 7, 8]])}, shifted=True)
    2
    """
    labels = batch["labels"]
    labels = labels[:, 1:] if shifted else labels
    return int((labels != IGNORE_INDEX).sum())


def _accumulate(
    model: nn.Module,
    micro: list[Batch],
    step: int,
    device: torch.device,
    dtype: torch.dtype | None,
    scaler: torch.amp.GradScaler,
) -> tuple[float, int]:
    """Add up the gradients of one step; return its mean loss and its number of targets."""
    for batch in micro:
        if not isinstance(batch, Mapping) or "labels" not in batch:
            raise ValueError('a batch must be a dict of tensors that includes "labels"')
    model_config = getattr(model, "config", None)
    shifted = not getattr(model_config, "is_encoder_decoder", False)
    counts = [count_targets(batch, shifted=shifted and batch["labels"].ndim > 1) for batch in micro]
    total, mean = sum(counts), 0.0
    if total == 0:
        raise ValueError(f"step {step} has no target: every label is {IGNORE_INDEX}")
    for number, (batch, count) in enumerate(zip(micro, counts, strict=True), start=1):
        if count == 0:  # its mean loss would be 0/0
            continue
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = model(**batch).loss * (count / total)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss at step {step} (batch {number} of {len(micro)}) is {value}; lower the "
                "learning rate, warm up longer, or look at the data"
            )
        scaler.scale(loss).backward()
        mean += value
    return mean, total


def _penalty(callback: Callback | None, step: int) -> Tensor | None:
    """The callback's addition to the loss, if there is one; it must be finite."""
    penalty = None if callback is None else callback.extra_loss()
    if penalty is not None and not torch.isfinite(penalty):
        raise FloatingPointError(f"the callback's loss at step {step} is {penalty.item()}")
    return penalty


def _stream(batches: Iterable[Batch], config: TrainConfig, start: int) -> Iterator[Batch]:
    """Yield batches from a position on, epoch by epoch; seed and epoch determine the order."""
    if isinstance(batches, Mapping):
        raise TypeError("batches must be a sequence of batches, got a single batch")
    if hasattr(batches, "__next__"):
        raise TypeError(
            "batches must be repeatable (a list, a DataLoader), got a one-time iterator"
        )
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a list or a DataLoader, got {batches!r:.80}")
    if not (hasattr(batches, "__getitem__") and hasattr(batches, "__len__")):
        endless = itertools.chain.from_iterable(_epochs(batches))
        yield from itertools.islice(endless, start, None)
        return
    if len(batches) == 0:
        raise ValueError("batches is empty: nothing to train on")
    for epoch in itertools.count(start // len(batches)):
        order = list(range(len(batches)))
        if config.shuffle:
            generator = torch.Generator().manual_seed(config.seed + epoch)
            order = torch.randperm(len(batches), generator=generator).tolist()
        yield from (batches[i] for i in order[start % len(batches) :])
        start = 0


def _epochs(batches: Iterable[Batch]) -> Iterator[Iterable[Batch]]:
    while True:
        first = next(iterator := iter(batches), None)
        if first is None:
            raise ValueError("batches is empty: nothing to train on")
        yield itertools.chain([first], iterator)


def _evaluate(model: nn.Module, evaluate: Callable[[nn.Module], float]) -> float:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        value = evaluate(model.eval())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"evaluate must return a number, got {value!r:.80}") from error


def _decay_groups(parameters: Mapping[str, nn.Parameter], weight_decay: float) -> list[dict]:
    """Apply weight decay to matrices, not to vectors (biases, weights of norms)."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = ({"params": matrices, "weight_decay": weight_decay}, {"params": vectors})
    return [{"weight_decay": 0.0, **group} for group in groups if group["params"]]


def _autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    if precision == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)
