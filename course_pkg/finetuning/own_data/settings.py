"""The settings of `course finetune`, with defaults from the course's own experiments.

Learning rate: in the record sft_settings (SmolLM2-135M, LoRA of rank 8 on all linear layers,
batches of 4) the validation loss is 2.97 nats after a run at 1e-4, 2.79 at 1e-3, 2.78 at 3e-3 and
3.52 at 1e-2, which is worse than before training (2.99). The record peft_methods agrees, on other
data: 1e-3 is within 0.11 nats of the best, 3e-3. So 1e-3 is safe: a tenth of the rate that failed.
IA³'s is a third of its best there, 3e-2. Models of half a billion parameters and more get the rates
that QLoRA (Dettmers et al. 2023) used for Llama: 2e-4 up to 13 billion, 1e-4 from 33 billion.

Epochs: in sft_settings the second pass through 64 examples lowered the validation loss, and the
third did not.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import Columns

METHODS = ("lora", "dora", "ia3")
RATES = ((0.5e9, 1e-3), (20e9, 2e-4), (math.inf, 1e-4))  # below so many parameters
IA3_FACTOR = 10  # IA³ trains few numbers, with larger steps
EVALUATIONS = 8  # about so many on the way
CHECKPOINTS = 20
WARMUP = 8  # the warm-up is this part of the steps, as in sft_settings


@dataclass(frozen=True)
class FinetuneSettings:
    """What a run depends on; the command's options have the same names.

    Attributes:
        prompt, response: templates of the data's fields (`columns`).
        validation: a file; None draws validation_share of the data.
        alpha: None is twice the rank.
        learning_rate: None is `default_learning_rate`.
        epochs: passes through the training examples, which may be a fraction.
        steps: instead of epochs.
    """

    data: Path
    output: Path
    model: str = "smollm2-135m"
    prompt: str | None = None
    response: str | None = None
    validation: Path | None = None
    validation_share: float = 0.1
    method: str = "lora"
    rank: int = 8
    alpha: float | None = None
    learning_rate: float | None = None
    epochs: float = 2.0
    steps: int | None = None
    batch_size: int = 4
    max_length: int = 512
    seed: int = 0
    device: str | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.response is None):
            raise FinetuneError("give --prompt and --response, or neither")
        if self.method not in METHODS:
            raise FinetuneError(f"--method {self.method}: expected {', '.join(METHODS)}")
        for name in ("alpha", "learning_rate", "epochs"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise FinetuneError(f"{_option(name)} {value}: expected a number above 0")
        if not 0 < self.validation_share < 1:
            raise FinetuneError(
                f"--validation-share {self.validation_share}: expected a number between 0 and 1"
            )
        least = {"rank": 1, "steps": 1, "batch_size": 1, "max_length": 2, "seed": 0}
        for name, value in least.items():
            setting = getattr(self, name)
            if setting is not None and setting < value:
                raise FinetuneError(f"{_option(name)} {setting}: expected at least {value}")

    @property
    def scale(self) -> float:
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a resumed run must share, as JSON has them. Files count by content."""
        fields = asdict(self)
        for name in ("data", "validation", "output"):
            fields.pop(name)
        return fields

    @property
    def columns(self) -> Columns | None:
        """How prompts and responses are made; None for data in one of the known formats."""
        if self.prompt is None or self.response is None:
            return None
        return Columns(self.prompt, self.response)

    def adapter_config(self) -> AdapterConfig:
        """The adapter's config. LoRA and DoRA go to all linear layers, as in the records."""
        if self.method == "ia3":
            return IA3Config()
        kind = DoRAConfig if self.method == "dora" else LoRAConfig
        return kind(rank=self.rank, alpha=self.scale, target_modules="all-linear")

    def train_config(self, pieces: int, parameters: int) -> TrainConfig:
        """The trainer's settings, for so many pieces, and a model of so many parameters."""
        in_epoch = math.ceil(pieces / self.batch_size)
        steps = self.steps or max(1, round(self.epochs * in_epoch))
        return TrainConfig(
            steps=steps,
            learning_rate=self.learning_rate or default_learning_rate(self.method, parameters),
            warmup_steps=math.ceil(steps / WARMUP),
            seed=self.seed,
            evaluate_every=math.ceil(steps / EVALUATIONS),
            checkpoint_every=math.ceil(steps / CHECKPOINTS),
            progress=False,
        )


def default_learning_rate(method: str, parameters: int) -> float:
    """The peak rate for a method and a model of this size. Source: the module's docstring."""
    rate = next(rate for below, rate in RATES if parameters < below)
    return rate * IA3_FACTOR if method == "ia3" else rate


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
