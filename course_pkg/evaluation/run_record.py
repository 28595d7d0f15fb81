"""The record of a run: one JSON file with all that somebody needs to check it or to repeat it.

Items without a score, because the model failed on them, are counted and left out of the means.
Source: Biderman et al. 2024, "Lessons from the Trenches" (arXiv 2405.14782), section 4.
"""

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from course_pkg import __version__
from course_pkg.common.files import write_atomically
from course_pkg.common.json_reading import NUMBER, Maybe, parse_json, require_form
from course_pkg.evaluation.answer_extraction import answer_start
from course_pkg.evaluation.comparison import PairedComparison, compare_runs
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.samples import Sample
from course_pkg.evaluation.statistics import FEWEST_UNITS, mean_interval
from course_pkg.evaluation.task import LIMIT_SEED, Task

FILE = "record.json"
FORMAT = 1
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
BOUND = Maybe(NUMBER)
FORM_OF_SCORE = {"name": str, "mean": NUMBER, "low": BOUND, "high": BOUND, "items": int}
FORM = {  # of a record in JSON
    "task": {"name": str, "description": str, "hash": str, "items_hash": str, "items": int},
    "model": {"model": str},
    "versions": dict,
    "finished": str,
    "limit": Maybe(int),
    "metric": str,
    "scores": [FORM_OF_SCORE],
    "groups": Maybe(int),
    "samples": list,
}
# What is wrong with an answer, from the worst on; each answer counts once.
FAULTS = {
    "refused": "were refused by the server or its model",
    "thought": "end within a thought: raise max_new_tokens, or leave the stop strings out",
    "unseen": "are empty and reached max_new_tokens: a model that thinks unseen needs more",
    "empty": "are empty",
    "length": "were cut, because they reached max_new_tokens",
    "not found": "have nothing that a rule finds",
}


@dataclass(frozen=True)
class MeanScore:
    """A mean over the items that have this score; low and high are None for too few of them."""

    name: str
    mean: float
    low: float | None
    high: float | None
    items: int

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:z.3f}, {self.high:z.3f}]"
        return f"{self.mean:z.3f}{interval}"


@dataclass(frozen=True)
class RunRecord:
    """A run. metric: the score to report. groups: how many of related items; None without any."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    versions: Mapping[str, str]
    finished: str
    limit: int | None
    metric: str
    scores: tuple[MeanScore, ...]
    groups: int | None
    samples: tuple[Sample, ...]

    @property
    def failed(self) -> int:
        return sum(sample.error is not None for sample in self.samples)

    @property
    def score(self) -> MeanScore | None:
        """The score to report; None if all items failed."""
        return next((score for score in self.scores if score.name == self.metric), None)

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores must know: answers that are none, and how they were got."""
        written = [sample.answer for sample in self.samples if "text" in sample.answer]
        counts = Counter(fault for answer in written if (fault := _fault(answer)))
        notes = [
            f"{counts[fault]} of {len(written)} answers {says}"
            for fault, says in FAULTS.items()
            if counts[fault]
        ]
        asked = dict.fromkeys(note for answer in written for note in answer.get("notes", ()))
        return [*notes, *asked]

    @property
    def name(self) -> str:
        adapter = self.model.get("adapter")
        return f"{self.model['model']}{f' + {adapter}' if adapter else ''}"


