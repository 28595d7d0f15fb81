"""Run the cells of a page as Jupyter does: what they print, show and raise, as plain outputs.

An output is a dict: {"stream": "stdout", "text": …}, {"data": {MIME type: text}} or
{"error": traceback}. It is handed to `emit` as soon as there is one.
"""

import ast
import contextlib
import io
import linecache
import pprint
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from course_pkg.grading.questions.display import one_line

Output = dict[str, Any]
Emit = Callable[[Output], None]

# A line is handed over at once, but after many in a short time only ten times a second.
FLUSH_S = 0.1
BURST_S = 5.0
MOST_TEXT = 200_000  # characters that one cell may print
CUT = f"\n[… the rest is cut: more than {MOST_TEXT:,} characters]\n"
WIDTH = 79
SHOWN = 300  # characters of an error in a sentence
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
}
CONTAINERS = (list, tuple, dict, set, frozenset)


class Cells:
    """Names that a page's cells share.

    Example:

        >>> outputs = []
        >>> Cells().run("x = 2\\nprint(x)\\nx + 1", "cell 1", outputs.append)
        True
        >>> outputs
        [{'stream': 'stdout', 'text': '2\\n'}, {'data': {'text/plain': '3'}}]
    """

    def __init__(self) -> None:
        """failed: by cell, the error that ended it, unless an answer is still to be written."""
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self.last: Any = None  # the value of the last expression that ended a cell
        self.error: BaseException | None = None  # with which the last cell ended
        self.failed: dict[str, str] = {}

    def run(self, code: str, name: str, emit: Emit) -> bool:
        """Run a cell, and say whether it ended without an error; name: the file in tracebacks."""
        self.last = self.error = None
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        written = _Written(emit)
        with (
            contextlib.redirect_stdout(written.stream("stdout")),
            contextlib.redirect_stderr(written.stream("stderr")),
            showing(written),
        ):
            try:
                body, last = _compiled(code, name)
                exec(body, self.names)
                if last is not None:
                    self.last = eval(last, self.names)
                    if self.last is not None:
                        written.show(self.last)
            except BaseException as error:
                written.flush()
                self.error = error
                if not isinstance(error, NotImplementedError):
                    said = traceback.format_exception_only(error)[-1]
                    self.failed[name] = one_line(said.strip(), SHOWN)
                emit({"error": _traceback(error, name)})
                return False
            written.flush()
        return True


def _compiled(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The code of the cell, and of its last line if that is to be shown."""
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        expression = ast.Expression(tree.body.pop().value)
        last = compile(expression, name, "eval")
    return compile(tree, name, "exec"), last


def _traceback(error: BaseException, name: str) -> str:
    """The traceback as Python prints it, from the cell's own line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != name:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def mime_bundle(value: Any) -> dict[str, str]:
    """What Jupyter would show for a value, by MIME type."""
    bundle = {}
    for mime, method in METHODS.items():
        make = getattr(value, method, None)
        if callable(make) and not isinstance(value, type):
            text = make()
            if text is not None:
                bundle[mime] = text
    plain = isinstance(value, CONTAINERS) and type(value).__repr__ in _REPRS
    bundle["text/plain"] = (
        pprint.pformat(value, width=WIDTH, sort_dicts=False) if plain else repr(value)
    )
    return bundle


class _Written:
    """What a cell has written and not yet handed over: outputs stay in the order they came."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.left = MOST_TEXT
        self.kind = ""
        self.parts: list[str] = []
        self.free = time.monotonic() - BURST_S  # when the next line may be handed over

    def stream(self, kind: str) -> io.TextIOBase:
        return _Stream(self, kind)

    def write(self, kind: str, text: str) -> None:
        if kind != self.kind:
            self.flush()
            self.kind = kind
        if self.left > 0:
            self.parts.append(text[: self.left] + (CUT if len(text) > self.left else ""))
            self.left -= len(text)
        if "\n" in text and time.monotonic() >= self.free:
            self.flush()

    def show(self, value: Any) -> None:
        self.flush()
        self.emit({"data": mime_bundle(value)})

    def flush(self) -> None:
        text = "".join(self.parts)
        self.parts.clear()
        if text:
            self.free = max(self.free, time.monotonic() - BURST_S) + FLUSH_S
            self.emit({"stream": self.kind, "text": text})


class _Stream(io.TextIOBase):
    def __init__(self, written: _Written, kind: str) -> None:
        self.written = written
        self.kind = kind

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.write(self.kind, text)
        return len(text)

    def flush(self) -> None:
        self.written.flush()


_REPRS = tuple(kind.__repr__ for kind in CONTAINERS)
_showing: list[_Written] = []


@contextlib.contextmanager
def showing(written: _Written) -> Any:
    """Where `display` writes while a cell runs."""
    _showing.append(written)
    try:
        yield
    finally:
        _showing.pop()


def display(*values: Any) -> None:
    """Show values below the running cell, as `IPython.display.display` does; print elsewhere."""
    for value in values:
        if _showing:
            _showing[-1].show(value)
        else:
            print(mime_bundle(value)["text/plain"])
