"""The command `course finetune`: an adapter from a file of your own examples."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from course_pkg.cli.exits import INTERRUPTED
from course_pkg.common.terminal import for_terminal


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(finetune)


def finetune(
    data: Annotated[
        Path,
        typer.Argument(
            help="Your examples: .jsonl, .json, .csv, .tsv or .txt.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder of the adapter [default: adapters/<data>]")
    ] = None,
    model: Annotated[str, typer.Option(help="Name, hub id or folder.")] = "smollm2-135m",
    prompt: Annotated[
        str | None, typer.Option(help='Of the data\'s fields, such as "{subject}: {body}".')
    ] = None,
    response: Annotated[str | None, typer.Option(help='Such as "{reply}".')] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Validation examples [default: a share of DATA]")
    ] = None,
    validation_share: Annotated[float, typer.Option(help="Of DATA, by the seed.")] = 0.1,
    method: Annotated[str, typer.Option(help="lora, dora or ia3.")] = "lora",
    rank: Annotated[int, typer.Option(help="Of LoRA and DoRA.")] = 8,
    alpha: Annotated[float | None, typer.Option(help="[default: twice the rank]")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak [default: 1e-3; 2e-4 from 0.5, 1e-4 from 20 billion parameters]"),
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes through the data.")] = 2.0,
    steps: Annotated[int | None, typer.Option(help="Instead of --epochs.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a step.")] = 4,
    max_length: Annotated[int, typer.Option(help="Tokens of an example.")] = 512,
    seed: Annotated[int, typer.Option(help="Of split, order and first weights.")] = 0,
    device: Annotated[str | None, typer.Option(help="Such as cuda, or auto [default: cpu]")] = None,
    dtype: Annotated[
        str, typer.Option(help="Of the frozen weights: float32 or bfloat16.")
    ] = "float32",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the interrupted run in the output folder.")
    ] = False,
) -> None:
    """Fine-tune an adapter on your own examples.

    DATA has one record on each line: Alpaca's fields, prompt and completion, chat messages, or
    text; or it is a table whose columns have such names. The format is recognized; a line of
    another one is an error. Fields of other names: --prompt and --response, with \\n for a line
    break. A system turn or an instruction that all examples share is kept with the adapter. The
    output folder holds the adapter, in PEFT's format, and report.html. The default learning rate is
    a tenth of the rate that failed in the course's record sft_settings; from half a billion
    parameters on, it is QLoRA's. Exit code 2: not possible as asked. 4: the machine failed, such as
    a full disk. 130: interrupted; the same command with --resume goes on.
    """
    from course_pkg.finetuning.own_data.finetune import finetune as run
    from course_pkg.finetuning.own_data.finetune_report import FILE, next_steps, summary
    from course_pkg.finetuning.own_data.settings import FinetuneSettings

    folder = output or Path("adapters", data.stem)
    settings = FinetuneSettings(
        data,
        folder,
        model=model,
        prompt=prompt,
        response=response,
        validation=validation,
        validation_share=validation_share,
        method=method,
        rank=rank,
        alpha=alpha,
        learning_rate=learning_rate,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    report = _to_terminal if sys.stderr.isatty() else None
    try:
        result = run(settings, resume=resume, say=_say, report=report)
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to continue, with --resume", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _say(f"\n{summary(result)}\nadapter: {folder}   report: {folder / FILE}\n")
    chat = result.formats[0] != "plain text"
    for name, lines in next_steps(model, folder, method, chat):
        typer.echo(f"{name}:")
        for line in lines:
            _say(f"  {line}")


def _say(line: str) -> None:
    typer.echo(for_terminal(line))


def _to_terminal(line: str) -> None:
    typer.echo(for_terminal(line), err=True)
