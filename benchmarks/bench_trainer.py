"""One step of our training loop and of transformers' Trainer and TRL's SFTTrainer, in turns.

Each loop runs in a thread of its own and waits after every step, so one step of one loop can be
timed at a time: batches, loss, gradient, clipping, AdamW, schedule and record. Starting a loop is
not part of it. All train copies of the same model with the same adapter; TRL's row is there where
trl is installed.
"""

import copy
import importlib.util
import threading
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.bench_lora import ALPHA, RANK, build_model
from benchmarks.compare import Comparison, compare_times
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import Callback, TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load

LIMIT = 1.05
ENDLESS = 10**9  # steps; the benchmark stops the loops
RATE = 1e-5


class Stopped(Exception):
    """Ends a loop from its callback."""


class Stepper:
    """Runs a loop in a thread, one step per call; the loop calls `wait` after each step."""

    def __init__(self, loop: Callable[[Callable[[], None]], Any]) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.stopping = False
        self.thread = threading.Thread(target=self._run, args=(loop,), daemon=True)

    def _run(self, loop: Callable[[Callable[[], None]], Any]) -> None:
        self.go.acquire()
        try:
            loop(self.wait)
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
        self.done.release()

    def wait(self) -> None:
        """Hand control back until the next step is asked for."""
        self.done.release()
        self.go.acquire()
        if self.stopping:
            raise Stopped

    def __call__(self) -> None:
        """Take one step; the first call also starts the loop."""
        if not self.thread.is_alive():
            self.thread.start()
        self.go.release()
        self.done.acquire()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End the loop."""
        self.stopping = True
        self.go.release()
        self.thread.join()


def measure(seconds: float = 60.0) -> Iterator[Comparison]:
    """Time per step on the tiny model and on a model of SmolLM2's size, with LoRA."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    others = {"transformers' Trainer": transformers_loop}
    if importlib.util.find_spec("trl"):
        others["TRL's SFTTrainer"] = trl_loop
    name, large = build_model()
    models = {"tiny": (load("tiny").model, 4, 64), name: (large, *_size(device))}
    share = seconds / len(models) / len(others)
    for label, (model, rows, length) in models.items():
        inject(model.to(device), LoRAConfig(RANK, ALPHA))
        batches = _batches(model.config.vocab_size, rows, length)
        for other, loop in others.items():
            what = f"step, ours and {other}, {label}, {rows} × {length} tokens, {device.type}"
            with TemporaryDirectory() as folder:
                ours = Stepper(our_loop(copy.deepcopy(model), batches))
                theirs = Stepper(loop(copy.deepcopy(model), batches, folder))
                yield compare_times(what, ours, theirs, seconds=share, limit=LIMIT, warmup=3)
                ours.stop()
                theirs.stop()


def _size(device: torch.device) -> tuple[int, int]:
    return (4, 512) if device.type == "cuda" else (1, 64)


def _batches(vocabulary: int, rows: int, length: int, count: int = 16) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    shape = count, rows, length
    ids = torch.randint(vocabulary, shape, generator=generator)
    labels = ids.clone()
    labels[..., : length // 2] = -100  # the questions
    mask = torch.ones_like(ids)
    return [
        {"input_ids": ids[n], "attention_mask": mask[n], "labels": labels[n]} for n in range(count)
    ]


def our_loop(model: nn.Module, batches: list[dict]) -> Callable:
    """Our loop, in fp32."""

    class Waits(Callback):
        def __init__(self, wait: Callable[[], None]) -> None:
            self.wait = wait

        def after_step(self, step: int) -> None:
            self.wait()

    config = TrainConfig(
        steps=ENDLESS, learning_rate=RATE, schedule="constant", precision="fp32", progress=False
    )
    return lambda wait: train(model, batches, config, callback=Waits(wait))


class _TheirWait(TrainerCallback):
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def on_step_end(self, *arguments, **options) -> None:
        self.wait()


def _options(folder: str) -> dict[str, Any]:
    """Our settings for their loops, without files, logs and a bar; the rest is their default."""
    return {
        "output_dir": folder,
        "max_steps": ENDLESS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        "disable_tqdm": True,
    }


def transformers_loop(model: nn.Module, batches: list[dict], folder: str) -> Callable:
    """The loop of transformers on ready batches."""

    def loop(wait: Callable[[], None]) -> None:
        Trainer(
            model,
            TrainingArguments(per_device_train_batch_size=1, **_options(folder)),
            data_collator=lambda examples: examples[0],
            train_dataset=batches,
            callbacks=[_TheirWait(wait)],
        ).train()

    return loop


def trl_loop(model: nn.Module, batches: list[dict], folder: str) -> Callable:
    """TRL's loop on tokenized rows, without its default recomputation of activations and bf16."""
    import trl
    from datasets import Dataset

    rows = [
        {name: batch[name][row].tolist() for name in ("input_ids", "labels")}
        for batch in batches
        for row in range(len(batch["input_ids"]))
    ]
    size = len(batches[0]["input_ids"])

    def loop(wait: Callable[[], None]) -> None:
        trl.SFTTrainer(
            model,
            trl.SFTConfig(
                per_device_train_batch_size=size,
                gradient_checkpointing=False,
                bf16=False,
                **_options(folder),
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=load("tiny").tokenizer,
            callbacks=[_TheirWait(wait)],
        ).train()

    return loop
