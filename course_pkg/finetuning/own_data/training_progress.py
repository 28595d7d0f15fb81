"""How a run reports on its way: a line for each report, on a terminal only.

The trainer tells a callback when a step is over, but not its loss, which is therefore read from the
model's own output.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from torch import nn

from course_pkg.finetuning.batches import count_targets
from course_pkg.finetuning.config import Callback

REPORTS = 20
Say = Callable[[str], None]


class Progress(Callback):
    """The trainer's callback that reports; say=None is quiet."""

    def __init__(self, model: nn.Module, say: Say | None):
        self.say = say
        self._steps = 0
        self._losses: list[float] = []  # of the steps since the last report
        self._tokens = 0  # targets since the last report
        self._began = self._reported = time.monotonic()
        self._hook = model.register_forward_hook(self._read, with_kwargs=True)

    def start(self, model: nn.Module, steps: int) -> None:
        self._steps = steps
        self._began = self._reported = time.monotonic()

    def after_step(self, step: int) -> None:
        if self.say is None or (step % math.ceil(self._steps / REPORTS) and step != self._steps):
            return
        now = time.monotonic()
        speed = self._tokens / max(now - self._reported, 1e-9)
        left = (now - self._began) / step * (self._steps - step)
        loss = sum(self._losses) / len(self._losses)
        rest = f"   {duration(left)} left" if step < self._steps else ""
        self.say(f"step {step:>4} of {self._steps}   loss {loss:.3f}   {speed:.0f} tokens/s{rest}")
        self._losses.clear()
        self._tokens = 0
        self._reported = now

    def evaluated(self, loss: float) -> None:
        if self.say is not None:
            self.say(f"{'':15}validation loss {loss:.3f}")

    def close(self) -> None:
        self._hook.remove()

    def _read(self, model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if model.training and "labels" in kwargs:
            self._losses.append(output.loss.item())
            self._tokens += count_targets(model, kwargs)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(42.4), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
