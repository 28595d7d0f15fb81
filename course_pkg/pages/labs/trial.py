"""Try what the browser's Python can do, in a process that lacks what it lacks.

The process reads one JSON request a line and answers with one line::

    {"import": [module, name]}     → the package that is missing, or ""
    {"cells": [{code, name}, …]}   → for each cell, its outputs
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from course_pkg.pages.labs.cells import Cells, Output

# Modules of the standard library that Pyodide leaves out.
LEFT_OUT = {"curses", "dbm", "ensurepip", "fcntl", "grp", "lzma", "msvcrt", "nt", "pty", "pwd"}
LEFT_OUT |= {"readline", "resource", "sqlite3", "ssl", "syslog", "termios", "tkinter", "tty"}
LEFT_OUT |= {"venv", "winreg", "winsound"}
MOST_MEMORY = 4 * 2**30  # bytes that a program in a browser can address


class Refuse(MetaPathFinder):
    """Refuses to import what Pyodide leaves out."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def missing(module: str, name: str = "") -> str:
    """The package that `from module import name` needs and that is not there; "" if none.

    Without a name: of `import module`. A module or name that doesn't exist is itself missing.
    """
    try:
        imported = import_module(module)
        if name and name != "*" and not hasattr(imported, name):
            import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return (error.name or module).partition(".")[0]
    except ImportError:
        return module.partition(".")[0]
    return ""


def outputs(cells: list[dict[str, str]]) -> list[list[Output]]:
    """What each of a page's cells shows, one after the other in one process."""
    shared = Cells()
    by_cell = []
    for cell in cells:
        written: list[Output] = []
        shared.run(cell["code"], cell["name"], written.append)
        by_cell.append(written)
    return by_cell


def _not_supported(*_: Any, **__: Any) -> Any:
    raise OSError(138, "Not supported")


def _no_thread(*_: Any) -> Any:
    raise RuntimeError("can't start new thread")


def main() -> None:
    """Answer the requests on stdin until it ends."""
    import resource

    import course_pkg.pages.labs.browser  # noqa: F401  gives IPython.display

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    with contextlib.suppress(OSError, ValueError):  # not every system has such a limit
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sys.meta_path.insert(0, Refuse())
    for name in LEFT_OUT & sys.modules.keys():
        del sys.modules[name]
    threading.Thread.start = _no_thread
    subprocess.Popen.__init__ = os.fork = _not_supported
    socket.socket.listen = socket.socket.connect = _not_supported
    for line in requests:
        request = json.loads(line)
        reply = missing(*request["import"]) if "import" in request else outputs(request["cells"])
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
