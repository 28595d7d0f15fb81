"""What a metric is to the commands that score texts, `course score` and `course eval`.

A metric's module has a `Metric`, which `course_pkg.evaluation.metric_registry` lists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # needs numpy, which the help of a command does not
    from course_pkg.metrics.significance import TextStatistics


@dataclass(frozen=True)
class MetricOption:
    """Makes a keyword of `Metric.score` an option: `Annotated[bool, MetricOption("…", "-x")]`."""

    help: str
    short: str = ""


@dataclass(frozen=True)
class SystemScores:
    """What a metric says of one system's n texts.

    Attributes:
        per_text: each score's name, and its value for each text, (n,).
        settings: what one must know to compare two scores; printed as the signature.
        main: the names in per_text that `--score-only` prints and tests compare; all by default.
        corpus: for a score that is not a mean over the texts: the system's, by its name in
            per_text; then what explains it.
        statistics: what gives the corpus score of drawn texts; needed if corpus is not empty.
    """

    per_text: Mapping[str, Sequence[float]]
    settings: Mapping[str, object]
    main: tuple[str, ...] = ()
    corpus: Mapping[str, float] = field(default_factory=dict)
    statistics: "TextStatistics | None" = None

    @property
    def main_columns(self) -> dict[str, Sequence[float]]:
        return {name: self.per_text[name] for name in self.main or self.per_text}

    @property
    def compared(self) -> "dict[str, TextStatistics]":
        """The statistics of each score by which this system is compared with another one."""
        from course_pkg.metrics.significance import TextStatistics

        if self.statistics is not None:
            return {next(iter(self.corpus)): self.statistics}
        return {
            name: TextStatistics.of_scores(scores) for name, scores in self.main_columns.items()
        }


@dataclass(frozen=True)
class Metric:
    """A metric of texts.

    Attributes:
        score: a function of `ScoredTexts` and of keywords, each marked by a `MetricOption`. It
            imports heavy libraries itself.
        of_answer: functions of an answer and one reference, from 0 to 1, by the names that a task
            of `course eval` gives under `metrics`.
        digits: after the point, unless --width says otherwise.
    """

    name: str
    title: str
    help: str
    score: Callable[..., SystemScores]
    of_answer: Mapping[str, Callable[[str, str], float]] = field(default_factory=dict)
    digits: int = 4
    has_references: bool = True
