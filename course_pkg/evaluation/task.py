"""A task: which items are asked, how they are written, and what counts as right.

The hash of a task covers all that a model can see and all that decides a score. Source: Biderman et
al. 2024 (arXiv 2405.14782), section 4.
"""

import hashlib
import json
import random
from dataclasses import asdict, dataclass
from typing import Any

from course_pkg.common.arguments import require_integer
from course_pkg.evaluation.answer_extraction import Rule
from course_pkg.evaluation.items import LETTERS, Item
from course_pkg.evaluation.prompt_template import Fields, PromptTemplate

CHOICE = "multiple-choice"
GENERATION = "generation"
ALWAYS = ("exact", "quasi", "f1")  # the scores that every task for generation has
LIMIT_SEED = 0


@dataclass(frozen=True)
class Task:
    """What is asked, and what counts as right.

    Attributes:
        options: "text" scores each option's text; "letters" lists the options in the prompt, in the
            field {options}, and scores their letters.
        metrics: further scores, names in `OF_ANSWERS`.
        report: the score of generation that counts.
    """

    name: str
    description: str
    kind: str
    items: tuple[Item, ...]
    template: PromptTemplate
    chat: bool
    examples: tuple[Item, ...]
    seed: int
    normalization: str
    options: str = "text"
    premise: str | None = None
    rules: tuple[Rule, ...] = ()
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 0
    metrics: tuple[str, ...] = ()
    report: str = "exact"

    @property
    def metric(self) -> str:
        """The score that is reported: by the normalization of options, or `report`."""
        return self.normalization if self.kind == CHOICE else self.report

    @property
    def settings(self) -> dict[str, Any]:
        prompt = self.template
        written = {name: getattr(prompt, name) for name in prompt.__dataclass_fields__}
        settings = {"kind": self.kind, "prompt": written | {"chat": self.chat}}
        settings |= {"examples": [item.content for item in self.examples]}
        settings |= {"example_seed": self.seed, "normalization": self.normalization}
        if self.kind == CHOICE:
            return settings | {"options": self.options, "premise": self.premise}
        rules = [asdict(rule) for rule in self.rules]
        scores = {"metrics": list(self.metrics), "report": self.report}
        stop = {"stop": list(self.stop), "max_new_tokens": self.max_new_tokens}
        return settings | {"rules": rules} | stop | scores

    @property
    def hash(self) -> str:
        return _digest([self.settings, self.items_hash])

    @property
    def items_hash(self) -> str:
        """Of the items alone: runs of several prompts can be compared, item by item."""
        return _digest([item.content for item in self.items])

    def chosen(self, limit: int | None = None) -> list[Item]:
        """All items, or `limit` of them, drawn at random; those of a larger limit contain them."""
        if limit is None or require_integer(limit, "limit") >= len(self.items):
            return list(self.items)
        return random.Random(LIMIT_SEED).sample(self.items, len(self.items))[:limit]

    def fields(self, item: Item) -> Fields:
        """What fills the template for an item, and its answer in the form that is asked for."""
        if self.options == "text":
            return {**item.fields, "answer": item.solution}
        lines = [f"{LETTERS[n]}. {option}" for n, option in enumerate(item.options)]
        assert item.answer is not None
        return {**item.fields, "options": "\n".join(lines), "answer": LETTERS[item.answer]}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
