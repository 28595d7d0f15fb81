"""Passwords in nbgrader_config.py: in the values that it sets, and in code or comments beside them.

The file runs in a process of its own, with a time limit and without the instructor's environment
variables, so the values are those that the file itself shows. It is the course's own code, which
every nbgrader command runs. Code that did not run, and comments, are only read.

Chapter: appendix/for-instructors.
"""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from course_pkg.grading.classroom.release import ReleaseError

TIME_LIMIT_S = 60
FROM_ENVIRONMENT = "from-the-environment"  # what a variable gives that the file does not show
MOST_LINES = 12  # of code that is commented out
_USER = re.compile(r"\bhttps?://([^\s/@\"'<>]+)@", re.I)
_URL = re.compile(r"""[\w+.-]+://[^\s"'<>]+""")
_SECRET = re.compile(r"(password|passwd|pwd|passphrase|secret|token|api_?key|credentials?)\Z", re.I)
_KEY_VALUE = re.compile(r"(?:^|[\s;])(?:password|passwd|pwd)\s*=\s*([^\s;]+)", re.I)  # libpq, ODBC
_FOUND = "settings with a password: "  # before what the process of its own prints


def passwords(config: Path) -> list[str]:
    """The settings, or lines, of a configuration that show a password.

    Raises ReleaseError, with the reason, if the configuration can't be run.
    """
    command = [sys.executable, "-m", __spec__.name, config.name]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            command,
            cwd=config.parent,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{config.name} runs for more than {TIME_LIMIT_S} seconds") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if FROM_ENVIRONMENT in why:
            why += " (it runs without your environment variables: give a default to os.getenv)"
        raise ReleaseError(f"{config.name} can't be run: {why}")
    printed = [line for line in done.stdout.splitlines() if line.startswith(_FOUND)]
    if not printed:
        raise ReleaseError(f"{config.name} can't be run: it ends before all of it has run")
    lines = lines_with_passwords(config.read_text("utf-8-sig", "replace"))
    return [*json.loads(printed[-1].removeprefix(_FOUND)), *(f"line {number}" for number in lines)]


def has_password(text: str) -> bool:
    """Whether a text has a password: a URL as SQLAlchemy reads it, or `password=…` as libpq does.

    >>> has_password("postgresql://g:P/W@db/course"), has_password("postgresql://g@db/course")
    (True, False)
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    values = _KEY_VALUE.findall(text)
    with suppress(ArgumentError, ValueError):
        url = make_url(text)
        values.append(url.password or "")
        for name, given in url.normalized_query.items():
            values += given if _SECRET.search(name) else _KEY_VALUE.findall(" ".join(given))
    return any(value and FROM_ENVIRONMENT not in value for value in values)


def lines_with_passwords(source: str) -> list[int]:
    """The numbers of lines that write a password out, in code or in a comment.

    >>> lines_with_passwords("if False:\\n    url = 'postgresql://g:' + 'sesame@db'")
    [2]
    """
    return sorted({*_lines_with_urls(source), *_lines_with_literals(source)})


def _lines_with_urls(source: str) -> Iterator[int]:
    """The numbers of lines with a URL that has a password, in whatever place."""
    for number, line in enumerate(source.splitlines(), 1):
        if any(has_password(url) for url in _URL.findall(line) if "{" not in url):
            yield number


def lines_with_addresses(path: Path) -> list[int]:
    """The numbers of a file's lines with a web address that names a user, or has a password.

    A name such as ${TOKEN} is that of a variable.
    """
    lines = path.read_text("utf-8", "replace").splitlines()
    return [
        number
        for number, line in enumerate(lines, 1)
        if any(not re.fullmatch(r"[^@]*\$[{(]?\w+[)}]?", user) for user in _USER.findall(line))
        or any(has_password(url) for url in _URL.findall(line) if not set(url) & {"{", "$"})
    ]


def _lines_with_literals(source: str) -> Iterator[int]:
    """The numbers of lines whose code writes a password out, also if it is commented out."""
    pieces = [(0, source)]
    lines = source.splitlines()
    for before, line in enumerate(lines):
        if not line.lstrip().startswith("#"):
            continue
        pieces.append((before, line.strip().lstrip("# ")))
        comments = itertools.takewhile(lambda one: one.lstrip().startswith("#"), lines[before:])
        bare = [one.strip().lstrip("#") for one in itertools.islice(comments, MOST_LINES)]
        for count in range(2, len(bare) + 1):  # code on several lines that is commented out
            pieces.append((before, textwrap.dedent("\n".join(bare[:count]))))
    for before, code in pieces:
        with suppress(SyntaxError, ValueError):  # most comments are not code
            nodes = [*ast.walk(ast.parse(code))]
            texts: dict[str, str] = {}  # of variables
            for node in nodes:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    texts[node.targets[0].id] = _text(node.value, texts)
            for node in nodes:
                if any(_shows(name, _text(value, texts)) for name, value in _named(node)):
                    yield before + getattr(node, "lineno", 1)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The values that code gives to names, keys and arguments; a text alone has the name ""."""
    match node:
        case ast.Constant(str() | bytes()) | ast.BinOp() | ast.JoinedStr():
            yield "", node
        case ast.Assign(targets, value):
            yield from ((_name(target), value) for target in targets)
        case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
            yield _name(target), value
        case ast.keyword(str(name), value):
            yield name, value
        case ast.Dict(keys, values):
            yield from ((_name(key), value) for key, value in zip(keys, values, strict=True))
        case ast.Call(ast.Attribute(of, "create"), [_, _, value, *_]) if _name(of) == "URL":
            yield "password", value
        case ast.Call(_, args):  # such as os.environ.setdefault("PGPASSWORD", "sesame")
            yield from ((_name(one), other) for one, other in pairwise(args))


