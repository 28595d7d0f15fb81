"""The command `course score bleu`: BLEU of files, with sacrebleu's options and output.

Chapter: metrics/bleu-comparing.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course_pkg.cli.bleu_output import BleuPrinter, drawn_signature, print_table
from course_pkg.cli.score_options import (
    Encoding,
    Format,
    Inputs,
    Lines,
    Only,
    Output,
    References,
    Samples,
    Seed,
    Width,
    requests,
)

if TYPE_CHECKING:
    from course_pkg.metrics.bleu import PreparedReferences
    from course_pkg.metrics.text_files import ScoredTexts


class Tokenizer(StrEnum):
    """sacrebleu's tokenizers that the course has."""

    mteval = "13a"
    none = "none"
    char = "char"
    zh = "zh"


class Smoothing(StrEnum):
    """What replaces an order without a match."""

    exp = "exp"
    floor = "floor"
    add_k = "add-k"
    none = "none"


def bleu(
    references: References = None,
    inputs: Inputs = None,
    tokenize: Annotated[Tokenizer, typer.Option("--tokenize", "-tok")] = Tokenizer.mteval,
    lowercase: Annotated[bool, typer.Option("--lowercase", "-lc", help="Ignore case.")] = False,
    smooth_method: Annotated[
        Smoothing, typer.Option("--smooth-method", "-s", help="For an order without a match.")
    ] = Smoothing.exp,
    smooth_value: Annotated[
        float | None,
        typer.Option(
            "--smooth-value", "-sv", help="Of floor [0.1] and add-k [1].", show_default=False
        ),
    ] = None,
    effective_order: Annotated[
        bool,
        typer.Option("--effective-order", help="Leave out orders that no text is long enough for."),
    ] = False,
    sentence_level: Lines = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", "-ci", help="95% interval of one system.")
    ] = False,
    confidence_n: Samples = 1000,
    paired_bs: Annotated[
        bool, typer.Option("--paired-bs", "-pbs", help="Paired bootstrap with the first system.")
    ] = False,
    paired_bs_n: Annotated[int, typer.Option("--paired-bs-n", "-pbsn", min=1)] = 1000,
    paired_ar: Annotated[
        bool, typer.Option("--paired-ar", "-par", help="Approximate randomization instead.")
    ] = False,
    paired_ar_n: Annotated[int, typer.Option("--paired-ar-n", "-parn", min=1)] = 10_000,
    seed: Seed = 12345,
    score_only: Only = False,
    width: Width = 1,
    output: Output = None,
    encoding: Encoding = "utf-8",
) -> None:
    """BLEU of one system or several, from 0 to 100.

    Scores, draws and output are those of sacrebleu 2.6; the signature names the course's version.
    A file has one text on each line, or JSON lines with "prediction" and "references". Exit code 2
    if the files or options don't fit together.

    Examples:

        course score bleu ref.txt -i system.txt
        course score bleu ref.txt ref2.txt -i system.txt -b -w 2
        course score bleu -i system.jsonl --confidence
        course score bleu ref.txt -i baseline.txt system.txt --paired-bs
        course score bleu ref.txt -sl < system.txt
    """
    from course_pkg.metrics.bleu import PreparedReferences
    from course_pkg.metrics.text_files import TextFileError

    systems = _read(inputs or [], references or [], encoding)
    paired = paired_bs or paired_ar
    if paired_bs and paired_ar:
        raise TextFileError("--paired-bs and --paired-ar are two tests: give one of them")
    if paired and len(systems) == 1:
        raise TextFileError("a paired test needs several systems: -i baseline.txt system.txt")
    if confidence and len(systems) > 1:
        raise TextFileError("--confidence is for one system: test several with --paired-bs")
    if sentence_level and (len(systems) > 1 or confidence or paired):
        raise TextFileError("-sl prints one system's texts: it goes with no test or interval")
    settings = {"smoothing": smooth_method.value, "smooth_value": smooth_value}
    settings["effective_order"] = effective_order or sentence_level
    printer = BleuPrinter(output, width, score_only)
    with requests():
        prepared = PreparedReferences(
            systems[0].references, tokenize=tokenize.value, lowercase=lowercase
        )
        if sentence_level:
            _print_sentences(systems[0], printer, settings, tokenize.value, lowercase)
        elif len(systems) == 1:
            samples = confidence_n if confidence else None
            _print_system(systems[0], prepared, printer, settings, samples, seed)
        else:
            test = ("bs", paired_bs_n) if paired_bs else ("ar", paired_ar_n) if paired_ar else None
            _print_systems(systems, prepared, printer, settings, test, seed)


