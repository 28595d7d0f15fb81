"""The command `course score perplexity`: of texts, or of answers given their prompts.

Perplexity is not a mean of the texts' perplexities: the losses of all tokens are summed first.

Chapter: metrics/overview.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_pkg.cli.score_options import (
    Encoding,
    Format,
    Inputs,
    Lines,
    Only,
    Output,
    Width,
    finite,
    print_rows,
    requests,
)

if TYPE_CHECKING:
    from course_pkg.metrics.perplexity import Likelihood


def perplexity(
    texts: Annotated[list[Path] | None, typer.Argument(help="A file of texts, as with -i.")] = None,
    inputs: Inputs = None,
    model: Annotated[str, typer.Option(help="Name, hub id or folder.")] = "smollm2-135m",
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter.")] = None,
    bos: Annotated[bool, typer.Option("--bos", help="Put the BOS before each text.")] = False,
    stride: Annotated[
        int | None, typer.Option(min=1, help="For texts longer than the model's context.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Prompts and answers in the model's chat template.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Such as cuda, or auto [default: cpu]")] = None,
    sentence_level: Lines = False,
    score_only: Only = False,
    width: Width = 4,
    output: Output = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Perplexity of texts, or of answers given their prompts.

    A file has one text on each line, or JSON lines with "text", or with "prompt" and "answer": then
    only tokens of answers count, each given its prompt and what precedes it in the answer. The
    value is exp of the mean over all tokens; -sl prints each text's.

    Examples:

        course score perplexity texts.txt
        course score perplexity -i answers.jsonl --chat
        course score perplexity -i texts.txt --bos -sl
    """
    from course_pkg.metrics.text_files import TextFileError, read_records

    files = [*(texts or ()), *(inputs or ())]
    if len(files) > 1:
        raise TextFileError("this command scores one file: give one file, without references")
    records = read_records(files[0] if files else None, encoding)
    answers = "prompt" in records[0].fields
    field = "answer" if answers else "text"
    scored = [record.text(field) for record in records]
    prompts = [record.text("prompt") for record in records] if answers else []
    if answers and (bos or stride is not None):
        raise TextFileError("--bos and --stride are for texts without prompts")
    if chat and not answers:
        raise TextFileError('--chat is for JSON lines with "prompt" and "answer"')
    from course_pkg.evaluation.local_model import load_model

    loaded = load_model(model, adapter, device=device)
    with requests():
        if answers:
            from course_pkg.evaluation.answer_perplexity import answer_perplexity

            result = answer_perplexity(loaded.model, loaded.tokenizer, prompts, scored, chat=chat)
        else:
            from course_pkg.metrics.perplexity import perplexity as score

            result = score(loaded.model, loaded.tokenizer, scored, bos=bos, stride=stride)
    if sentence_level:
        rows = [_units(each) for each in result.per_text]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        chosen = {"perplexity": columns["perplexity"]} if score_only else columns
        print_rows(chosen, output, width, score_only)
    elif score_only:
        typer.echo(f"{result.perplexity:z.{width}f}")
    elif output is Format.text:
        typer.echo(str(result))
    else:
        units = {name: finite(value, width) for name, value in _units(result).items()}
        record = {"name": "perplexity", "score": units.pop("perplexity"), **units}
        settings = {"texts": len(scored), "scored": field, "model": model}
        settings |= {"adapter": None if adapter is None else str(adapter), "chat": chat, "bos": bos}
        typer.echo(json.dumps(record | settings, indent=1))


def _units(likelihood: "Likelihood") -> dict[str, float]:
    """A likelihood in the units that are printed."""
    return {
        "perplexity": likelihood.perplexity,
        "tokens": likelihood.tokens,
        "nll": likelihood.nll,
        "bits_per_byte": likelihood.bits_per_byte,
    }
