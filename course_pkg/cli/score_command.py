"""The commands `course score …`: one for each metric of the registry, with all that they share."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand

from course_pkg.cli.exits import Commands

if TYPE_CHECKING:
    from course_pkg.metrics.metric import Metric, SystemScores
    from course_pkg.metrics.significance import MeanInterval, TextStatistics
    from course_pkg.metrics.text_files import ScoredTexts

DETAIL_DIGITS = 4  # of what is printed beside the score, such as BLEU's brevity penalty
SIGNIFICANT = 0.05  # p-values below it get a star
ScoreFormat = Literal["json", "text"]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    group = typer.Typer(
        cls=ScoreGroup,
        help="""Score files by BLEU and the course's other metrics.

        Texts are on the lines of a file, one on each, or in JSON lines. Each command's --help has
        examples.
        """,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.add_typer(group, name="score")


def _score_files(
    metric: "Metric",
    options: Mapping[str, Any],
    *,
    references: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of references, before -i; none for JSON lines that have them."),
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", help="The systems' texts [default: standard input]"),
    ] = None,
    sentence_level: Annotated[
        bool, typer.Option("--sentence-level", "-sl", help="Score each text.")
    ] = False,
    paired_bs: Annotated[
        bool, typer.Option("--paired-bs", "-pbs", help="Paired bootstrap with the first system.")
    ] = False,
    paired_ar: Annotated[
        bool, typer.Option("--paired-ar", "-par", help="Approximate randomization instead.")
    ] = False,
    confidence_n: Annotated[
        int, typer.Option("--confidence-n", "-cin", min=1, help="Draws, for intervals and tests.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 12345,
    score_only: Annotated[
        bool, typer.Option("--score-only", "-b", help="Print nothing but the scores.")
    ] = False,
    width: Annotated[
        int, typer.Option("--width", "-w", min=0, max=16, help="Digits after the point.")
    ] = 4,
    output: Annotated[
        ScoreFormat | None, typer.Option("--format", "-f", help="[default: json; text for -sl]")
    ] = None,
    encoding: Annotated[str, typer.Option("--encoding", "-e", help="Of all files.")] = "utf-8",
) -> None:
    from course_pkg.metrics.text_files import TextFileError

    if paired_bs and paired_ar:
        raise TextFileError("--paired-bs and --paired-ar are two tests: give one of them")
    test = "bs" if paired_bs else "ar" if paired_ar else None
    texts = _read(metric, inputs or [], references or [], encoding)
    if test and len(texts) == 1:
        raise TextFileError("a paired test needs several systems: -i baseline.txt system.txt")
    if sentence_level and len(texts) > 1:
        raise TextFileError("-sl prints one system's texts: it goes with no test or interval")
    try:
        systems = [
            _System(system.name, metric.score(system, **options), system.references)
            for system in texts
        ]
    except ValueError as error:  # a metric's refusal of a text or an option
        raise TextFileError(str(error)) from error
    printer = _Printer(metric.title, output, width, score_only)
    if sentence_level:
        printer.texts(systems[0].scores)
    elif score_only:
        for system in systems:
            typer.echo(printer.main_scores(system))
    elif len(systems) == 1:
        printer.system(systems[0], confidence_n, seed)
    else:
        printer.systems(systems, test, confidence_n, seed)


@dataclass(frozen=True)
class _System:
    name: str
    scores: "SystemScores"
    references: Sequence[Sequence[str]]

    def settings(self, **draws: object) -> dict[str, str]:
        """What one must know to compare the scores, in sacrebleu's order."""
        from course_pkg import __version__

        settings: dict[str, object] = {}
        if numbers := {len(group) for group in self.references}:
            settings["nrefs"] = numbers.pop() if len(numbers) == 1 else "var"
        settings |= {**draws, **self.scores.settings, "version": f"course_pkg {__version__}"}
        written = {True: "yes", False: "no"}
        return {
            name: written[value] if isinstance(value, bool) else str(value)
            for name, value in settings.items()
        }


