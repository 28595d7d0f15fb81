"""The command `course serve`: an HTTP server with OpenAI's API."""

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(serve)


def serve(
    model: Annotated[str, typer.Option(help="A model's name, hub id or folder.")] = "smollm2-135m",
    adapter: Annotated[
        list[str] | None, typer.Option(help="name=folder of a LoRA adapter; repeatable.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="Holds the API key [default: COURSE_API_KEY, if set]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda, or auto [default: cpu]")] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: the model's own on a GPU.")
    ] = "auto",
    quantize: Annotated[
        str | None,
        typer.Option(help="int8 or int4 weights: smaller, and faster on a CPU; less exact."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name for clients [default: as --model]")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file [default: the model's template]")
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(help="Web origin whose pages may use the server; repeatable; * needs a key."),
    ] = None,
    cache_memory: Annotated[float, typer.Option(min=0.001, help="GB for keys and values.")] = 1.0,
    max_running: Annotated[int, typer.Option(min=1, help="Sequences computed at once.")] = 32,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that may wait.")] = 64,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-prompt-tokens",
            "--max-prompt",
            min=1,
            help="Longer prompts are refused [default: the model's limit]",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of a sample.")] = 4096,
    request_seconds: Annotated[float, typer.Option(min=1, help="For a whole answer.")] = 600,
    shutdown_seconds: Annotated[float, typer.Option(min=0.1, help="To finish requests.")] = 30,
) -> None:
    """Serve a model and adapters with OpenAI's API.

    It has completions, chat and models. Each adapter is a model by its own name. Exit code 0 after
    SIGTERM or Ctrl-C, when the running requests are finished; 2 if it cannot start as asked.
    """
    from course_pkg.deployment.admission import Limits
    from course_pkg.deployment.serve import serve as start

    limits = Limits(
        prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        waiting=max_waiting,
        request_seconds=request_seconds,
        shutdown_seconds=shutdown_seconds,
    )
    start(
        model,
        adapter or (),
        host=host,
        port=port,
        key_file=key_file,
        device=device,
        cache_gb=cache_memory,
        running=max_running,
        limits=limits,
        dtype=dtype,
        quantize=quantize,
        name=served_model_name,
        chat_template=chat_template,
        origins=allowed_origins or (),
    )
