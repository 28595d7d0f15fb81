"""Sanitize cell outputs, so that instructors and students can look at them safely.

Outputs come as decoded JSON from a student's kernel, so they can be any JSON value.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.classroom.feedback.sanitize import (
    IMAGES,
    checked_image,
    clean_html,
    clean_markdown,
    printable,
)
from course_pkg.grading.questions.display import one_line

MAX_TEXT = 200_000  # characters of one cell's text
MAX_OUTPUTS = 100  # of one cell, streams joined
MAX_RECEIVED = 100_000  # outputs of one cell that are looked at
MAX_IMAGES = 10_000_000  # characters of one cell's images
MAX_ALL = 20_000_000  # characters of a whole notebook's outputs
MAX_COLORS = 2_000  # color changes in one text; rendering time is quadratic in them
MAX_RENDERED = 300_000  # characters of Markdown in a notebook
_STREAMS = ("stdout", "stderr")
_ESCAPES = re.compile(r"\x1b(?:\[([0-9;]{0,40})m|\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*\x07?|[@-~]?)")
_KEPT = {0, 1, 3, 4, 7, 22, 24, 27, 39, 49}
_KEPT |= {*range(30, 38), *range(40, 48), *range(90, 98), *range(100, 108)}


def clean(outputs: Any) -> list[NotebookNode]:
    """The sanitized outputs of one cell, from any JSON value: text, images, HTML without scripts.

    Names whatever it leaves out; cuts texts above MAX_TEXT characters in the middle. Never raises.
    """
    made: list[NotebookNode] = []
    hidden: Counter[str] = Counter()
    left = MAX_TEXT
    image_room = MAX_IMAGES
    if not isinstance(outputs, list):
        if outputs is not None:
            hidden["outputs that are not a list"] = 1
        outputs = []
    if len(outputs) > MAX_RECEIVED:
        hidden[f"{len(outputs) - MAX_RECEIVED:,} further outputs"] = 1
    for output in _joined(outputs[:MAX_RECEIVED]):
        if len(made) >= MAX_OUTPUTS or left <= 0:
            hidden["further outputs"] += 1
            continue
        one, dropped = _output(output, left, image_room)
        hidden.update(dropped)
        if one is not None:
            made.append(one)
            images = sum(len(one.get("data", {}).get(kind, "")) for kind in IMAGES)
            left -= _size(one) - images
            image_room -= images
    if hidden:
        said = [f"{what} ({times} times)" if times > 1 else what for what, times in hidden.items()]
        more = f", and {len(said) - 10:,} other kinds" if len(said) > 10 else ""
        made.append(_stream("stderr", f"[not shown: {', '.join(said[:10])}{more}]\n"))
    return made


def clean_all(cells: Iterable[Any]) -> list[list[NotebookNode]]:
    """The sanitized outputs of all cells of a notebook: at most MAX_ALL characters in total."""
    made = []
    left = MAX_ALL
    for outputs in cells:
        shown = clean(outputs)
        size = sum(map(_size, shown))
        if size > left:
            said = "[not shown: the notebook's cells put out too much before this one]\n"
            shown = [_stream("stderr", said)]
            size = 0
        left -= size
        made.append(shown)
    return made


def clean_cells(cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """A notebook's cells with sanitized Markdown; raw cells become Markdown too.

    Code cells and locked cells stay unchanged. After MAX_RENDERED characters of Markdown, the rest
    is shown as source, because rendering takes time.
    """
    made = []
    left = MAX_RENDERED
    for cell in cells:
        locked = cell.metadata.get("nbgrader", {}).get("locked")
        if cell.cell_type != "code" and not locked:
            left -= len(cell.source)
            source = clean_markdown(cell.source, rendered=left >= 0)
            cell = nbformat.from_dict({**cell, "cell_type": "markdown", "source": source})
        made.append(cell)
    return made


def _joined(outputs: list[Any]) -> list[Any]:
    """The outputs, with neighbors of the same stream joined: a progress bar writes hundreds."""
    joined: list[Any] = []
    last: tuple[str, list[str]] | None = None
    for output in outputs:
        stream = isinstance(output, dict) and output.get("output_type") == "stream"
        name = output.get("name") if stream else None
        text = _joined_text(output.get("text")) if name in _STREAMS else None
        if text is None:
            joined.append(output)
            last = None
        elif last and last[0] == name:
            last[1].append(text)
        else:
            last = (name, [text])
            joined.append({"output_type": "stream", "name": name, "text": last[1]})
    return joined


def _output(output: Any, left: int, image_room: int) -> tuple[NotebookNode | None, list[str]]:
    """One sanitized output (None if nothing is left of it), and what of it is not shown."""
    kind = output.get("output_type") if isinstance(output, dict) else None
    if kind == "stream" and output.get("name") in _STREAMS:
        text = _joined_text(output.get("text"))
        if text is not None:
            return _stream(output["name"], _text(text, left)), []
    elif kind == "error":
        lines = _joined_text(output.get("traceback"), "\n") or ""
        name, value = (one_line(_joined_text(output.get(key)) or "") for key in ("ename", "evalue"))
        lines = _text(lines or f"{name}: {value}", left)
        made = {"ename": name, "evalue": value, "traceback": lines.split("\n")}
        return nbformat.from_dict({"output_type": "error", **made}), []
    elif kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
        data, dropped = _bundle(output["data"], left, image_room)
        if not data:
            return None, dropped
        extra = {"execution_count": None} if kind == "execute_result" else {}
        made = {"output_type": kind, "data": data, "metadata": {}, **extra}
        return nbformat.from_dict(made), dropped
    elif kind in ("update_display_data", "clear_output"):
        return None, []
    said = one_line(kind, 40) if isinstance(kind, str) else "no type"
    return None, [f"an output of {said}"]


def _bundle(data: dict[str, Any], left: int, image_room: int) -> tuple[dict[str, str], list[str]]:
    """The sanitized representations of one output, by MIME type, and those that are not shown."""
    made: dict[str, str] = {}
    dropped = []
    plain = _joined_text(data.get("text/plain"))
    if plain is not None:
        made["text/plain"] = _text(plain, left)
    for kind in IMAGES:
        if kind in data:
            image = checked_image(_joined_text(data[kind]) or "", kind, image_room)
            if image:
                made[kind] = image
            else:
                dropped.append(f"{kind} (damaged, or too large)")
    if "text/html" in data:
        source = _joined_text(data["text/html"])
        html = clean_html(source) if source is not None else None
        if html is not None and len(html) <= left:
            made["text/html"] = html
        else:
            dropped.append("text/html (too large)")
    known = {"text/plain", "text/html", *IMAGES}
    others = [kind for kind in list(data)[:20] if kind not in known]
    return made, dropped + [one_line(str(kind), 60) for kind in others]


def _joined_text(value: Any, glue: str = "") -> str | None:
    """A text, or a list of lines joined by `glue`; None for anything else."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return glue.join(value)
    return value if isinstance(value, str) else None


def _text(text: str, limit: int) -> str:
    """Text with plain colors only, carriage returns applied as in a terminal, cut in the middle."""
    if len(text) > limit:
        half = limit // 2
        cut = f"\n[… {len(text) - 2 * half:,} characters are not shown …]\n"
        text = f"{text[:half]}{cut}{text[len(text) - half :]}"
    lines = text.replace("\r\n", "\n").split("\n")
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    out = []
    at = 0
    colors = 0
    for escape in _ESCAPES.finditer(text):
        out.append(printable(text[at : escape.start()]))
        at = escape.end()
        codes = escape[1]
        if codes is not None and colors < MAX_COLORS and _is_plain_color(codes):
            colors += 1
            out.append(f"\x1b[{codes}m")
    return "".join([*out, printable(text[at:])])


def _is_plain_color(codes: str) -> bool:
    """Whether the codes are complete; nbconvert fails on incomplete ones."""
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
