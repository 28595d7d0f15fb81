"""What can be imported in the browser, where there are only the standard library and this course.

`python -m course_pkg.labs.imports` reads one JSON list [module, name] a line, and answers with the
package that importing it would need, or "" if nothing is missing. It refuses every other package,
as the browser does, so the answers are those of real imports.

Chapter: labs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules of the standard library that Pyodide leaves out.
LEFT_OUT = {"curses", "dbm", "ensurepip", "fcntl", "grp", "lzma", "msvcrt", "nt", "pty", "pwd"}
LEFT_OUT |= {"readline", "resource", "sqlite3", "ssl", "syslog", "termios", "tkinter", "tty"}
LEFT_OUT |= {"venv", "winreg", "winsound"}
# These can be imported, but start no thread and no process.
USELESS = {"multiprocessing", "subprocess"}
COURSE = "course_pkg"


class OnlyStandard(MetaPathFinder):
    """Refuses to import what is neither in the browser's standard library nor this course."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, so that the next finder looks; ModuleNotFoundError for what is refused."""
        root = name.partition(".")[0]
        if root == COURSE or (root in sys.stdlib_module_names and root not in LEFT_OUT):
            return None
        raise ModuleNotFoundError(f"No module named {root!r}", name=root)


def missing(module: str, name: str = "") -> str:
    """The package that `from module import name` needs and that is not there; "" if none.

    name: "" for `import module`. A module or name that doesn't exist is itself what is missing.

    >>> missing("math", "pi"), missing("course_pkg.metrics.ngrams", "count")
    ('', '')
    """
    if module.partition(".")[0] in USELESS:
        return module
    try:
        found = import_module(module)
        if name and name != "*" and not hasattr(found, name):
            import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return error.name or module
    except ImportError:
        return module
    return ""


def main() -> None:
    """Answer the questions on stdin, one a line, until it ends."""
    sys.meta_path.insert(0, OnlyStandard())
    import course_pkg.labs.browser  # noqa: F401  gives IPython.display

    for line in sys.stdin:
        print(json.dumps(missing(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
