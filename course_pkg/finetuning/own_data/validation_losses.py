"""What a run has changed: the loss on validation examples, and what the model writes."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.finetuning.batches import collate, count_targets
from course_pkg.finetuning.own_data.token_examples import TokenExample
from course_pkg.finetuning.trainer import mean_loss
from course_pkg.metrics.paired_loss import LossChange, loss_change

SAMPLES = 4
NEW_TOKENS = 80
FEWEST = 20  # examples; with fewer, an interval by the normal distribution is too narrow


@dataclass(frozen=True)
class Losses:
    """The loss of each validation example, summed over its targets, in nats; and the targets."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Nats per target token, over all examples."""
        return math.fsum(self.nats) / sum(self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean)


@dataclass(frozen=True)
class AnswerPair:
    """What the model wrote for a validation example, and what the example itself has."""

    id: str
    question: str
    before: str
    after: str
    reference: str


def example_losses(model: nn.Module, examples: Sequence[TokenExample], pad: int) -> Losses:
    """The loss of each example by itself, so that two models can be compared in pairs."""
    nats = []
    tokens = []
    for example in examples:
        batches = [collate([piece], pad) for piece in example.pieces]
        targets = sum(count_targets(model, batch) for batch in batches)
        nats.append(mean_loss(model, batches) * targets)
        tokens.append(targets)
    return Losses(tuple(nats), tuple(tokens))


def change(before: Losses, after: Losses) -> LossChange | None:
    """The change per token with its paired interval; None for one example, which has none."""
    if len(before.nats) < 2:
        return None
    return loss_change(after.nats, before.nats, before.tokens)


def sampled(examples: Sequence[TokenExample], seed: int) -> list[TokenExample]:
    """A few examples by a seed, chosen before anything is known about them."""
    chosen = random.Random(seed).sample(range(len(examples)), min(SAMPLES, len(examples)))
    return [examples[index] for index in sorted(chosen)]


def write_samples(
    model: nn.Module, tokenizer: Tokenizer, examples: Sequence[TokenExample]
) -> list[str]:
    """The model's greedy answer to the prompt of each example."""
    prompts = [example.prompt for example in examples]
    written = generate_greedy(model, tokenizer, prompts, max_new_tokens=NEW_TOKENS)
    return [answer.text + ("" if answer.finish == "end" else " […]") for answer in written]
