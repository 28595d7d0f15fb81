"""GLUE and SuperGLUE: their tasks, the course's items in the same shapes, and one number.

Sizes are those of the published files; MNLI's matched and mismatched sets are added up, and MultiRC
counts answers. Sources: Wang et al. 2019 (arXiv 1804.07461 and 1905.00537).
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from course_pkg.common.arguments import require_choice
from course_pkg.evaluation.prompt_template import PromptTemplate


@dataclass(frozen=True)
class BenchmarkTask:
    """A task of a suite; `shape` names the course's own items like it."""

    name: str
    question: str
    metrics: tuple[str, ...]
    train: int
    dev: int
    test: int
    shape: str


THREE_WAYS = "entailed, neutral, contradicted?"
F1_EXACT = ("F1", "exact match")
ACCURACY = ("accuracy",)
F1_ACCURACY = ("F1", "accuracy")
MNLI_METRICS = ("matched accuracy", "mismatched accuracy")

GLUE = (
    BenchmarkTask("CoLA", "acceptable English?", ("Matthews",), 8551, 1043, 1063, "acceptability"),
    BenchmarkTask("SST-2", "good review or bad?", ACCURACY, 67349, 872, 1821, "sentiment"),
    BenchmarkTask("MRPC", "same meaning?", F1_ACCURACY, 3668, 408, 1725, "paraphrase"),
    BenchmarkTask("QQP", "same question?", F1_ACCURACY, 363846, 40430, 390965, "paraphrase"),
    BenchmarkTask(
        "STS-B", "how similar, 0 to 5?", ("Pearson", "Spearman"), 5749, 1500, 1379, "similarity"
    ),
    BenchmarkTask("MNLI", THREE_WAYS, MNLI_METRICS, 392702, 19647, 19643, "entailment"),
    BenchmarkTask("QNLI", "answer in the sentence?", ACCURACY, 104743, 5463, 5463, "answered"),
    BenchmarkTask("RTE", "entailed?", ACCURACY, 2490, 277, 3000, "two-way-entailment"),
    BenchmarkTask("WNLI", "entailed, by a pronoun?", ACCURACY, 635, 71, 146, "pronoun-claims"),
)
SUPERGLUE = (
    BenchmarkTask("BoolQ", "yes or no, by a passage?", ACCURACY, 9427, 3270, 3245, "yes-no"),
    BenchmarkTask("CB", THREE_WAYS, ("macro F1", "accuracy"), 250, 56, 250, "entailment"),
    BenchmarkTask("COPA", "which cause or effect?", ACCURACY, 400, 100, 500, "causes"),
    BenchmarkTask(
        "MultiRC", "is this answer right?", F1_EXACT, 27243, 4848, 9693, "several-answers"
    ),
    BenchmarkTask(
        "ReCoRD", "which name fits?", ("text F1", "text match"), 100730, 10000, 10000, "cloze"
    ),
    BenchmarkTask("RTE", "entailed?", ACCURACY, 2490, 277, 3000, "two-way-entailment"),
    BenchmarkTask("WiC", "same sense of a word?", ACCURACY, 5428, 638, 1400, "word-senses"),
    BenchmarkTask("WSC", "does it refer to this noun?", ACCURACY, 554, 104, 146, "pronouns"),
)


def suite_average(
    suite: Sequence[BenchmarkTask], scores: Mapping[str, Mapping[str, float]]
) -> float:
    """A suite's single number: the mean over tasks of the mean over a task's metrics."""
    means = []
    for task in suite:
        own = scores.get(task.name, {})
        if missing := [metric for metric in task.metrics if metric not in own]:
            raise ValueError(f"scores has no {missing[0]!r} for the task {task.name}")
        means.append(fmean(own[metric] for metric in task.metrics))
    return fmean(means)


EMPTY = "N/A"  # what stands in for every text in an input without content
NOT_TEXTS = ("id", "split", "group", "options", "label")


@dataclass(frozen=True)
class SuiteItem:
    """An item: texts by name, and the number of its label."""

    id: str
    group: str
    fields: dict[str, str]
    label: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuitePrompt:
    """A template, and the word for each label in their order; () if items have own options."""

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
    """The names of all shapes, such as "sentiment"."""
    return list(_tables())


def load_shape(name: str) -> SuiteShape:
    """The items and prompts of a shape, such as "sentiment"."""
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
