"""Reading the file that a student handed in: hostile bytes in, a fresh notebook out.

`read` takes nothing over but the cells' types, sources and grade ids: no output, attachment,
metadata or kernel of the student's survives. Its time and memory are bounded by the file's size.

Chapter: appendix/for-instructors.
"""

import copy
import json
import re
from typing import Any

import nbformat
from nbformat import NotebookNode

from ..contract.texts import one_line

MIB = 1024 * 1024
MAX_BYTES = 16 * MIB
MAX_VALUES = 1_000_000  # in the JSON, keys included
MAX_CELLS = 2_000
MAX_GRADE_ID = 100
TYPES = ("code", "markdown", "raw")
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udfff\0]")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Unreadable(ValueError):
    """No notebook can be made of the bytes; the message says why."""


def read(data: bytes) -> NotebookNode:
    """The notebook in hostile bytes, made anew: types, sources and grade ids, nothing else.

    A cell that is no cell makes the file unreadable, as it does for Jupyter. Formats 1 to 4 are
    read. Raises Unreadable.

    >>> read(b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}').cells
    []
    """
    tree = _parse(data)
    version = tree.get("nbformat")
    if type(version) is not int or not 1 <= version <= 4:
        said = version if type(version) is int else _kind(version)
        raise Unreadable(f"nbformat is {said}; wanted 4 (Jupyter's), or an older one")
    if version < 4:
        tree = _upgraded(tree, version)
    cells = _list(tree.get("cells"), "the notebook's cells")
    _few(len(cells))
    return notebook([_cell(cell, number) for number, cell in enumerate(cells, 1)])


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{len(data):,} bytes; at most {MAX_BYTES:,}")
    data = data.removeprefix(b"\xef\xbb\xbf")
    values = data.count(b'"') // 4  # as many strings, at least, or quotes within them
    if values <= MAX_VALUES:
        bare = _STRINGS.sub(b'"', data)
        values = sum(map(bare.count, (b",", b":", b"[", b"{")))
    if values > MAX_VALUES:
        raise Unreadable(f"{values:,} values in the file; at most {MAX_VALUES:,}")
    try:
        tree = json.loads(data.decode("utf-8"), parse_int=_integer, parse_constant=lambda _: None)
    except UnicodeDecodeError:
        raise Unreadable("the file is not text in UTF-8; save it from Jupyter again") from None
    except RecursionError:
        raise Unreadable("the file is nested too deeply for a notebook") from None
    except ValueError as error:
        raise Unreadable(f"the file is not JSON ({one_line(str(error), 120)})") from None
    if not isinstance(tree, dict):
        raise Unreadable(f"the file holds {_kind(tree)}; wanted a notebook")
    return tree


def _integer(digits: str) -> int:
    return int(digits) if len(digits) < 16 else 0


def _upgraded(tree: dict[str, Any], version: int) -> dict[str, Any]:
    """An older notebook in format 4, by nbformat, from its cells' types and texts alone."""
    sheets = [tree] if version == 1 else _list(tree.get("worksheets"), "the worksheets")
    cells: list[dict[str, Any]] = []
    for sheet in sheets:
        of_sheet = sheet.get("cells") if isinstance(sheet, dict) else None
        for cell in _list(of_sheet, "a worksheet's cells"):
            _few(len(cells) + 1)
            where = f"cell {len(cells) + 1}"
            if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
                raise Unreadable(f"{where} is {_kind(cell)}; wanted a cell with its type")
            field = next((f for f in ("input", "code", "source", "text") if f in cell), "source")
            text, level = _text(cell.get(field, ""), where), cell.get("level")
            meta = cell.get("metadata")
            kept = {"nbgrader": meta.get("nbgrader")} if isinstance(meta, dict) else {}
            plain = {"cell_type": cell["cell_type"], field: text, "metadata": kept}
            if cell["cell_type"] == "heading":
                plain["level"] = level if type(level) is int and 1 <= level <= 6 else 1
            elif cell["cell_type"] == "code":
                plain |= {"outputs": [], "language": "python"}
            cells.append(plain)
    body = {"cells": cells} if version == 1 else {"worksheets": [{"cells": cells, "metadata": {}}]}
    old = {"nbformat": version, "nbformat_minor": 0, "metadata": {}, **body}
    try:
        return dict(nbformat.convert(nbformat.from_dict(old), 4))
    except Exception as error:  # the old formats' code raises many types
        raise Unreadable(f"a notebook of format {version} that nbformat can't read") from error


def _cell(cell: Any, number: int) -> NotebookNode:
    kind = cell.get("cell_type") if isinstance(cell, dict) else None
    if not isinstance(kind, str) or kind not in TYPES:
        typed = isinstance(kind, str)
        found = f"of type {one_line(kind, 40)!r}" if typed else f"{_kind(cell)} without a type"
        raise Unreadable(f"cell {number} is {found}; wanted code, markdown or raw")
    made = fresh(kind, _text(cell.get("source", ""), f"cell {number}"))
    meta = cell.get("metadata")
    meta = meta.get("nbgrader") if isinstance(meta, dict) else None
    name = meta.get("grade_id") if isinstance(meta, dict) else None
    if isinstance(name, str) and 0 < len(name) <= MAX_GRADE_ID:
        made.metadata.nbgrader = NotebookNode(grade_id=_SURROGATES.sub("\ufffd", name))
    return made


def _text(source: Any, where: str) -> str:
    lines = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) for line in lines):
        raise Unreadable(f"the source of {where} is {_kind(source)}; wanted text")
    return _SURROGATES.sub("\ufffd", "".join(lines))


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Unreadable(f"{what}: found {_kind(value)}; wanted a list")
    return value


def _few(count: int) -> None:
    if count > MAX_CELLS:
        raise Unreadable(f"{count:,} cells; at most {MAX_CELLS:,}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "nothing" if value is None else names.get(type(value), "a number")


def fresh(kind: str, source: str) -> NotebookNode:
    """A cell of a kind with this source, and nothing else."""
    extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return nbformat.from_dict({"cell_type": kind, "metadata": {}, "source": source, **extra})


def notebook(cells: list[NotebookNode]) -> NotebookNode:
    """A notebook for Python of these cells, each with an id."""
    taken = {cell.get("id") for cell in cells}
    for number, cell in enumerate(cells, 1):
        if "id" not in cell:
            name = f"own-{number}"
            cell.id = name if name not in taken else f"own-{number}-again"
    meta = copy.deepcopy(_METADATA)
    return nbformat.from_dict(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": meta, "cells": cells}
    )
