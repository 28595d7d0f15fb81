"""The executed notebook of every page, whole also where the page came from the cache.

myst-nb leaves the notebook of each page in `_build/jupyter_execute`. When it takes the outputs
from the cache, it leaves the notebook without them; they are put in here, before others read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx


def path_of(app: Sphinx, docname: str) -> Path:
    """Where the executed notebook of a page is; there is none for a page without code cells."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{docname}.ipynb"


def fill_in(app: Sphinx, _doctree: Any) -> None:
    """Put the cached outputs into the notebook of the page that was just read."""
    path = path_of(app, app.env.docname)
    if not path.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code or any(cell.execution_count for cell in code):
        return
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    try:
        _, notebook = cache.merge_match_into_notebook(notebook)
    except KeyError:  # it did not run to its end, and myst-nb has said so
        return
    nbformat.write(notebook, path)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", fill_in, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