def make_record(
    task: Task, model: Mapping[str, Any], samples: Sequence[Sample], limit: int | None = None
) -> RunRecord:
    """The record of a run that ended now. model: its identity."""
    about = {
        "name": task.name,
        "description": task.description,
        "hash": task.hash,
        "items_hash": task.items_hash,
        "items": len(task.items),
        "seeds": {"examples": task.seed, "limit": LIMIT_SEED},
        "settings": task.settings,
    }
    groups = {sample.group for sample in samples}
    return RunRecord(
        about,
        model,
        versions(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        limit,
        task.metric,
        scores_of(samples, task.metric),
        None if groups <= {None} else len(groups),
        tuple(samples),
    )


def scores_of(samples: Sequence[Sample], metric: str) -> tuple[MeanScore, ...]:
    """The mean of each score that a sample has, the metric's first."""
    names = dict.fromkeys(name for sample in samples for name in sample.scores)
    scores = []
    for name in sorted(names, key=lambda name: name != metric):
        having = [sample for sample in samples if name in sample.scores]
        values = [sample.scores[name] for sample in having]
        groups = groups_of(having)
        mean = sum(values) / len(values)
        low = high = None
        if len(values if groups is None else set(groups)) >= FEWEST_UNITS:
            interval = mean_interval(values, groups)
            low = interval.low
            high = interval.high
        scores.append(MeanScore(name, mean, low, high, len(values)))
    return tuple(scores)


def groups_of(samples: Sequence[Sample]) -> list[str] | None:
    """The group of each sample, one without a group being its own; None if none has one."""
    if all(sample.group is None for sample in samples):
        return None
    return [
        f"item {sample.id}" if sample.group is None else f"group {sample.group}"
        for sample in samples
    ]


def versions() -> dict[str, str]:
    """The versions of Python, this package and the libraries that compute."""
    programs = {"python": platform.python_version(), "course": __version__}
    return programs | {name: metadata.version(name) for name in PACKAGES}


def write_record(record: RunRecord, folder: Path) -> None:
    """Write a record into a folder, whole or not at all."""
    fields = {"format": FORMAT, **asdict(record)}
    write_atomically(folder / FILE, json.dumps(fields, indent=1) + "\n")


def read_record(folder: Path) -> RunRecord:
    """The record in a run's folder. Raises RunError if there is none, or it is damaged."""
    path = folder / FILE
    if not path.is_file():
        raise RunError(f"{folder} has no {FILE}: give the --output of a run that has ended")
    try:
        fields = parse_json(path.read_bytes())
        require_form(fields, {"format": int}, "the record")
        if (file_format := fields.pop("format")) != FORMAT:
            raise ValueError(f"its format is {file_format}, this version reads {FORMAT}")
        require_form(fields, FORM, "the record")
        fields["scores"] = tuple(MeanScore(**score) for score in fields["scores"])
        fields["samples"] = tuple(map(Sample.read, fields["samples"]))
        return RunRecord(**fields)
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} can't be read ({error}): run the evaluation again") from None


def _fault(answer: Mapping[str, Any]) -> str | None:
    """Which of FAULTS a written answer has."""
    if answer["finish"] == "refused":
        return "refused"
    is_cut = answer["finish"] == "length"
    if answer_start(answer["text"]) is None:
        return "thought"
    if not answer["text"].strip():
        return "unseen" if is_cut else "empty"
    if is_cut:
        return "length"
    return "not found" if answer["extracted"] is None else None


@dataclass(frozen=True)
class PairedRuns:
    """How two runs differ. left_out: items that one of them scored. notes: what else differs."""

    comparison: PairedComparison
    baseline_mean: float
    system_mean: float
    left_out: int
    notes: tuple[str, ...]


def compare_records(baseline: RunRecord, system: RunRecord) -> PairedRuns:
    """Compare two runs on the items that both have scored. Raises RunError if they can't be."""
    if baseline.task["items_hash"] != system.task["items_hash"]:
        raise RunError(
            f"the items of {baseline.task['name']!r} and {system.task['name']!r} differ: a paired "
            "comparison needs two runs on the same items"
        )
    first = _values(baseline)
    second = _values(system)
    both = [sample for sample in baseline.samples if sample.id in first and sample.id in second]
    if not both:
        raise RunError("the runs have scored no item in common: run both with the same --limit")
    before = [first[sample.id] for sample in both]
    after = [second[sample.id] for sample in both]
    try:
        comparison = compare_runs(before, after, groups_of(both))
    except ValueError as error:
        raise RunError(f"the runs can't be compared: {error}") from None
    notes = []
    if baseline.task["hash"] != system.task["hash"]:
        notes.append("the tasks differ in their prompt or scoring")
    if baseline.metric != system.metric:
        notes.append(f"the baseline's score is {baseline.metric}, the system's {system.metric}")
    if differ := [
        f"{name} {old} and {system.versions.get(name)}"
        for name, old in baseline.versions.items()
        if system.versions.get(name) != old
    ]:
        notes.append(f"other versions: {', '.join(differ)}")
    return PairedRuns(
        comparison,
        sum(before) / len(before),
        sum(after) / len(after),
        len(first.keys() ^ second.keys()),
        tuple(notes),
    )


def _values(record: RunRecord) -> dict[str, float]:
    metric = record.metric
    return {
        sample.id: sample.scores[metric] for sample in record.samples if metric in sample.scores
    }
