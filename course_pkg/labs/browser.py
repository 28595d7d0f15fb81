"""What the page's worker calls: every function takes JSON and returns JSON.

Importing this module also gives the browser's Python what it lacks and the course's code uses:
`IPython.display`, and the timer behind the time limit of an answer.

Chapter: labs.
"""

from __future__ import annotations

import builtins
import json
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from course_pkg.labs import shown
from course_pkg.labs.cells import Cells

MODULES = "Python has its standard library and this course here. For other packages, use Jupyter."
_cells = Cells()
_defined: dict[str, list[str]] = {}  # what answers define, by the cell's name


def run(emit: Callable[[str], None], arguments: str) -> str:
    """Run a cell. arguments: {"code", "name", "quiet", "forget"}.

    quiet: hand over nothing. forget: first forget what an earlier version of the cell has defined,
    so that an answer that fails leaves none. Returns {"ended": whether without an error}, and the
    points if the cell ended with a `check`.
    """
    given = json.loads(arguments)
    if given.get("forget"):
        from course_pkg.grading.assemble import defined_names

        for name in _defined.pop(given["name"], ()):
            _cells.names.pop(name, None)
        _defined[given["name"]] = defined_names(given["code"])

    def hand_over(output: dict[str, Any]) -> None:
        if not given.get("quiet"):
            emit(json.dumps(output))

    found: dict[str, Any] = {"ended": _cells.run(given["code"], given["name"], hand_over)}
    if isinstance(_cells.error, ModuleNotFoundError):
        hand_over({"note": MODULES})
    report = sys.modules.get("course_pkg.grading.contract.report")
    if report and isinstance(_cells.last, report.Score):
        found["score"] = float(_cells.last)
    return json.dumps(found)


def reset(emit: Callable[[str], None], arguments: str) -> str:
    """Forget every name that cells have defined."""
    _cells.__init__()
    _defined.clear()
    return json.dumps({})


def imported(emit: Callable[[str], None], arguments: str) -> str:
    """The answers in a notebook of the reader. arguments: {"text", "notebook", "name"}.

    text: of the file; notebook: the released one; name: of the assignment. Returns {"cells": texts
    by the cell's id}, or {"problem"}.
    """
    from course_pkg.grading.assemble import written_cells
    from course_pkg.grading.read_notebook import Unreadable, read_release

    given = json.loads(arguments)
    released = read_release(json.dumps(given["notebook"]).encode())
    data = given["text"].encode("utf-8", "replace")
    try:
        return json.dumps({"cells": written_cells(data, released, given["name"])})
    except Unreadable as error:
        return json.dumps({"problem": str(error)})


def view(emit: Callable[[str], None], arguments: str) -> str:
    """The view of a playground. arguments: {"playground", "values"}; returns {"html"}."""
    from course_pkg.labs.playgrounds import playground

    given = json.loads(arguments)
    return json.dumps({"html": playground(given["playground"]).show(given["values"])})


def _give_display() -> None:
    try:
        import IPython.display  # noqa: F401
    except ImportError:
        package = ModuleType("IPython")
        package.display = sys.modules["IPython.display"] = shown
        sys.modules["IPython"] = package
        book = sys.modules["myst_nb"] = ModuleType("myst_nb")
        book.glue = lambda name, value, display=True: None  # the book's text is written already


def _give_timer(page: Any) -> None:
    """`signal.setitimer`, for the one timer that exists: the page raises SIGALRM when it is due."""
    now = [0.0, 0.0]

    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        before = (page.alarm(seconds, interval), now[1])
        now[:] = seconds, interval
        return before

    signal.ITIMER_REAL = getattr(signal, "ITIMER_REAL", 0)
    signal.setitimer = setitimer


def _no_input(prompt: object = "") -> str:
    raise OSError("a page can't ask for input: write the value into the code")


_give_display()
if sys.platform == "emscripten":
    import course_labs_page

    _give_timer(course_labs_page)
    builtins.input = _no_input
    builtins.exit = builtins.quit = sys.exit  # site's also close stdin
