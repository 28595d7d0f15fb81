"""The course's own items in the shapes of GLUE's and SuperGLUE's tasks, with two prompts for each.

An item has texts, by name, and a label. A prompt writes them as a question, and says each label as
a word, which is called a verbalizer: "yes" or "no", "terrible" or "great". In two shapes the item
brings its own options instead: which cause is likelier, which name fits.

The items are in course_pkg/data/evaluation/suites, JSON lines; README.md has their data card.
Sources of the shapes: Wang et al. 2019 (GLUE and SuperGLUE); of verbalizers, Schick and Schütze
2021, "Exploiting Cloze Questions" (PET). Chapter: evaluation/benchmarks.
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from course_pkg.common.arguments import require_choice
from course_pkg.evaluation.prompt_template import PromptTemplate

EMPTY = "N/A"  # what stands in for every text in an input without content
NOT_TEXTS = ("id", "split", "group", "options", "label")


@dataclass(frozen=True)
class SuiteItem:
    """An item: texts by name, and the number of its label.

    options: its own, or () if the labels are the same for all items. group: of related items, such
    as those about one passage.
    """

    id: str
    group: str
    fields: dict[str, str]
    label: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuitePrompt:
    """A template, and the word for each label, in their order; () if items have own options."""

    template: PromptTemplate
    words: tuple[str, ...]
    kept: tuple[str, ...] = ()

    def options(self, item: SuiteItem) -> tuple[str, ...]:
        """What is scored for an item: its own options, or the words."""
        return item.options or self.words

    def empty(self, item: SuiteItem) -> dict[str, str]:
        """The item's fields without their content: N/A, except for those that are kept."""
        return {name: text if name in self.kept else EMPTY for name, text in item.fields.items()}


@dataclass(frozen=True)
class SuiteShape:
    """Items to evaluate, four solved examples, and two prompts."""

    name: str
    labels: tuple[str, ...]
    items: tuple[SuiteItem, ...]
    examples: tuple[SuiteItem, ...]
    prompts: tuple[SuitePrompt, ...]


def shape_names() -> list[str]:
    """The names of all shapes.

    >>> shape_names()[:3]
    ['acceptability', 'sentiment', 'paraphrase']
    """
    return list(_tables())


def load_shape(name: str) -> SuiteShape:
    """The items and prompts of a shape, such as "sentiment". Raises ValueError if unknown.

    >>> shape = load_shape("sentiment")
    >>> len(shape.items), shape.labels, [prompt.words for prompt in shape.prompts]
    (24, ('negative', 'positive'), [('negative', 'positive'), ('terrible', 'great')])
    """
    require_choice(name, "shape", shape_names())
    table = _tables()[name]
    lines = _folder().joinpath(f"{table.get('items', name)}.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    prompts = tuple(
        SuitePrompt(
            PromptTemplate(prompt["question"]),
            tuple(prompt.get("words", ())),
            tuple(table.get("kept", ())),
        )
        for prompt in table["prompts"]
    )
    return SuiteShape(
        name,
        tuple(table["labels"]),
        tuple(_item(record) for record in records if record["split"] == "test"),
        tuple(_item(record) for record in records if record["split"] == "example"),
        prompts,
    )


def _item(record: dict[str, Any]) -> SuiteItem:
    return SuiteItem(
        record["id"],
        record["group"],
        {name: text for name, text in record.items() if name not in NOT_TEXTS},
        record["label"],
        tuple(record.get("options", ())),
    )


def _folder() -> Any:
    return resources.files("course_pkg") / "data/evaluation/suites"


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_folder().joinpath("prompts.toml").read_text("utf-8"))
