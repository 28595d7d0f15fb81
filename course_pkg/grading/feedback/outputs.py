"""What cells put out, made fit to show to instructors and students.

Outputs come as decoded JSON from a student's kernel, so they are whatever the student wished.
`clean` makes nbformat's outputs of them: text, pictures whose bytes are pictures, tables; of
anything else it says that it is not shown. It never raises. `markup` does the HTML and Markdown.

Chapter: appendix/for-instructors.
"""

import re
from collections.abc import Iterable
from typing import Any

import nbformat
from nbformat import NotebookNode

from ..contract.texts import one_line
from .images import KINDS as PICTURES
from .images import picture
from .sanitize import clean_html, clean_markdown, printable

__all__ = ["clean", "clean_all", "clean_cells", "clean_html", "clean_markdown"]

MAX_TEXT = 200_000  # characters of one cell's text
MAX_OUTPUTS = 100  # of one cell, streams joined
MAX_SEEN = 100_000  # of one cell, as they came
MAX_IMAGES = 10_000_000  # characters of one cell's pictures
MAX_ALL = 20_000_000  # characters of a whole notebook's outputs
MAX_COLOURS = 2_000  # changes of color in one text; a report's time grows with their square
MAX_RENDERED = 300_000  # characters of Markdown in a notebook
_STREAMS = ("stdout", "stderr")
_ESCAPES = re.compile(r"\x1b(?:\[([0-9;]{0,40})m|\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*\x07?|[@-~]?)")
_KEPT = {0, 1, 3, 4, 7, 22, 24, 27, 39, 49, *range(30, 38), *range(40, 48), *range(90, 98),
         *range(100, 108)}  # fmt: skip


def clean(outputs: Any) -> list[NotebookNode]:
    """The outputs of one untrusted cell, fit to show, from any JSON value. Never raises.

    Texts are cut aloud in the middle, at MAX_TEXT characters a cell.

    >>> clean([{"output_type": "display_data", "data": {"application/javascript": "x()"}}])[0].text
    '[not shown: application/javascript]\\n'
    """
    made: list[NotebookNode] = []
    unseen: dict[str, int] = {}
    left, pixels = MAX_TEXT, MAX_IMAGES
    if not isinstance(outputs, list):
        outputs, unseen = [], ({} if outputs is None else {"outputs that are no list": 1})
    if len(outputs) > MAX_SEEN:
        unseen[f"{len(outputs) - MAX_SEEN:,} further outputs"] = 1
    for output in _joined(outputs[:MAX_SEEN]):
        if len(made) >= MAX_OUTPUTS or left <= 0:
            unseen["further outputs"] = unseen.get("further outputs", 0) + 1
            continue
        one, dropped = _output(output, left, pixels)
        for what in dropped:
            unseen[what] = unseen.get(what, 0) + 1
        if one is not None:
            made.append(one)
            images = sum(len(one.get("data", {}).get(kind, "")) for kind in PICTURES)
            left, pixels = left - (_size(one) - images), pixels - images
    if unseen:
        said = [f"{what} ({times} times)" if times > 1 else what for what, times in unseen.items()]
        more = f", and {len(said) - 10:,} other kinds" if len(said) > 10 else ""
        made.append(_stream("stderr", f"[not shown: {', '.join(said[:10])}{more}]\n"))
    return made


def clean_all(cells: Iterable[Any]) -> list[list[NotebookNode]]:
    """The outputs of each of a notebook's cells, fit to show, and MAX_ALL characters together."""
    made, left = [], MAX_ALL
    for outputs in cells:
        shown = clean(outputs)
        size = sum(map(_size, shown))
        if size > left:
            said = "[not shown: the notebook's cells put out too much before this one]\n"
            shown, size = [_stream("stderr", said)], 0
        left -= size
        made.append(shown)
    return made


