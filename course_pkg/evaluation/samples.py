"""Samples: what a model was asked for each item, what came back, and what that scores.

A request is an item with its whole prompt. A sample is a request with its answer, as plain data,
one line of JSON. Source: Biderman et al. 2024 (arXiv 2405.14782), section 4, on keeping every
answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.json_reading import NUMBER, Maybe, require_form
from course_pkg.evaluation.generation import OpenQuestion
from course_pkg.evaluation.greedy import Generation
from course_pkg.evaluation.items import LETTERS, Item
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, ScoredQuestion
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.task import CHOICE, Task

Answer = ScoredQuestion | Generation
FORM = {  # of a sample in JSON
    "id": str,
    "group": Maybe(str),
    "prompt": (str, list),
    "asked": {"options?": [str], "references?": [str], "answer?": Maybe(int)},
    "answer": dict,
    "scores": dict,
    "error": Maybe(str),
}
OPTION = {"text": str, "log_prob": NUMBER, "tokens": [str], "log_probs": [NUMBER]}
EXTRACTED = {"answer": str, "rule": str, "start": int, "end": int}
ANSWERS = {  # by the field that tells the kind
    "options": {"options": [OPTION | {"merged": Maybe(str)}], "choice": int},
    "text": {"text": str, "finish": str, "extracted": Maybe(EXTRACTED), "notes?": [str]},
}


@dataclass(frozen=True)
class ItemRequest:
    """An item as it is asked. turns: the messages of a chat, for a model that takes messages."""

    item: Item
    question: ChoiceQuestion | OpenQuestion
    turns: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Sample:
    """An item, its prompt, what was asked, the model's answer and its scores, by name."""

    id: str
    group: str | None
    prompt: str | Sequence[Mapping[str, str]]
    asked: Mapping[str, Any]
    answer: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def read(cls, fields: Any) -> "Sample":
        """A sample from its fields. Raises TypeError or ValueError if they are not such."""
        require_form(fields, FORM, "the sample")
        for kind, form in ANSWERS.items():
            if kind in fields["answer"]:
                require_form(fields["answer"], form, "the answer")
        for name, score in fields["scores"].items():
            require_form(score, NUMBER, f"the score {name!r}")
        if isinstance(fields["prompt"], list):
            require_form(fields["prompt"], [{"role": str, "content": str}], "the prompt")
        return cls(**fields)


def make_requests(
    task: Task, *, tokenizer: Tokenizer | None = None, limit: int | None = None
) -> list[ItemRequest]:
    """The requests of a task, with their prompts. Raises TaskError.

    Args:
        tokenizer: writes the prompts of a chat as texts; None leaves them messages.
        limit: see `Task.chosen`.
    """
    if task.chat and tokenizer is not None and not tokenizer.chat_template:
        raise TaskError(
            "the task asks by chat, and the model has no chat template: set `chat = false` in "
            "[prompt], or choose an instruct model"
        )
    examples = [task.fields(item) for item in task.examples]
    requests = []
    for item in task.chosen(limit):
        fields = task.fields(item)
        chat = tokenizer if task.chat else None
        try:
            prompt = task.template.render(fields, examples, chat=chat)
        except ValueError as error:
            raise TaskError(f"{task.name}, item {item.id!r}: {error}") from None
        messages = task.chat and tokenizer is None
        turns = tuple(task.template.turns(fields, examples)) if messages else ()
        question: ChoiceQuestion | OpenQuestion
        if task.kind == CHOICE:
            letters = tuple(LETTERS[: len(item.options)])
            options = item.options if task.options == "text" else letters
            question = ChoiceQuestion(prompt.text, options, item.answer, prompt.delimiter, item.id)
        else:
            question = OpenQuestion(prompt.text, item.answers, item.id)
        requests.append(ItemRequest(item, question, turns))
    return requests
