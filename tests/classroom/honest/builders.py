"""Honest submissions with unusual but valid files."""

import json
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


def format_4_0(nb: NotebookNode, folder: Path) -> None:
    """nbformat 4.0: no ids."""
    old = json.loads(nbformat.writes(nb))
    old.update(nbformat=4, nbformat_minor=0)
    for cell in old["cells"]:
        cell.pop("id", None)
    (folder / NAME).write_text(json.dumps(old))


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


def byte_order_mark(nb: NotebookNode, folder: Path) -> None:
    """A byte order mark at the start."""
    (folder / NAME).write_bytes(b"\xef\xbb\xbf" + nbformat.writes(nb).encode())


def no_metadata(nb: NotebookNode, folder: Path) -> NotebookNode:
    """The notebook's own metadata is empty."""
    nb["metadata"] = {}
    return nb


def drafts_beside(nb: NotebookNode, folder: Path) -> NotebookNode:
    """A draft, a checkpoint and hidden files."""
    draft = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    checkpoints = folder / ".ipynb_checkpoints"
    checkpoints.mkdir()
    nbformat.write(draft, folder / "draft.ipynb")
    nbformat.write(draft, checkpoints / "lora-math-checkpoint.ipynb")
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "__MACOSX").mkdir()
    return nb