def _name(node: ast.expr | None) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(_, name) | ast.Constant(str(name)):
            return name
        case ast.Subscript(_, ast.Constant(str(name))):
            return name
    return ""


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    """The text that an expression writes out, with FROM_ENVIRONMENT for what it does not."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.Constant(bytes(data)):
            return data.decode("utf-8", "replace")
        case ast.Constant():
            return ""
        case ast.Name(name):
            return texts.get(name, FROM_ENVIRONMENT)
        case ast.BinOp(left, ast.Add(), right):
            return _text(left, texts) + _text(right, texts)
        case ast.JoinedStr(parts):
            return "".join(_text(part, texts) for part in parts)
        case ast.FormattedValue(value):
            return _text(value, texts)
    return FROM_ENVIRONMENT


class _Environment(dict):
    """Variables that are not set have a placeholder; `get` gives the default of the file."""

    def __missing__(self, name: str) -> str:
        return FROM_ENVIRONMENT


def _shown(config: Mapping[str, Any], name: str = "c") -> Iterator[str]:
    """The names of settings with a password."""
    from sqlalchemy.engine import URL
    from traitlets.config.loader import LazyConfigValue

    for key, value in config.items():
        here = f"{name}.{key}"
        if isinstance(value, LazyConfigValue):  # such as of c.X.urls.append(…)
            value = value.to_dict()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, URL):  # which is also a tuple
            value = value.render_as_string(hide_password=False)
        if isinstance(value, Mapping):
            yield from _shown(value, here)
        elif isinstance(value, list | tuple | Set):
            yield from _shown({str(at): one for at, one in enumerate(value)}, here)
        elif isinstance(value, str) and _shows(str(key), value):
            yield here


def _shows(key: str, text: str) -> bool:
    named = bool(_SECRET.search(key)) and text != "" and FROM_ENVIRONMENT not in text
    return named or has_password(text)


def _main(name: str) -> None:
    from traitlets.config.loader import PyFileConfigLoader

    before = dict(os.environ)
    vars(os)["environ"] = _Environment(os.environ)  # os.getenv reads it
    config = PyFileConfigLoader(name, path=os.getcwd()).load_config()
    variables = {name: text for name, text in os.environ.items() if before.get(name) != text}
    found = [*_shown(config), *_shown(variables, "os.environ")]
    print(f"\n{_FOUND}{json.dumps(found)}")


if __name__ == "__main__":
    _main(sys.argv[1])
