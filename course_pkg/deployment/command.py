"""The command `course serve`: a model and its adapters behind OpenAI's API on this machine.

Whoever reaches the server can use it, so any address that other machines reach needs a key. The key
comes from a file or the environment; every user of a machine can read the arguments of its
processes. Chapter: deployment/server.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from course_pkg.deployment.app import create_app
from course_pkg.deployment.errors import ServeError
from course_pkg.deployment.guard import is_loopback
from course_pkg.deployment.limits import Limits
from course_pkg.deployment.server import Server, bind
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine

KEY_VARIABLE = "COURSE_API_KEY"
SHORTEST_KEY = 16
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


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
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises ServeError or ModelError if it cannot start."""
    key = read_key(key_file)
    if key is None and not is_loopback(host):
        raise ServeError(
            f"other machines can reach {host}: set {KEY_VARIABLE} or give --key-file, or use "
            "--host 127.0.0.1"
        )
    name = model_name(model)
    folders = adapter_folders(adapters, name)
    with bind(host, port) as bound:  # before the model is loaded, which takes longer
        engine = load_engine(model, folders, device, cache_gb, running)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        app = create_app(engine, name, limits=limits, key=key)
        address = f"[{host}]" if ":" in host else host
        print(
            f"serving {', '.join([name, *folders])} on "
            f"http://{address}:{bound.getsockname()[1]}/v1"
            f"{' with a key' if key else ''}; Ctrl-C stops",
            flush=True,
        )
        Server(app, limits).run(sockets=[bound])


def read_key(file: Path | None) -> str | None:
    """The key in the file, or in COURSE_API_KEY; None if there is neither.

    Raises ServeError for a file that cannot be read and for a key that is easy to guess.
    """
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

    >>> model_name("smollm2-135m"), model_name("/home/me/my-model/")
    ('smollm2-135m', 'my-model')
    """
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() or folder.is_absolute() else model


def adapter_folders(given: Sequence[str], base: str) -> dict[str, Path]:
    """The folders by name, from texts `name=folder`. Raises ServeError for a wrong one.

    >>> adapter_folders(["poet"], "tiny")
    Traceback (most recent call last):
    ...
    course_pkg.deployment.errors.ServeError: --adapter poet: expected name=folder
    """
    folders: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not folder:
            raise ServeError(f"--adapter {text}: expected name=folder")
        if not NAME.fullmatch(name):
            raise ServeError(
                f"--adapter {text}: a name has 1 to 64 letters, digits, '.', '_' and '-', and "
                "starts with a letter or digit"
            )
        if name in folders or name == base:
            raise ServeError(f"--adapter {text}: the name {name} is taken; choose another")
        folders[name] = Path(folder).expanduser()
    return folders


def load_engine(
    model: str, adapters: dict[str, Path], device: str | None, cache_gb: float, running: int
) -> Engine:
    """The engine with its model and adapters. Raises ModelError and ServeError."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if device in (None, "cpu") and cache_gb > memory:
        raise ServeError(f"--cache-memory {cache_gb:g}: this machine has {memory:.0f} GB of memory")
    loaded = load(model, device=device)
    for name, folder in adapters.items():
        if not folder.is_dir():
            raise ServeError(f"adapter {name}: there is no folder {folder}")
    try:
        return Engine(
            *loaded,
            memory_bytes=int(cache_gb * 1e9),
            token_budget=max(512, running),
            max_sequences=running,
            adapters=adapters,
        )
    except (ValueError, TypeError, OSError, RuntimeError) as error:  # such as no memory
        raise ServeError(f"{model} cannot be served with this: {error}") from None
