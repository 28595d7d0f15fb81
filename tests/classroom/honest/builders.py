"""Honest submissions with unusual but valid files."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

NAME = "lora-math.ipynb"


def helper_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A code, a Markdown and a raw cell after every third cell."""
    for at in range(len(nb.cells), 2, -3):
        nb.cells.insert(at, nbformat.v4.new_raw_cell("as it was", id=f"raw-{at}"))
        nb.cells.insert(at, nbformat.v4.new_markdown_cell("*note*", id=f"note-{at}"))
        nb.cells.insert(at, nbformat.v4.new_code_cell(f"helper = {at}\nhelper", id=f"code-{at}"))
    return nb


def notes_moved(nb: NotebookNode, folder: Path) -> NotebookNode:
    """All Markdown first, in reverse."""
    notes = [cell for cell in nb.cells if cell.cell_type == "markdown"]
    nb["cells"] = notes[::-1] + [cell for cell in nb.cells if cell.cell_type != "markdown"]
    return nb


def crlf_and_tabs(nb: NotebookNode, folder: Path) -> NotebookNode:
    """CRLF line endings and tabs in every answer cell."""
    for cell in nb.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = cell.source.replace("    ", "\t").replace("\n", "\r\n")
    return nb


def as_jupyter_saves(nb: NotebookNode, folder: Path) -> None:
    """Lists of lines, outputs, execution counts, and the editor's metadata."""
    for number, cell in enumerate(c for c in nb.cells if c.cell_type == "code"):
        cell["execution_count"] = number + 7
        cell["outputs"] = [nbformat.v4.new_output("stream", name="stderr", text="an old warning\n")]
        cell["metadata"].update(collapsed=True, scrolled=False, jupyter={"outputs_hidden": True})
        cell["metadata"]["ExecuteTime"] = {"end_time": "2026-01-01T00:00:00Z"}
    nbformat.write(nb, folder / NAME)  # splits the lines
