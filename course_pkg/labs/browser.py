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


def run(emit: Callable[[str], None], arguments: str) -> str:
    """Run a cell. arguments: {"code", "name", "quiet"}; quiet: hand over nothing.

    Returns {"ended": whether without an error}, and the points if the cell ended with a `check`.
    """
    given = json.loads(arguments)

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
    return json.dumps({})


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
