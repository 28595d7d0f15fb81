"""The notebook that a page offers runs in an empty folder, with the package installed."""

import os
import re

import nbclient
import nbformat
import pytest

from .support import ROOT

SITE = ROOT / "_build" / "html"


def run(notebook, folder, package):
    """Execute in `folder`; `package` is where course_pkg lies, as an editable install would say."""
    environment = {**os.environ, "PYTHONPATH": str(package), "JUPYTER_PREFER_ENV_PATH": "1"}
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=300, resources=resources)
    return client.execute(env=environment)


def texts(notebook):
    """What the cells print."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.slow
def test_the_small_books_notebook_runs_in_an_empty_folder(small_book, tmp_path):
    notebook = nbformat.read(small_book / "_build/html/_sources/book/sample.ipynb", 4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell.cell_type == "markdown" else cell.update(outputs=[])
    assert texts(notebook) == ""
    assert "total 1.5" in texts(run(notebook, tmp_path, small_book))
    assert list(tmp_path.iterdir()) == []


def offered(page):
    path = SITE / "_sources" / "book" / f"{page}.ipynb"
    if not path.is_file():
        pytest.skip(f"{page} is not built here (make book)")
    return nbformat.read(path, 4)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("page", ["setup", "appendix/errata", "appendix/for-instructors"])
def test_a_pages_notebook_runs_in_an_empty_folder(page, tmp_path):
    run(offered(page), tmp_path, ROOT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.model
def test_the_lora_notebook_runs_up_to_its_training(tmp_path):
    notebook = offered("adapters/lora")
    trains = [bool(re.search(r"^\w+ = train\(", cell.source, re.M)) for cell in notebook.cells]
    assert any(trains)
    notebook.cells = notebook.cells[: trains.index(True)]
    assert sum(cell.cell_type == "code" for cell in notebook.cells) >= 5
    run(notebook, tmp_path, ROOT)
