"""Stalls caused by the file: broken, old, future, deeply nested and huge notebooks."""

import io
import json
import zipfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

NAME = "lora-math.ipynb"


def _write(folder: Path, data: str | bytes) -> None:
    (folder / NAME).write_bytes(data.encode() if isinstance(data, str) else data)


def bash_cell(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A %%bash cell at the end, with a background and a foreground program."""
    source = "%%bash\nsleep 100000 &\nsleep 100000"
    nb.cells.append(nbformat.v4.new_code_cell(source, id="bash"))
    return nb


def reset_after_setup(nb: NotebookNode, folder: Path) -> NotebookNode:
    """%reset -f before the first question is checked."""
    at = next(i for i, cell in enumerate(nb.cells) if cell.source.startswith("check("))
    nb.cells.insert(at, nbformat.v4.new_code_cell("%reset -f", id="reset"))
    return nb


def truncated(nb: NotebookNode, folder: Path) -> None:
    """The first half of the file."""
    text = nbformat.writes(nb)
    _write(folder, text[: len(text) // 2])


def binary(nb: NotebookNode, folder: Path) -> None:
    """Random bytes."""
    _write(folder, bytes(range(256)) * 500)


def empty(nb: NotebookNode, folder: Path) -> None:
    """An empty file."""
    _write(folder, b"")


def utf_16(nb: NotebookNode, folder: Path) -> None:
    """The text in UTF-16."""
    _write(folder, nbformat.writes(nb).encode("utf-16"))


def null(nb: NotebookNode, folder: Path) -> None:
    """JSON's null."""
    _write(folder, "null")


def no_cells(nb: NotebookNode, folder: Path) -> None:
    """A notebook whose cells are a number."""
    _write(folder, json.dumps({**nb, "cells": 7}))


def web_page(nb: NotebookNode, folder: Path) -> None:
    """An HTML page."""
    _write(folder, "<!doctype html><title>lora-math</title><p>Please log in.</p>")


def zipped(nb: NotebookNode, folder: Path) -> None:
    """A zip with the notebook in it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(NAME, nbformat.writes(nb))
    _write(folder, data.getvalue())


def format_3(nb: NotebookNode, folder: Path) -> None:
    """The notebook in nbformat 3; nbgrader's metadata stays in its cells."""
    _write(folder, nbformat.writes(nb, version=3))


def format_2(nb: NotebookNode, folder: Path) -> None:
    """nbformat 3, with the number 2 and without cell metadata."""
    old = json.loads(nbformat.writes(nb, version=3))
    old.update(nbformat=2)
    old.pop("nbformat_minor", None)
    for cell in old["worksheets"][0]["cells"]:
        cell.pop("metadata", None)
    _write(folder, json.dumps(old))


def format_5(nb: NotebookNode, folder: Path) -> None:
    """nbformat 5."""
    _write(folder, json.dumps({**nb, "nbformat": 5, "nbformat_minor": 0}))


def format_of_text(nb: NotebookNode, folder: Path) -> None:
    """Format numbers that are text or negative."""
    _write(folder, json.dumps({**nb, "nbformat": "4", "nbformat_minor": -1}))


def deep_nesting(nb: NotebookNode, folder: Path) -> None:
    """Only brackets."""
    _write(folder, "[" * 100_000 + "]" * 100_000)


def deep_metadata(nb: NotebookNode, folder: Path) -> None:
    """Nested tables, 900 levels deep."""
    deep = '{"x":' * 900 + "{}" + "}" * 900
    nb["metadata"]["deep"] = nb.cells[0]["metadata"]["deep"] = "DEEP"
    _write(folder, json.dumps(nb).replace('"DEEP"', deep))


def lone_surrogates(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Surrogates, written as JSON escapes."""
    nb.cells.append(nbformat.v4.new_code_cell("x = '\ud800'", id="surrogate"))
    nb.cells.append(nbformat.v4.new_markdown_cell("\udfff", id="surrogate-2"))
    nb["metadata"]["title"] = "\udc80"
    return nb


def nan_in_json(nb: NotebookNode, folder: Path) -> None:
    """Numbers that JSON does not allow."""
    text = json.dumps({**nb, "metadata": {**nb.metadata, "x": float("nan"), "y": float("inf")}})
    _write(folder, text.replace('"y"', '"z": 1e999, "n": ' + "9" * 5000 + ', "y"'))


def sources_of_wrong_types(nb: NotebookNode, folder: Path) -> None:
    """Sources that are not text."""
    text = json.loads(nbformat.writes(nb))
    for cell, source in zip(text["cells"], (7, None, {"a": 1}, [["x"]], [7], True), strict=False):
        cell["source"] = source
    _write(folder, json.dumps(text))


def wrong_name(nb: NotebookNode, folder: Path) -> None:
    """A different file name."""
    (folder / "Lora-Math (1).ipynb").write_text(nbformat.writes(nb))


def two_notebooks(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A second notebook next to the first."""
    (folder / "Untitled.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook()))
    return nb


def no_notebook(nb: NotebookNode, folder: Path) -> None:
    """Only a text file."""
    (folder / "sorry.txt").write_text("My dog ate it.")


def kernelspec_r(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The metadata that R's kernel writes."""
    nb["metadata"]["kernelspec"] = {"display_name": "R", "language": "R", "name": "ir"}
    nb["metadata"]["language_info"] = {
        "name": "R",
        "file_extension": ".r",
        "mimetype": "text/x-r-source",
        "version": "4.3.1",
        "pygments_lexer": "r",
        "codemirror_mode": "r",
    }
    return nb


def kernelspec_sage(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The metadata that Sage's kernel writes."""
    spec = {"display_name": "SageMath 10.2", "language": "sage", "name": "sagemath"}
    nb["metadata"]["kernelspec"] = spec
    nb["metadata"].pop("language_info", None)
    return nb


def ten_thousand_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """10,000 additional cells."""
    for number in range(10_000):
        nb.cells.append(nbformat.v4.new_code_cell(f"x = {number}", id=f"cell-{number}"))
    return nb


def hundred_megabytes(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Saved outputs of a hundred megabytes."""
    output = nbformat.v4.new_output("stream", name="stdout", text="x" * 1_000_000)
    cell = next(cell for cell in nb.cells if cell.cell_type == "code")
    cell["outputs"] = [output] * 100
    return nb


def long_line(nb: NotebookNode, folder: Path) -> NotebookNode:
    """An expression of 5 MB, and one of 50,000 brackets."""
    nb.cells.append(nbformat.v4.new_code_cell("y = " + "1 + " * 1_200_000 + "1", id="long"))
    nb.cells.append(nbformat.v4.new_code_cell("(" * 50_000 + ")" * 50_000, id="brackets"))
    return nb


def wide_tables(nb: NotebookNode, folder: Path) -> NotebookNode:
    """Three Markdown tables of 300 columns and 9,000 rows of one cell."""
    table = "a|" * 300 + "\n" + "-|" * 300 + "\n" + "x\n" * 9000
    nb.cells += [nbformat.v4.new_markdown_cell(table) for _ in range(3)]
    return nb


def many_alignments(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A hundred cells of formulas without an end."""
    text = "\\begin{align}\n" * 1400
    nb.cells += [nbformat.v4.new_markdown_cell(text) for _ in range(100)]
    return nb
