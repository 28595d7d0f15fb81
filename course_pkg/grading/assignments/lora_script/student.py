"""`lora-script`, in the student's process: small models to try the functions on, and the files."""

import re
import zlib
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.grading.questions.calling import WrongUse, read_folder, require_pair, require_type
from course_pkg.grading.questions.comparators import wrong_type

FOLDER_BYTES = 4_000_000
Values = dict[str, Any]


class Table(nn.Module):
    """A model with transformers' interface: the logits of a token are a row of a table.

    In training mode they are negated, which stands for dropout. recorded: added to the logits while
    gradients are recorded, so that the numbers show it; zeros add nothing.
    """

    def __init__(self, table: Tensor, recorded: Tensor | float = 0.0) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())
        self.recorded = recorded
        self.unused = nn.Parameter(torch.zeros(1))  # it never has a gradient

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> Any:
        """(batch, tokens) -> logits (batch, tokens, vocabulary)."""
        logits = self.table[input_ids]
        if torch.is_grad_enabled():
            logits = logits + self.recorded
        return SimpleNamespace(logits=-logits if self.training else logits)


def toy_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The distance of the logits from 1, summed over the predicted labels, and their number."""
    real = labels[:, 1:] != -100
    return (logits[:, :-1] - 1).square().mean(-1)[real].sum(), real.sum()


def encode(answer: Any, inputs: Values) -> Values:
    """The token ids and labels that `encode(messages, answer, tokenizer)` gives."""
    ids, labels = require_pair(answer(inputs["messages"], inputs["answer"], tokenizer()))
    return {"input_ids": _integers(ids), "labels": _integers(labels)}


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """One that reads bytes. Its pad token is its end token, and by default it adds a BOS token."""
    from tokenizers.processors import TemplateProcessing

    from course_pkg.lm.tiny import tiny_tokenizer  # transformers takes seconds

    made = tiny_tokenizer()
    made.pad_token = made.eos_token
    bos = made.bos_token
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, made.bos_token_id)]
    )
    return made


def lora(answer: Any, inputs: Values) -> Values:
    """What `add_lora(model, rank, alpha, targets)` trains in a tiny Llama, and what it computes."""
    from course_pkg.lm.tiny import tiny_model

    how = inputs["rank"], inputs["alpha"], list(inputs["targets"])
    model = require_type(answer(tiny_model(inputs["seed"]), *how), nn.Module, "a model")
    trained = {
        re.sub(r"^base_model\.model\.|\.default(\.weight)?$", "", name): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    model.eval()
    with torch.no_grad():
        before = model(input_ids=inputs["input_ids"]).logits
        for name, parameter in trained.items():
            if "lora_" in name:
                parameter.copy_(numbers(name, parameter.shape))
        after = model(input_ids=inputs["input_ids"]).logits
    shapes = {name: list(p.shape) for name, p in sorted(trained.items())}
    return {"trained": shapes, "before": before, "after": after}


def numbers(name: str, shape: torch.Size) -> Tensor:
    """Random numbers that depend on a parameter's name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return 0.1 * torch.randn(shape, generator=generator)


def loss(answer: Any, inputs: Values) -> list[float]:
    """The two numbers that `answer_loss(logits, labels)` gives."""
    return [_number(value) for value in require_pair(answer(inputs["logits"], inputs["labels"]))]


def steps(answer: Any, inputs: Values) -> Values:
    """What `train_step(model, optimizer, batches, loss)` returns, and the weights after it."""
    model = Table(inputs["table"]).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=inputs["rate"])
    returned = []
    weights = []
    for batches in inputs["steps"]:
        returned.append(_number(answer(model, optimizer, batches, toy_loss)))
        weights.append(model.table.detach().clone())
    return {"returned": returned, "weights": weights}


def evaluation(answer: Any, inputs: Values) -> Values:
    """What `evaluate(model, batches, loss)` returns; in some cases recorded gradients show."""
    model = Table(inputs["table"], inputs["_recorded"]).train(inputs["training"])
    loss, exact = require_pair(answer(model, inputs["batches"], toy_loss))
    return {"loss": _number(loss), "exact": _number(exact)}


def adapter(answer: Any, inputs: Values) -> dict[str, bytes]:
    """The files that the student's script wrote."""
    return read_folder(answer, FOLDER_BYTES)


def _integers(values: Any) -> list[int]:
    ids = torch.as_tensor(values)
    if ids.ndim != 1:
        raise WrongUse(f"expected a list of whole numbers, but {type(values).__name__} was given")
    return ids.long().tolist()


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise WrongUse(wrong_type("a number", value))
    return float(value)
