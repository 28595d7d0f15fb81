"""Honest submissions with unusual but valid files."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode


def helper_cells(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A code, a Markdown and a raw cell after every third cell."""
    for at in range(len(nb.cells), 2, -3):
        nb.cells.insert(at, nbformat.v4.new_raw_cell("as it was", id=f"raw-{at}"))
        nb.cells.insert(at, nbformat.v4.new_markdown_cell("*note*", id=f"note-{at}"))
        nb.cells.insert(at, nbformat.v4.new_code_cell(f"helper = {at}\nhelper", id=f"code-{at}"))
    return nb


def crlf_and_tabs(nb: NotebookNode, folder: Path) -> NotebookNode:
    """CRLF line endings and tabs in every answer cell."""
    for cell in nb.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = cell.source.replace("    ", "\t").replace("\n", "\r\n")
    return nb
