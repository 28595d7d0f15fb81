"""Stalls caused by the file: broken and huge notebooks; test_assemble.py has other files."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

NAME = "lora-math.ipynb"


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
    (folder / NAME).write_text(text[: len(text) // 2])


def binary(nb: NotebookNode, folder: Path) -> None:
    """Random bytes."""
    (folder / NAME).write_bytes(bytes(range(256)) * 500)


def no_notebook(nb: NotebookNode, folder: Path) -> None:
    """Only a text file."""
    (folder / "sorry.txt").write_text("My dog ate it.")


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
