"""What the commands `course score …` share: options, `-i` with several files, and the output.

Chapter: metrics/overview.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from course_pkg.metrics.significance import MeanInterval
    from course_pkg.metrics.text_files import ScoredTexts


class Format(StrEnum):
    """How scores are printed."""

    json = "json"
    text = "text"


# Options of sacrebleu that the commands lack, and what to do instead.
ABSENT = {
    ("-m", "--metrics"): "each metric is a command, such as course score bleu",
    ("-t", "--test-set"): "no test set is downloaded: give files of references",
    ("-l", "--language-pair"): "choose the tokenizer: course score bleu --tokenize zh for Chinese",
    ("-q", "--quiet"): "leave it out: nothing but the scores is printed",
}


class ScoreCommand(TyperCommand):
    """A command whose option -i takes all values up to the next option, as in sacrebleu.

    Options that sacrebleu has and the command lacks are answered with what to do instead. An
    indented block of its help, such as examples, keeps its lines.
    """

    def __init__(self, *args: Any, help: str | None = None, **more: Any) -> None:
        kept = re.sub(r"\n\n(?=    )", "\n\n\b\n", help or "")  # click's mark for such a block
        super().__init__(*args, help=kept, **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `-i a b` as `-i a -i b`, which click reads."""
        known = {name for parameter in self.params for name in parameter.opts}
        written: list[str] = []
        within = None
        for argument in args:
            hint = next((ABSENT[names] for names in ABSENT if argument in names), None)
            if hint is not None and argument not in known:
                ctx.fail(f"there is no {argument}: {hint}")
            if argument.startswith("-") and argument != "-":
                within = argument if argument in ("-i", "--input") else None
                if within is None:
                    written.append(argument)
            elif within is not None:
                written += [within, argument]
            else:
                written.append(argument)
        return super().parse_args(ctx, written)


References = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of references, before -i; none for JSON lines that have them."),
]
Inputs = Annotated[
    list[Path] | None,
    typer.Option("--input", "-i", help="The system's texts [default: standard input]"),
]
Lines = Annotated[bool, typer.Option("--sentence-level", "-sl", help="Score each text.")]
Only = Annotated[bool, typer.Option("--score-only", "-b", help="Print nothing but the scores.")]
Width = Annotated[int, typer.Option("--width", "-w", min=0, max=16, help="Digits after the point.")]
Encoding = Annotated[str, typer.Option("--encoding", "-e", help="Of all files.")]
Output = Annotated[
    Format | None, typer.Option("--format", "-f", help="[default: json; text for -sl]")
]
Samples = Annotated[
    int, typer.Option("--confidence-n", "-cin", min=1, help="Drawn sets, for intervals.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the draws.")]


@contextmanager
def requests() -> Iterator[None]:
    """Inside, a ValueError is about what was asked for: a metric's refusal of a text or option."""
    from course_pkg.metrics.text_files import TextFileError

    try:
        yield
    except ValueError as error:
        raise TextFileError(str(error)) from error


def one_system(
    inputs: Sequence[Path] | None, references: Sequence[Path] | None, encoding: str
) -> "ScoredTexts":
    """The texts of the only system. Raises TextFileError for several."""
    from course_pkg.metrics.text_files import TextFileError, read_scored

    if len(inputs or ()) > 1:
        raise TextFileError("this command scores one system: give one file after -i")
    return read_scored(inputs[0] if inputs else None, references or (), encoding)


def signature(references: Sequence[Sequence[str]], **settings: object) -> str:
    """The settings of a score, written as sacrebleu writes them."""
    from course_pkg import __version__

    numbers = {len(group) for group in references}
    found = {"nrefs": str(numbers.pop()) if len(numbers) == 1 else "var", **settings}
    written = {True: "yes", False: "no"}
    fields = [f"{name}:{written.get(value, value)}" for name, value in found.items()]
    return "|".join([*fields, f"version:course_pkg {__version__}"])


def print_means(
    name: str,
    scores: "Mapping[str, MeanInterval]",
    signed: str,
    output: Format | None,
    width: int,
    only: bool,
) -> None:
    """Print the means of a system with their intervals."""
    if only:
        typer.echo("\t".join(f"{score.mean:z.{width}f}" for score in scores.values()))
        return
    if output is Format.text:
        typer.echo(f"{name}|{signed}")
        for part, score in scores.items():
            low, mean, high = (f"{x:z.{width}f}" for x in (score.low, score.mean, score.high))
            typer.echo(f"{part:20} {mean}  95% {low} to {high}")
        return
    rounded = {
        part: {key: finite(value, width) for key, value in vars(score).items()}
        for part, score in scores.items()
    }
    typer.echo(json.dumps({"name": name, "scores": rounded, "signature": signed}, indent=1))


def print_rows(
    columns: Mapping[str, Sequence[float]], output: Format | None, width: int, only: bool
) -> None:
    """Print the scores of each text, on a line: tab-separated after a header, or as JSON."""
    if output is not Format.json and not only:
        typer.echo("\t".join(columns))
    for values in zip(*columns.values(), strict=True):
        if output is Format.json:
            rounded = [finite(value, width) for value in values]
            typer.echo(json.dumps(dict(zip(columns, rounded, strict=True))))
        else:
            typer.echo("\t".join(f"{value:z.{width}f}" for value in values))


def finite(value: float, width: int) -> float | None:
    """A number rounded for JSON, which has no NaN and no infinity: None in their place."""
    if not math.isfinite(value):
        return None
    rounded = round(value, width)
    return rounded or abs(rounded)
