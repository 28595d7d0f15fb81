"""The command `course export`: a model for other programs."""

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(export)


def export(
    adapter_or_model: Annotated[
        str, typer.Argument(help="An adapter's folder, or a model's name, hub id or folder.")
    ],
    format: Annotated[
        str, typer.Option(help="gguf: llama.cpp, Ollama, LM Studio; hf: transformers; onnx.")
    ] = "gguf",
    type: Annotated[
        str | None, typer.Option(help="Of a gguf's weights: f32, f16, q8_0, q4_0 [default: f16]")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The adapter's model [default: as its file says]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file for gguf, else a folder [default: by the name]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Export a model for other programs, its adapter merged.

    It prints what was written and how to run it. Exit code 2 if that is not possible as asked, 4 if
    the disk is full or the folder can't be written; nothing is then left.
    """
    from course_pkg.deployment.export import export_model

    exported = export_model.export(
        adapter_or_model, base=base, format=format, type=type, output=output, force=force
    )
    for line in export_model.lines(exported):
        typer.echo(line)
