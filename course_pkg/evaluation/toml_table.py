"""Tables of a TOML file whose values are checked; an error names the file and the line.

`tomllib` gives values without their lines, so the line is looked for in the text when it is needed.
Chapter: evaluation/likelihood-and-generation.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_pkg.evaluation.run_errors import TaskError

REQUIRED = object()  # the default of a key that must be there


@dataclass(frozen=True)
class TomlFile:
    """A file's text and values; "" is the name of the table at the top."""

    path: Path
    text: str
    values: dict[str, Any]

    def table(self, name: str, keys: str) -> dict[str, Any]:
        """A table; empty if absent. keys: the names that it may have, with spaces between.

        Raises TaskError for another key, since a misspelled one would silently be the default.
        """
        table = self.values.get(name, {}) if name else self.values
        if not isinstance(table, dict):
            raise self.error("", name, f"{name} must be a table: write [{name}]")
        for key in table:
            if key not in keys.split():
                known = ", ".join(keys.split())
                raise self.error(name, key, f"unknown key {key!r}: use some of {known}")
        return table

    def take(
        self, name: str, key: str, check: Callable[[Any, str], Any], default: Any = REQUIRED
    ) -> Any:
        """The value of a key in a table, as `check(value, key)` returns it.

        Raises TaskError for what `check` refuses, and for an absent key that has no default.
        """
        table = self.values.get(name, {}) if name else self.values
        if key not in table:
            if default is REQUIRED:
                where = f"[{name}]" if name else "the top of the file"
                raise self.error(name, key, f"{where} has no {key!r}: add it")
            return default
        try:
            return check(table[key], key)
        except (TypeError, ValueError) as error:
            raise self.error(name, key, str(error)) from None

    def error(self, name: str, key: str, problem: str) -> TaskError:
        """A problem with a key of a table."""
        return TaskError(f"{self.path}, line {line_of(self.text, name, key)}: {problem}")


def read_toml(path: Path) -> TomlFile:
    """Read a file. Raises TaskError, with the line, if it isn't TOML in UTF-8.

    >>> read_toml(Path("/nowhere/a.toml"))
    Traceback (most recent call last):
    ...
    course_pkg.evaluation.run_errors.TaskError: /nowhere/a.toml does not exist: correct its path
    """
    try:
        text = path.read_text("utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except FileNotFoundError:
        raise TaskError(f"{path} does not exist: correct its path") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from None
    except RecursionError:
        raise TaskError(
            f"{path} is nested too deeply: a task has tables of texts and lists"
        ) from None
    except tomllib.TOMLDecodeError as error:
        hint = 'write texts as "…", and a line break in them as \\n'
        raise TaskError(f"{path} is not TOML: {error}: {hint}") from None


def line_of(text: str, table: str, key: str) -> int:
    """The line of a key in a table of a TOML text, or else of the table; 1 if neither is there.

    >>> text = 'items = "a"\\n[prompt]\\nchat = 1'
    >>> line_of(text, "prompt", "chat"), line_of(text, "prompt", "stop")
    (3, 2)
    """
    found = 1
    inside = table == ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r'\s*\[+\s*"?([\w-]+)', line):
            inside = header[1] == table
            if inside or (not table and header[1] == key):
                found = number
        elif inside and re.match(rf'\s*"?{re.escape(key)}"?\s*=', line):
            return number
    return found
