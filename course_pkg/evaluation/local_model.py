"""Answers of a model in this process: options by log-probabilities, texts greedily.

If a batch fails, its requests are computed one by one, so that only the item at fault is lost.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.adapters.methods import load as add_adapter
from course_pkg.adapters.own_tokenizer import own_tokenizer
from course_pkg.evaluation.continuation_scores import Progress, silent
from course_pkg.evaluation.generation import OpenQuestion
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.evaluation.samples import Answer, ItemRequest
from course_pkg.evaluation.task import CHOICE, Task
from course_pkg.lm.answer_end import stop_at_answer_end
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError

BATCH = 32  # requests; what a killed run has to compute again
SAMPLED = 4096  # weights of each parameter, from both ends, that tell one model from another


class LocalModel:
    """A model that answers requests. name, adapter: for the record."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, name: str, adapter: str | None):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.adapter = adapter

    @property
    def identity(self) -> dict[str, Any]:
        parameter = next(self.model.parameters())
        return {
            "model": self.name,
            "adapter": self.adapter,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "weights": fingerprint(self.model),
        }

    def answers(
        self, task: Task, requests: Sequence[ItemRequest], progress: Progress = silent
    ) -> Iterator[list[tuple[ItemRequest, Answer | Exception]]]:
        for start in range(0, len(requests), BATCH):
            batch = requests[start : start + BATCH]

            def within(share: float, start: int = start, size: int = len(batch)) -> None:
                progress((start + share * size) / len(requests))

            try:
                yield list(zip(batch, self._compute(task, batch, within), strict=True))
            except Exception:  # whatever it is, it may be one item's fault
                for request in batch:
                    yield [(request, self._one(task, request))]

    def _one(self, task: Task, request: ItemRequest) -> Answer | Exception:
        try:
            [answer] = self._compute(task, [request])
        except Exception as error:
            return error
        return answer

    def _compute(
        self, task: Task, batch: Sequence[ItemRequest], progress: Progress = silent
    ) -> Sequence[Answer]:
        questions = [request.question for request in batch]
        if task.kind == CHOICE:
            choices = [question for question in questions if isinstance(question, ChoiceQuestion)]
            return score_questions(
                self.model, self.tokenizer, choices, premise=task.premise, progress=progress
            ).questions
        prompts = [question.prompt for question in questions if isinstance(question, OpenQuestion)]
        return generate_greedy(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=task.max_new_tokens,
            stop=task.stop,
            progress=progress,
        )


def load_model(
    name: str,
    adapter: str | Path | None = None,
    *,
    device: str | None = None,
    dtype: str = "float32",
) -> LocalModel:
    """Load a model by its name, and an adapter in PEFT's format into it. Raises ModelError."""
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in types:
        raise ModelError(f"there is no dtype {dtype!r} for weights: give one of {', '.join(types)}")
    model: nn.Module
    model, tokenizer = load(name, device=device, dtype=types[dtype])
    if adapter is not None:
        try:
            rows = model.get_input_embeddings().num_embeddings
            tokenizer = own_tokenizer(adapter, tokenizer, rows)
            stop_at_answer_end(model, tokenizer)
            model = add_adapter(model, adapter)
        except (ValueError, TypeError, OSError, NotImplementedError) as error:
            raise ModelError(f"the adapter {adapter} can't be used with {name}: {error}") from None
    return LocalModel(model.eval(), tokenizer, name, None if adapter is None else str(adapter))


def fingerprint(model: nn.Module) -> str:
    """16 hexadecimal digits that differ after training, from the ends of each parameter."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        ends = torch.cat((flat[:SAMPLED], flat[-SAMPLED:])).cpu().contiguous()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(ends.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
