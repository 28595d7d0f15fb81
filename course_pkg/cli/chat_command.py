"""The command `course chat`: talk with a model in the terminal."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from course_pkg.cli.exits import INTERRUPTED, NEEDS_A_LOOK
from course_pkg.common.terminal import for_terminal


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(chat)


def chat(
    model: Annotated[
        str | None,
        typer.Option(help="Name, hub id or folder [default: the adapter's; smollm2-135m]"),
    ] = None,
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Ask a server instead: its http(s) address up to /v1.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name at the address [default: its only one]")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds for an answer there [default: 120]")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system turn.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.2,
    top_p: Annotated[float, typer.Option(help="Sample from this much probability.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 512,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda, or auto [default: cpu]")] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: the model's own on a GPU.")
    ] = "auto",
) -> None:
    """Chat with a model and an adapter.

    Ctrl-C stops an answer, Ctrl-D ends. /reset forgets the conversation, /system TEXT sets its
    rules, /save FILE writes it as `course finetune` reads it, /paste takes several lines as one
    turn, /quit ends. In a pipe, each line is a question, also one that looks like a command, and
    stdout has the answers alone. If the conversation gets too long, its oldest turns
    are dropped, and you are told. A server's answer comes in one piece; COURSE_REMOTE_API_KEY is
    sent as its key, or to this machine COURSE_API_KEY. Temperature and top-p are those that
    SmolLM2's authors recommend. Exit code 0: the chat has ended. 1: a turn got no answer. 2: not
    possible as asked. 4: the server fails. 130: interrupted in a pipe.
    """
    params = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    live = sys.stdin.isatty()
    if live and base_url is None:
        _note("loading the model …")
    source = _load(model, adapter, base_url, served_model_name, timeout, params, device, dtype)
    from course_pkg.deployment.chat_session import HELP, ChatSession

    session = ChatSession(source, _write, _note, seed)
    if live:
        _note(f"{source.name}\n{HELP}")
    if system is not None:
        session.set_system(system.strip())
    if not live:
        sys.stdin.reconfigure(errors="replace")  # bytes that are not UTF-8
    try:
        session.run(_typed() if live else sys.stdin, commands=live)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if session.unanswered and not live:
        raise typer.Exit(NEEDS_A_LOOK)


def _load(model, adapter, base_url, served, timeout, params, device, dtype):
    """A model here, or behind an address. Raises ChatError for options that don't go together."""
    from course_pkg.common.http_client import HttpClient, key_for
    from course_pkg.deployment.chat_model import ChatError, ServerChat, load_chat
    from course_pkg.serving.sampling import SamplingParams

    try:
        SamplingParams(**params)
    except ValueError as error:
        raise ChatError(str(error)) from None
    if base_url is None:
        for option, value in (("--served-model-name", served), ("--timeout", timeout)):
            if value is not None:
                raise ChatError(f"{option} is for --base-url")
        return load_chat(model, adapter, params, device=device, dtype=dtype)
    if model is not None or adapter is not None:
        raise ChatError(
            "--model and --adapter are for a model on this machine: at an address, name the model "
            "or the adapter with --served-model-name"
        )
    times = {} if timeout is None else {"timeout": timeout}
    return ServerChat(HttpClient(base_url, key_for(base_url), **times), params, served)


def _typed() -> Iterator[str]:
    """The lines that somebody types, until Ctrl-D; Ctrl-C empties the line."""
    import readline  # noqa: F401 (gives `input` editing and a history)

    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            _note("\n(Ctrl-D or /quit ends)")
        except EOFError:
            _note("")
            return


def _write(text: str) -> None:
    sys.stdout.write(for_terminal(text))
    sys.stdout.flush()


def _note(text: str) -> None:
    print(for_terminal(text), file=sys.stderr, flush=True)
