"""The command `course serve`: a model and its adapters behind OpenAI's API on this machine.

An address that other machines reach needs a key, from a file or the environment: every user of a
machine can read the arguments of its processes.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from course_pkg.adapters.argument_checks import require_adapter_name
from course_pkg.common.http_client import is_loopback
from course_pkg.deployment.admission import Limits
from course_pkg.deployment.api_errors import ServeError
from course_pkg.deployment.app import create_app
from course_pkg.deployment.load_engine import load_engine, quantization_note
from course_pkg.deployment.server import Server, bind

KEY_VARIABLE = "COURSE_API_KEY"
SHORTEST_KEY = 16
LONGEST_NAME = 64
log = logging.getLogger(__name__)


def serve(
    model: str,
    adapters: Sequence[str],
    *,
    host: str,
    port: int,
    key_file: Path | None,
    device: str | None,
    cache_gb: float,
    running: int,
    limits: Limits,
    dtype: str = "auto",
    quantize: str | None = None,
    name: str | None = None,
    chat_template: Path | None = None,
    origins: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises ServeError or ModelError if it cannot start.

    Args:
        name: of the model, for clients.
        chat_template: a file with a Jinja template, instead of the model's.
        dtype, origins: see `weights_dtype` and `create_app`.
    """
    key = read_key(key_file)
    check_origins(origins, key)
    if key is None and not is_loopback(host):
        raise ServeError(
            f"other machines can reach {host}: set {KEY_VARIABLE} or give --key-file, or use "
            "--host 127.0.0.1"
        )
    name = name or model_name(model)
    template = read_template(chat_template)
    folders = adapter_folders(adapters, name)
    with bind(host, port) as bound:  # before the model is loaded, which takes longer
        engine = load_engine(model, folders, device, cache_gb, running, dtype, quantize)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if quantize:
            log.info(quantization_note(model, quantize))
        if template is not None:
            engine.use_template(template)
        if engine.tokenizer.chat_template is None:
            log.warning(
                "%s has no chat template, so /v1/chat/completions is refused: "
                "give one with --chat-template FILE",
                name,
            )
        app = create_app(engine, name, limits=limits, key=key, origins=origins)
        address = f"[{host}]" if ":" in host else host
        print(
            f"serving {', '.join([name, *folders])} on "
            f"http://{address}:{bound.getsockname()[1]}/v1"
            f"{' with a key' if key else ''}; Ctrl-C stops",
            flush=True,
        )
        Server(app, limits).run(sockets=[bound])


def read_key(file: Path | None) -> str | None:
    """The key in the file, or in COURSE_API_KEY; None if there is neither."""
    try:
        key = os.environ.get(KEY_VARIABLE) if file is None else file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"the key in {file} cannot be read: {error}") from None
    if key is not None and not re.fullmatch(rf"[!-~]{{{SHORTEST_KEY},}}", key):
        raise ServeError(
            f"the API key needs at least {SHORTEST_KEY} characters, all of them visible ASCII; "
            'python -c "import secrets; print(secrets.token_urlsafe())" makes one'
        )
    return key


def model_name(model: str) -> str:
    """The model's name for clients: a folder's last part, without the path on this machine.

    Example:

        >>> model_name("smollm2-135m"), model_name("/home/me/my-model/")
        ('smollm2-135m', 'my-model')
    """
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() or folder.is_absolute() else model


def adapter_folders(texts: Sequence[str], base: str) -> dict[str, Path]:
    """The folders by name, from texts `name=folder`."""
    folders: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals or not folder:
            raise ServeError(f"--adapter {text}: expected name=folder")
        try:
            require_adapter_name(name)
        except ValueError as error:
            raise ServeError(f"--adapter {text}: {error}") from None
        if len(name) > LONGEST_NAME:
            raise ServeError(
                f"--adapter {text:.80}: the name has {len(name)} characters, at most "
                f"{LONGEST_NAME} are possible"
            )
        if name in folders or name == base:
            raise ServeError(f"--adapter {text}: the name {name} is taken; choose another")
        folders[name] = Path(folder).expanduser()
    return folders


def check_origins(origins: Sequence[str], key: str | None) -> None:
    """Raise ServeError for a malformed origin, and for "*" (all origins) without a key."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s*]+", origin):
            raise ServeError(
                f"--allowed-origins {origin}: expected a scheme and a host, such as "
                "https://example.org or http://localhost:3000, or *"
            )
    if "*" in origins and key is None:
        raise ServeError(
            "--allowed-origins *: without a key, every web page that is open on this machine could "
            f"use the server; set {KEY_VARIABLE}, give --key-file, or name the origins"
        )


def read_template(file: Path | None) -> str | None:
    """The chat template in a file. Raises ServeError if it cannot be read or parsed."""
    if file is None:
        return None
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        text = file.read_text("utf-8")
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except Exception as error:
        raise ServeError(f"--chat-template {file} cannot be read: {error}") from None
    if not text.strip():
        raise ServeError(f"--chat-template {file} is empty: give a Jinja template")
    return text
