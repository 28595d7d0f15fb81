"""Read the notebook file that a student submitted: untrusted bytes in, a new notebook out.

`read` keeps the cells' types, sources and what identifies them (grade id, nbgrader's checksum, the
cell's own id): no output, attachment, other metadata or kernel. The file's size bounds its time and
memory. Only the standard library is imported.
"""

import copy
import json
import re
from typing import Any

from course_pkg.grading.questions.display import one_line

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000  # in the JSON, keys included
MAX_CELLS = 2_000
MAX_GRADE_ID = 100
TYPES = ("code", "markdown", "raw")
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SURROGATES = re.compile("[\ud800-\udfff\0]")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Unreadable(ValueError):
    """The bytes are not a notebook; the message says why."""


def read(data: bytes) -> dict[str, Any]:
    """A new notebook of the cells in untrusted bytes: their types, sources and what names them.

    One malformed cell makes the file unreadable, as it does for Jupyter. Only nbformat 4 is
    accepted. Raises Unreadable.
    """
    tree = _parse(data)
    version = tree.get("nbformat")
    if type(version) is not int or version != 4:
        shown = version if type(version) is int else _kind(version)
        raise Unreadable(
            f"nbformat is {shown}; expected 4: convert an older notebook with `jupyter nbconvert "
            "--to notebook`"
        )
    cells = tree.get("cells")
    if not isinstance(cells, list):
        raise Unreadable(f"the notebook's cells: found {_kind(cells)}; expected a list")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"{len(cells):,} cells; at most {MAX_CELLS:,}")
    return new_notebook([_cell(cell, number) for number, cell in enumerate(cells, 1)])


def read_release(data: bytes) -> dict[str, Any]:
    r"""The notebook that students got, with its metadata: the course's own, which is trusted."""
    tree = json.loads(data)
    return {**tree, "cells": [{**c, "source": "".join(c["source"])} for c in tree["cells"]]}


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{len(data):,} bytes; at most {MAX_BYTES:,}")
    data = data.removeprefix(b"\xef\xbb\xbf")
    values = data.count(b'"') // 4  # a lower bound on the strings, or quotes within them
    if values <= MAX_VALUES:
        bare = _STRINGS.sub(b'"', data)
        values = sum(map(bare.count, (b",", b":", b"[", b"{")))
    if values > MAX_VALUES:
        raise Unreadable(f"{values:,} values in the file; at most {MAX_VALUES:,}")
    try:
        tree = json.loads(
            data.decode("utf-8"),
            parse_int=lambda digits: int(digits) if len(digits) < 16 else 0,
            parse_constant=lambda _: None,
        )
    except UnicodeDecodeError:
        raise Unreadable("the file is not UTF-8 text; save it from Jupyter again") from None
    except RecursionError:
        raise Unreadable("the file is nested too deeply for a notebook") from None
    except ValueError as error:
        raise Unreadable(f"the file is not JSON ({one_line(str(error), 120)})") from None
    if not isinstance(tree, dict):
        raise Unreadable(f"the file holds {_kind(tree)}; expected a notebook")
    return tree


def _cell(cell: Any, number: int) -> dict[str, Any]:
    kind = cell.get("cell_type") if isinstance(cell, dict) else None
    if not isinstance(kind, str) or kind not in TYPES:
        typed = isinstance(kind, str)
        shown = f"of type {one_line(kind, 40)!r}" if typed else f"{_kind(cell)} without a type"
        raise Unreadable(f"cell {number} is {shown}; expected code, markdown or raw")
    made = new_cell(kind, _text(cell.get("source", ""), f"cell {number}"))
    meta = cell.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    marks = meta.get("nbgrader")
    marks = marks if isinstance(marks, dict) else {}
    name = marks.get("grade_id")
    if isinstance(name, str) and 0 < len(name) <= MAX_GRADE_ID:
        made["metadata"]["nbgrader"] = {"grade_id": _SURROGATES.sub("\ufffd", name)}
        checksum = marks.get("checksum")
        if isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum):
            made["metadata"]["nbgrader"]["checksum"] = checksum
    own = cell.get("id", meta.get("id"))  # in format 4.0, some editors keep it in the metadata
    if isinstance(own, str) and _ID.fullmatch(own):
        made["metadata"]["id"] = own
    return made


def _text(source: Any, where: str) -> str:
    lines = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) for line in lines):
        raise Unreadable(f"the source of {where} is {_kind(source)}; expected text")
    return _SURROGATES.sub("\ufffd", "".join(lines))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "nothing" if value is None else names.get(type(value), "a number")


def new_cell(kind: str, source: str) -> dict[str, Any]:
    """A cell of this type with this source, and nothing else."""
    extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **extra}


def new_notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A Python notebook of these cells, each with an id."""
    taken = {cell.get("id") for cell in cells}
    for number, cell in enumerate(cells, 1):
        if "id" not in cell:
            name = f"own-{number}"
            cell["id"] = name if name not in taken else f"own-{number}-again"
    meta = copy.deepcopy(_METADATA)
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": meta, "cells": cells}
