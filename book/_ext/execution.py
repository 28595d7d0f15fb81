"""Run the pages that the cache does not hold, two at a time, before Sphinx reads them.

myst-nb runs a page when Sphinx reads it, one page after the other. Here every page that Sphinx is
about to read, and whose outputs are not in the cache, runs first, each in a kernel of its own, and
goes into the cache. When myst-nb reads the page it takes the outputs from there. A page that fails
is not cached: myst-nb runs it again, alone, and reports the error with its traceback.

Two pages run side by side if memory allows. They share the processor cores: on two cores each page
has one thread, because threads of two processes that spin on the same core slow each other down.

After reading, the executed notebook of each page is in `_build/jupyter_execute`, with its outputs.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

SETTINGS = "book/matplotlibrc"
PAGE_BYTES = 4 * 2**30  # memory that must be available for each page that runs
AT_ONCE = 2
logger = logging.getLogger(__name__)


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def pages_at_once() -> int:
    """How many pages this machine can run side by side."""
    fit = psutil.virtual_memory().available // PAGE_BYTES
    return max(1, min(AT_ONCE, available_cores(), fit))


def notebook_of(app: Sphinx, docname: str) -> nbformat.NotebookNode | None:
    """The notebook that myst-nb will make of a page; None if the page has no code cells."""
    path = app.env.doc2path(docname)
    source = [Path(path).read_text("utf8")]
    app.env.temp_data["docname"] = docname
    app.emit("source-read", docname, source)
    app.env.temp_data.clear()
    reader = create_nb_reader(path, app.env.myst_config, app.env.mystnb_config, source[0])
    notebook = reader and reader.read(source[0])
    if notebook and any(cell.cell_type == "code" for cell in notebook.cells):
        return notebook
    return None


def is_cached(cache: JupyterCacheAbstract, notebook: nbformat.NotebookNode) -> bool:
    """Whether the cache has outputs for this code."""
    try:
        cache.match_cache_notebook(notebook)
    except KeyError:
        return False
    return True


def finish(app: Sphinx, cache: JupyterCacheAbstract, docname: str, future: Future) -> None:
    """Put a page that ran to its end into the cache; leave one that failed to myst-nb."""
    try:
        result: ExecutionResult = future.result()
        error = result.err
    except RuntimeError as dead_kernel:
        error = dead_kernel
    if error is not None:
        logger.info(f"{docname}: failed, and will run once more, alone: {type(error).__name__}")
        return
    bundle = CacheBundleIn(
        result.nb, str(app.env.doc2path(docname)), data={"execution_seconds": result.time}
    )
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    logger.info(f"{docname}: executed in {result.time:.0f} s")


def run_pages(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Run the pages among `docnames` that are not cached, longest (see _config.yml) first."""
    config = env.mystnb_config
    if config.execution_mode != "cache":
        return
    cache = get_cache(config.execution_cache_path)
    first = app.config.execute_first
    stale = {}
    for docname in sorted(docnames, key=lambda name: (name not in first, name)):
        notebook = notebook_of(app, docname)
        if notebook is not None and not is_cached(cache, notebook):
            stale[docname] = notebook
    if not stale:
        return
    workers = min(pages_at_once(), len(stale))
    logger.info(f"running {len(stale)} page{'s' * (len(stale) > 1)}, {workers} at a time")
    with ProcessPoolExecutor(workers) as pool:
        running = {}
        for docname, notebook in stale.items():
            folder = str(Path(env.doc2path(docname)).parent)
            limits = (config.execution_timeout, config.execution_allow_errors)
            running[pool.submit(single_nb_execution, notebook, folder, *limits)] = docname
        for future in as_completed(running):
            finish(app, cache, running[future], future)


def path_of(app: Sphinx, docname: str) -> Path:
    """Where the executed notebook of a page is; there is none for a page without code cells."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{docname}.ipynb"


def forget(app: Sphinx, _env: BuildEnvironment, docname: str) -> None:
    """Remove the executed notebook of a page that is read again: it may have no cells any more."""
    path_of(app, docname).unlink(missing_ok=True)


def fill_in(app: Sphinx, _doctree: Any) -> None:
    """Put the cached outputs into the notebook that myst-nb wrote, which has none."""
    path = path_of(app, app.env.docname)
    if not path.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    if is_cached(cache, notebook):
        nbformat.write(cache.merge_match_into_notebook(notebook)[1], path)


def setup(app: Sphinx) -> dict:
    # A reader who downloads a page gets matplotlib's own style, the book's figures look alike.
    os.environ["MATPLOTLIBRC"] = str(Path(app.srcdir, SETTINGS))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // pages_at_once())))
    app.add_config_value("execute_first", [], "")
    app.connect("env-before-read-docs", run_pages)
    app.connect("env-purge-doc", forget)
    app.connect("doctree-read", fill_in, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
