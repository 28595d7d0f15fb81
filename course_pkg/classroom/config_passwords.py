"""Passwords in nbgrader_config.py, found in the values that it sets.

The file runs in a process of its own, with a time limit and without the instructor's environment
variables, so the values are those that the file itself shows. It is the course's own code, which
every nbgrader command runs.

Chapter: appendix/for-instructors.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 60
FROM_ENVIRONMENT = "from-the-environment"  # what a variable gives that the file does not show
_URL = re.compile(r"""[\w+.-]+://[^\s"'<>]+""")
_SECRET = re.compile(r"(password|passwd|pwd|passphrase|secret|token)\Z", re.I)


class ConfigError(ValueError):
    """The configuration can't be read; the message says why."""


def passwords(config: Path) -> list[str]:
    """The settings, or lines, of a configuration that show a password. Raises ConfigError."""
    command = [sys.executable, "-m", __spec__.name, config.name]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            command, cwd=config.parent, env=kept, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIME_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{config.name} runs for more than {TIME_LIMIT_S} seconds") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{config.name} can't be run: {why}")
    found = json.loads(done.stdout.splitlines()[-1])
    for number, line in enumerate(config.read_text("utf-8", "replace").splitlines(), 1):
        if any(has_password(url) for url in _URL.findall(line) if "{" not in url):
            found.append(f"line {number}")
    return list(dict.fromkeys(found))


def has_password(text: str) -> bool:
    """Whether a text is a URL with a password, as SQLAlchemy reads it.

    >>> has_password("postgresql://g:P/W@db/course"), has_password("postgresql://g@db/course")
    (True, False)
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return False
    values = [url.password, *(url.query[name] for name in url.query if _SECRET.search(name))]
    return any(value and value != FROM_ENVIRONMENT for value in values)


class _Environment(dict):
    """Variables that are not set have a placeholder; `get` gives the default of the file."""

    def __missing__(self, name: str) -> str:
        return FROM_ENVIRONMENT


def _shown(config: Mapping[str, Any], name: str = "c") -> Iterator[str]:
    """The names of settings with a password."""
    from sqlalchemy.engine import URL

    for key, value in config.items():
        here = f"{name}.{key}"
        if isinstance(value, URL):  # which is also a tuple
            value = value.render_as_string(hide_password=False)
        if isinstance(value, Mapping):
            yield from _shown(value, here)
        elif isinstance(value, list | tuple | set):
            yield from _shown({str(at): one for at, one in enumerate(value)}, here)
        elif isinstance(value, str) and _shows(str(key), value):
            yield here


def _shows(key: str, text: str) -> bool:
    named = bool(_SECRET.search(key)) and text not in ("", FROM_ENVIRONMENT)
    return named or has_password(text)


def _main(name: str) -> None:
    from traitlets.config.loader import PyFileConfigLoader

    vars(os)["environ"] = _Environment(os.environ)  # os.getenv reads it
    config = PyFileConfigLoader(name, path=os.getcwd()).load_config()
    print("\n" + json.dumps(list(_shown(config))))


if __name__ == "__main__":
    _main(sys.argv[1])