def _read(
    metric: "Metric", inputs: list[Path], references: list[Path], encoding: str
) -> "list[ScoredTexts]":
    """The systems, all with the same references."""
    from course_pkg.metrics.text_files import TextFileError, read_scored, read_texts

    if not metric.has_references:
        files = [*references, *inputs]
        if len(files) > 1:
            raise TextFileError("this command scores one file: give one file, without references")
        return [read_texts(files[0] if files else None, encoding)]
    systems = [read_scored(path, references, encoding) for path in inputs or [None]]
    names = [system.name for system in systems]
    if repeated := [name for number, name in enumerate(names) if name in names[:number]]:
        raise TextFileError(f"{repeated[0]} is given twice: each system needs a file of its own")
    for system in systems[1:]:
        if system.references != systems[0].references:
            raise TextFileError(
                f"{system.name} and {systems[0].name} have different references: systems are "
                "compared on the same texts"
            )
    return systems


def _estimates(scores: "SystemScores", samples: int, seed: int) -> "dict[str, MeanInterval]":
    """Each score of a system by its name, with an interval where texts can be drawn for it."""
    import numpy as np

    from course_pkg.metrics.significance import MeanInterval, bootstrap, mean_intervals

    if scores.statistics is None:
        rows = np.array(list(scores.per_text.values())).T
        means = mean_intervals(rows, samples=samples, seed=seed)
        return dict(zip(scores.per_text, means, strict=True))
    estimates = {name: MeanInterval(value) for name, value in scores.corpus.items()}
    main = next(iter(estimates))
    drawn = bootstrap(scores.statistics, samples=samples, seed=seed)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return estimates | {main: MeanInterval(scores.corpus[main], low, high)}


@dataclass(frozen=True)
class _Printer:
    """Prints scores. output: None for the default. width: digits after the point. only: -b."""

    title: str
    output: ScoreFormat | None
    width: int
    only: bool

    def texts(self, scores: "SystemScores") -> None:
        columns = scores.main_columns if self.only else scores.per_text
        as_json = self.output == "json"
        if not as_json and not self.only:
            typer.echo("\t".join(columns))
        for values in zip(*columns.values(), strict=True):
            if as_json:
                rounded = map(self._rounded, values)
                typer.echo(json.dumps(dict(zip(columns, rounded, strict=True))))
            else:
                typer.echo("\t".join(map(self._digits, values)))

    def system(self, system: _System, samples: int, seed: int) -> None:
        estimates = _estimates(system.scores, samples, seed)
        settings = system.settings(bs=samples, seed=seed)
        main, *details = estimates
        if system.scores.statistics is None:  # then they are scores, each as important
            details = []
        digits = {name: max(self.width, DETAIL_DIGITS) for name in details}
        if self.output == "text":
            typer.echo(f"{self.title}|{_joined(settings)}")
            for name, score in estimates.items():
                line = f"{name:20} {self._digits(score.mean, digits.get(name))}"
                if score.low is not None and score.high is not None:
                    line += f"  95% {self._digits(score.low)} to {self._digits(score.high)}"
                typer.echo(line)
            return
        rounded = {
            name: {
                part: self._rounded(value, digits.get(name))
                for part, value in asdict(score).items()
            }
            for name, score in estimates.items()
        }
        record: dict[str, Any] = {"name": self.title}
        if system.scores.statistics is None:
            record["scores"] = rounded
        else:
            record["score"] = rounded[main].pop("mean")
            record |= rounded[main] | {name: rounded[name]["mean"] for name in details}
        record |= {"signature": _joined(settings), **settings}
        typer.echo(json.dumps(record, indent=1, ensure_ascii=False))

    def systems(
        self, systems: Sequence[_System], test: str | None, samples: int, seed: int
    ) -> None:
        rows = []
        for number, system in enumerate(systems):
            row: dict[str, Any] = {"system": system.name}
            for name, statistics in system.scores.compared.items():
                row[name] = {"score": self._rounded(statistics.total)}
                if test is not None:
                    baseline = systems[0].scores.compared[name]
                    row[name]["p_value"] = (
                        _p_value(test, baseline, statistics, samples, seed) if number else None
                    )
            rows.append(row)
        if self.output != "text":
            typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        draws = {test: samples, "seed": seed} if test else {}
        typer.echo(f"{self.title}|{_joined(systems[0].settings(**draws))}")
        longest = max(len(system.name) for system in systems)
        for row in rows:
            name = row.pop("system")
            shown = [f"{column} {self._with_p_value(**score)}" for column, score in row.items()]
            typer.echo(f"{name:{longest}}  {'  '.join(shown)}")

    def _with_p_value(self, score: float | None, p_value: float | None = None) -> str:
        if p_value is None:
            return self._digits(score)
        mark = "*" if p_value < SIGNIFICANT else ""
        return f"{self._digits(score)} (p = {p_value:.4f}{mark})"

    def main_scores(self, system: _System) -> str:
        return "\t".join(self._digits(score.total) for score in system.scores.compared.values())

    def _digits(self, value: float | None, width: int | None = None) -> str:
        if value is None or isinstance(value, int):
            return "nan" if value is None else str(value)
        return f"{value:z.{self.width if width is None else width}f}"

    def _rounded(self, value: float | None, width: int | None = None) -> float | None:
        """A number rounded for JSON, which has no NaN and no infinity: None in their place."""
        if value is None or not math.isfinite(value):
            return None
        rounded = round(value, self.width if width is None else width)
        return rounded or abs(rounded)  # 0 without a sign


