"""What the page's worker calls: every function takes JSON and returns JSON.

Importing this module also gives the browser's Python what it lacks and the course's code uses:
`IPython.display`, and the timer behind the time limit of an answer.
"""

import builtins
import json
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from course_pkg.pages.labs import shown
from course_pkg.pages.labs.cells import Cells

MODULES = "Python has its standard library and this course here. For other packages, use Jupyter."
NOT_CHECKED = "Your answer's cell ended with an error: {}, so nothing was checked."
PART_CHECKED = (
    "Your answer's cell ended with an error: {}. What it had defined by then was checked."
)
_cells = Cells()


def run(emit: Callable[[str], None], arguments: str) -> str:
    """Run a cell.

    Args:
        emit: gets each output.
        arguments: {"code", "name", "quiet": hand over nothing, "answer": the name of the cell that
            has the answer, if this one checks it}.

    Returns:
        {"ended": whether without an error}, and the points if the cell ended with a `check`.
    """
    request = json.loads(arguments)
    failed = _cells.failed.get(request.get("answer"))

    def hand_over(output: dict[str, Any]) -> None:
        if failed and "error" in output:
            output = {"note": NOT_CHECKED.format(failed)}
        if not request.get("quiet"):
            emit(json.dumps(output))

    reply: dict[str, Any] = {"ended": _cells.run(request["code"], request["name"], hand_over)}
    if isinstance(_cells.error, ModuleNotFoundError):
        hand_over({"note": MODULES})
    report = sys.modules.get("course_pkg.grading.questions.report")
    if report and isinstance(_cells.last, report.Score):
        reply["score"] = float(_cells.last)
        if failed:
            hand_over({"note": PART_CHECKED.format(failed)})
    return json.dumps(reply)


def reset(emit: Callable[[str], None], arguments: str) -> str:
    """Forget every name that cells have defined, and what they have given to `check`."""
    global _cells
    _cells = Cells()
    if check := sys.modules.get("course_pkg.grading.check"):
        check.forget()
    return json.dumps({})


def imported(emit: Callable[[str], None], arguments: str) -> str:
    """The answers in a notebook of the reader.

    Args:
        arguments: {"text": of the file, "notebook": the released one, "name": of the assignment}.

    Returns:
        {"cells": texts by the cell's id, "others": how many cells of the reader's own have code},
        or {"problem"}.
    """
    from course_pkg.grading.assemble import notebook_to_run, written_cells
    from course_pkg.grading.read_notebook import Unreadable, read_release

    request = json.loads(arguments)
    released = read_release(json.dumps(request["notebook"]).encode())
    data = request["text"].encode("utf-8", "replace")
    try:
        cells = written_cells(data, released, request["name"])
        run = notebook_to_run(data, released, request["name"]).notebook["cells"]
    except Unreadable as error:
        return json.dumps({"problem": str(error)})
    free = [cell for cell in run if cell["cell_type"] == "code" and not cell["metadata"]]
    own = [cell for cell in free if cell["source"].strip() and cell["source"] not in cells.values()]
    return json.dumps({"cells": cells, "others": len(own)})


def view(emit: Callable[[str], None], arguments: str) -> str:
    """The view of a playground. arguments: {"playground", "values"}; returns {"html"}."""
    from course_pkg.pages.labs.playgrounds import playground

    request = json.loads(arguments)
    return json.dumps({"html": playground(request["playground"]).show(request["values"])})


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