def _read(inputs: list[Path], references: list[Path], encoding: str) -> "list[ScoredTexts]":
    """The systems, all with the same references."""
    from course_pkg.metrics.text_files import TextFileError, read_scored

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


def _print_system(
    system: "ScoredTexts",
    prepared: "PreparedReferences",
    printer: BleuPrinter,
    settings: dict[str, Any],
    samples: int | None,
    seed: int,
) -> None:
    result = prepared.score(system.hypotheses, **settings)
    if samples is None:
        printer.show(result, result.signature)
        return
    from course_pkg.metrics.significance import bootstrap, mean_and_margin

    draws = bootstrap(system.hypotheses, prepared, samples=samples, seed=seed, **settings)
    printer.show(
        result, drawn_signature(result.signature, "bs", samples, seed), mean_and_margin(draws)
    )


def _print_sentences(
    system: "ScoredTexts",
    printer: BleuPrinter,
    settings: dict[str, Any],
    tokenize: str,
    lowercase: bool,
) -> None:
    from course_pkg.metrics.bleu import sentence_bleu

    line = BleuPrinter(printer.output or Format.text, printer.width, printer.only)
    for text, group in zip(system.hypotheses, system.references, strict=True):
        result = sentence_bleu(text, group, tokenize=tokenize, lowercase=lowercase, **settings)
        line.show(result, result.signature, indent=None)


def _print_systems(
    systems: "list[ScoredTexts]",
    prepared: "PreparedReferences",
    printer: BleuPrinter,
    settings: dict[str, Any],
    test: tuple[str, int] | None,
    seed: int,
) -> None:
    """A row for each system; with a test, compared with the first one."""
    results = [prepared.score(system.hypotheses, **settings) for system in systems]
    signature = results[0].signature
    names = [system.name for system in systems]
    found = [{"score": 100 * result.score} for result in results]
    if test is not None:
        names[0] = f"Baseline: {names[0]}"
        signature = drawn_signature(signature, *test, seed)
        found = _tested(systems, prepared, found, settings, test, seed)
    if printer.only:
        for values in found:
            typer.echo(f"{values['score']:z.{printer.width}f}")
    elif printer.output is Format.text:
        print_table(names, found, printer.width)
        typer.echo(f"BLEU|{signature}")
    else:
        shown = [
            {"system": name, "BLEU": values if test else f"{values['score']:z.{printer.width}f}"}
            for name, values in zip(names, found, strict=True)
        ]
        typer.echo(json.dumps(shown, indent=4, ensure_ascii=False))


def _tested(
    systems: "list[ScoredTexts]",
    prepared: "PreparedReferences",
    found: list[dict[str, Any]],
    settings: dict[str, Any],
    test: tuple[str, int],
    seed: int,
) -> list[dict[str, Any]]:
    """The scores with what a test adds: the p-value and, of a bootstrap, the mean and margin."""
    from course_pkg.metrics import significance

    kind, samples = test
    run = {"bs": significance.paired_bootstrap, "ar": significance.paired_randomization}[kind]
    rows = [{**values, "p_value": None, "mean": None, "ci": None} for values in found]
    for row, system in zip(rows[1:], systems[1:], strict=True):
        pair = (systems[0].hypotheses, system.hypotheses)
        result = run(*pair, prepared, samples=samples, seed=seed, **settings)
        row["p_value"] = result.p_value
        if kind == "bs":
            for each, scores in zip((rows[0], row), result.scores.T, strict=True):
                each["mean"], each["ci"] = significance.mean_and_margin(100 * scores)
    return rows