def clean_cells(cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """A notebook's cells, fit to show: the student's own Markdown, and raw text as Markdown.

    Code cells and locked ones come back as they are. After MAX_RENDERED characters Markdown is
    shown as it was written, for reading it takes time.
    """
    made, left = [], MAX_RENDERED
    for cell in cells:
        locked = cell.metadata.get("nbgrader", {}).get("locked")
        if cell.cell_type != "code" and not locked:
            left -= len(cell.source)
            source = clean_markdown(cell.source, rendered=left >= 0)
            cell = nbformat.from_dict({**cell, "cell_type": "markdown", "source": source})
        made.append(cell)
    return made


def _joined(outputs: list[Any]) -> list[Any]:
    """The outputs, with neighbors of the same stream as one: a progress bar writes hundreds."""
    joined: list[Any] = []
    last: tuple[str, list[str]] | None = None
    for output in outputs:
        stream = isinstance(output, dict) and output.get("output_type") == "stream"
        name, text = (output.get("name"), _words(output.get("text"))) if stream else (None, None)
        if text is None or name not in _STREAMS:
            joined.append(output)
            last = None
        elif last and last[0] == name:
            last[1].append(text)
        else:
            last = (name, [text])
            joined.append({"output_type": "stream", "name": name, "text": last[1]})
    return joined


def _output(output: Any, left: int, pixels: int) -> tuple[NotebookNode | None, list[str]]:
    """One output, fit to show, and what of it is not shown."""
    kind = output.get("output_type") if isinstance(output, dict) else None
    if kind == "stream" and output.get("name") in _STREAMS:
        text = _words(output.get("text"))
        if text is not None:
            return _stream(output["name"], _text(text, left)), []
    elif kind == "error":
        lines = _words(output.get("traceback"), "\n") or ""
        name, value = (one_line(_words(output.get(key)) or "") for key in ("ename", "evalue"))
        lines = _text(lines or f"{name}: {value}", left)
        made = {"ename": name, "evalue": value, "traceback": lines.split("\n")}
        return nbformat.from_dict({"output_type": "error", **made}), []
    elif kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
        data, dropped = _bundle(output["data"], left, pixels)
        if not data:
            return None, dropped
        extra = {"execution_count": None} if kind == "execute_result" else {}
        made = {"output_type": kind, "data": data, "metadata": {}, **extra}
        return nbformat.from_dict(made), dropped
    elif kind in ("update_display_data", "clear_output"):
        return None, []
    said = one_line(kind, 40) if isinstance(kind, str) else "no kind"
    return None, [f"an output of {said}"]


def _bundle(data: dict[str, Any], left: int, pixels: int) -> tuple[dict[str, str], list[str]]:
    """What is shown of one output's forms, and what is not."""
    made: dict[str, str] = {}
    dropped = []
    plain = _words(data.get("text/plain"))
    if plain is not None:
        made["text/plain"] = _text(plain, left)
    for kind in PICTURES:
        if kind in data:
            found = picture(_words(data[kind]) or "", kind, pixels)
            made |= {kind: found} if found else {}
            dropped += [] if found else [f"{kind} (no such picture, or too large)"]
    if "text/html" in data:
        words = _words(data["text/html"])
        html = clean_html(words) if words is not None else None
        if html is not None and len(html) <= left:
            made["text/html"] = html
        else:
            dropped.append("text/html (too large)")
    known = {"text/plain", "text/html", *PICTURES}
    others = [kind for kind in list(data)[:20] if kind not in known]
    return made, dropped + [one_line(str(kind), 60) for kind in others]


def _words(value: Any, glue: str = "") -> str | None:
    """The text in JSON's two ways of writing it; None for anything else."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return glue.join(value)
    return value if isinstance(value, str) else None


def _text(text: str, limit: int) -> str:
    """Plain text with plain colors, its lines as a terminal leaves them, cut in the middle."""
    if len(text) > limit:
        half = limit // 2
        cut = f"\n[… {len(text) - 2 * half:,} characters are not shown …]\n"
        text = f"{text[:half]}{cut}{text[len(text) - half :]}"
    lines = text.replace("\r\n", "\n").split("\n")
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    out, at, colors = [], 0, 0
    for escape in _ESCAPES.finditer(text):
        out.append(printable(text[at : escape.start()]))
        at, codes = escape.end(), escape[1]
        if codes is not None and colors < MAX_COLOURS and _plain_colour(codes):
            colors += 1
            out.append(f"\x1b[{codes}m")
    return "".join([*out, printable(text[at:])])


def _plain_colour(codes: str) -> bool:
    """Whether codes are plain colors, complete: reports fail on one that breaks off."""
    left = [int(code or 0) for code in codes.split(";")]
    while left:
        code = left.pop(0)
        if code in (38, 48):
            count = {5: 1, 2: 3}.get(left.pop(0), 99) if left else 99
            if len(left) < count or max(left[:count]) > 255:
                return False
            del left[:count]
        elif code not in _KEPT:
            return False
    return True


def _stream(name: str, text: str) -> NotebookNode:
    return nbformat.from_dict({"output_type": "stream", "name": name, "text": text})


def _size(output: NotebookNode) -> int:
    texts = [output.get("text", ""), *output.get("data", {}).values(), *output.get("traceback", [])]
    return sum(map(len, texts)) + 1
