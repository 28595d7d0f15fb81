"""The tasks of GLUE and SuperGLUE: what each asks, how it is scored, how large it is, the average.

A suite's score is a mean of means: first the metrics of a task are averaged, then the tasks, each
with the same weight, whatever its size and whatever its metrics measure.

Sizes are those of the published files, as the data cards of `nyu-mll/glue` and `aps/super_glue`
list them. The papers round, and count MultiRC by questions. The labels of the test sets are not
public (MNLI's dev and test sets are the matched and the mismatched one together).

Sources: Wang et al. 2019, "GLUE" (arXiv 1804.07461), tables 1 and 4; Wang et al. 2019, "SuperGLUE"
(arXiv 1905.00537), table 1. Chapter: evaluation/benchmarks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class BenchmarkTask:
    """A task of a suite.

    question: what is asked, in words. metrics: names, in the paper's order; MNLI has one accuracy
    for each test set. train, dev, test: items. shape: the course's own items of this shape.
    """

    name: str
    question: str
    metrics: tuple[str, ...]
    train: int
    dev: int
    test: int
    shape: str


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
    BenchmarkTask(
        "MNLI", "entailed, neutral, contradicted?", MNLI_METRICS, 392702, 19647, 19643, "entailment"
    ),
    BenchmarkTask("QNLI", "answer in the sentence?", ACCURACY, 104743, 5463, 5463, "answered"),
    BenchmarkTask("RTE", "entailed?", ACCURACY, 2490, 277, 3000, "two-way-entailment"),
    BenchmarkTask("WNLI", "entailed, by a pronoun?", ACCURACY, 635, 71, 146, "pronoun-claims"),
)
SUPERGLUE = (
    BenchmarkTask("BoolQ", "yes or no, by a passage?", ACCURACY, 9427, 3270, 3245, "yes-no"),
    BenchmarkTask(
        "CB",
        "entailed, neutral, contradicted?",
        ("macro F1", "accuracy"),
        250,
        56,
        250,
        "entailment",
    ),
    BenchmarkTask("COPA", "which cause or effect?", ACCURACY, 400, 100, 500, "causes"),
    BenchmarkTask(
        "MultiRC",
        "is this answer right?",
        ("F1", "exact match"),
        27243,
        4848,
        9693,
        "several-answers",
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
    """A suite's single number: the mean over tasks of the mean over a task's metrics.

    scores: for each task by name, its metrics by name. Raises ValueError if a task or a metric of
    the suite is missing.
    Source: Wang et al. 2019 (GLUE), section 3.4, on tasks with several metrics.

    >>> pair = (GLUE[0], GLUE[2])
    >>> suite_average(pair, {"CoLA": {"Matthews": 0.2}, "MRPC": {"F1": 0.9, "accuracy": 0.7}})
    0.5
    """
    means = []
    for task in suite:
        found = scores.get(task.name, {})
        if missing := [metric for metric in task.metrics if metric not in found]:
            raise ValueError(
                f"scores has no {missing[0]!r} for the task {task.name}: give all of "
                f"{', '.join(task.metrics)}"
            )
        means.append(fmean(found[metric] for metric in task.metrics))
    return fmean(means)