def _joined(settings: Mapping[str, str]) -> str:
    return "|".join(f"{name}:{value}" for name, value in settings.items())


def _p_value(
    test: str, baseline: "TextStatistics", system: "TextStatistics", samples: int, seed: int
) -> float:
    from course_pkg.metrics.significance import paired_bootstrap, paired_randomization

    compare = paired_bootstrap if test == "bs" else paired_randomization
    return compare(baseline, system, samples=samples, seed=seed).p_value


class ScoreCommand(TyperCommand):
    """A command whose -i takes all values up to the next option; indented help keeps its lines."""

    def __init__(self, *args: Any, help: str | None = None, **more: Any) -> None:
        kept = re.sub(r"\n\n(?=    )", "\n\n\b\n", help or "")  # click's mark for such a block
        super().__init__(*args, help=kept, **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `-i a b` as `-i a -i b`, which click reads."""
        written: list[str] = []
        reads_files = False
        for argument in args:
            if argument.startswith("-") and argument != "-":
                reads_files = argument in ("-i", "--input")
                if not reads_files:
                    written.append(argument)
            elif reads_files:
                written += ["-i", argument]
            else:
                written.append(argument)
        return super().parse_args(ctx, written)


class ScoreGroup(Commands):
    """The commands of the registry's metrics, which are loaded when one of them is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from course_pkg.evaluation.metric_registry import METRICS

        return list(METRICS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from course_pkg.evaluation.metric_registry import METRICS

        if cmd_name not in METRICS:
            return None
        metric = METRICS[cmd_name]
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(metric.name, cls=ScoreCommand, help=metric.help)(_command(metric))
        return typer.main.get_command(one)


def _command(metric: "Metric") -> Callable[..., None]:
    """A function with the options of all metrics and this one's own, as typer reads it."""
    own = [p for p in signature(metric.score).parameters.values() if p.kind is p.KEYWORD_ONLY]
    shared = [p for p in signature(_score_files).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if not metric.has_references:
        shared = [p for p in shared if p.name not in ("paired_bs", "paired_ar")]
    files, rest = shared[:2], shared[2:]

    def run(**values: Any) -> None:
        options = {p.name: values.pop(p.name) for p in own}
        _score_files(metric, options, **values)

    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            p.replace(default=metric.digits) if p.name == "width" else p
            for p in (*files, *map(_as_option, own), *rest)
        ]
    )
    return run


def _as_option(parameter: Parameter) -> Parameter:
    kind, mark = get_args(parameter.annotation)
    long = f"--{parameter.name.replace('_', '-')}"
    names = (long, mark.short) if mark.short else (long,)
    option = typer.Option(*names, help=mark.help)
    return parameter.replace(annotation=Annotated[kind, option])
