"""Run the pages that the cache does not hold, two at a time, before Sphinx reads them.

myst-nb runs a page when Sphinx reads it, one page after the other. Here every page that Sphinx is
about to read, and whose outputs are not in the cache, runs first, each in a kernel of its own, and
goes into the cache. When myst-nb reads the page it takes the outputs from there. A page that fails
runs once more, alone. Outputs with an error, or with a line on stderr, are taken out of the cache
when the page has been read, and what is wrong is reported (see faults.py).

Two pages run side by side if memory allows, longest first. They share the processor cores: on two
cores each page has one thread, because threads of two processes that spin on the same core slow
each other down. Then several processes read the pages, each a part of them, and write them.

After reading, the executed notebook of each page is in `_build/jupyter_execute`, with its outputs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from docutils import nodes
from faults import FAILED, faults_of, guarded, tell
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import create_nb_reader
from nbclient.exceptions import CellExecutionError
from page_kernels import manager_class, start_server
from sphinx.application import Sphinx
from sphinx.domains import Domain
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from timing import Progress, seconds_to_run

SETTINGS = "book/matplotlibrc"
# matplotlib says so when it needs more than a second, which depends on the machine alone.
SLOW_LEGEND = "ignore:Creating legend with loc"
PAGE_BYTES = 4 * 2**30  # memory that must be available for each page that runs
AT_ONCE = 2
# Extensions that keep nothing of a page while it is read, but do not say so.
READ_SAFE = ("sphinx_multitoc_numbering", "sphinx_jupyterbook_latex")
WORTH_FORKING = 20  # pages: for fewer, starting processes takes longer than it saves
LAST_READ = "book/api/"  # pages that import the package: one process reads them, and starts first
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


def cached(
    cache: JupyterCacheAbstract, notebook: nbformat.NotebookNode
) -> nbformat.NotebookNode | None:
    """The notebook with the outputs that the cache has for its code; None if it has none."""
    try:
        return cache.merge_match_into_notebook(notebook)[1]
    except KeyError:
        return None


@dataclass(frozen=True)
class Run:
    """A page that ran: its notebook with outputs, and the seconds it took."""

    notebook: nbformat.NotebookNode
    seconds: float


def run_page(notebook: nbformat.NotebookNode, folder: str, timeout: int, allow_errors: bool) -> Run:
    """Run a notebook in a kernel of its own, up to the first cell that fails.

    An error that is not the cell's own, such as a kernel that died, becomes an output of the cell
    that was running, as the cell's own errors are. Never raises.
    """
    running = next(cell for cell in notebook.cells if cell.cell_type == "code")

    def note(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal running
        running = cell

    started = time.perf_counter()
    try:
        result = single_nb_execution(
            notebook,
            folder,
            timeout,
            allow_errors,
            on_cell_execute=note,
            kernel_manager_class=manager_class(),
        )
        error = result.err
    except Exception as died:
        error = died
    if error is not None and not isinstance(error, CellExecutionError):
        text = str(error)
        described = {"ename": type(error).__name__, "evalue": text, "traceback": [text]}
        running.outputs.insert(0, nbformat.v4.new_output("error", **described))
    return Run(notebook, time.perf_counter() - started)


def runs(
    jobs: dict[str, tuple], at_once: int, progress: Progress | None = None
) -> Iterator[tuple[str, Run]]:
    """Each page's name and run, as they end; jobs: the arguments of run_page by page."""

    def run(docname: str) -> Run:
        if progress is not None:
            progress.start(docname)
        try:
            return run_page(*jobs[docname])
        finally:
            if progress is not None:
                progress.end(docname)

    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(run, docname): docname for docname in jobs}
        for future in as_completed(running):
            yield running[future], future.result()


def longest_first(seconds: Mapping[str, float]) -> list[str]:
    """Pages by the seconds that they are expected to run.

    Two workers then end at about the same time: what is left for the end is short.

    >>> longest_first({"a": 1, "b": 3, "c": 3})
    ['b', 'c', 'a']
    """
    return sorted(seconds, key=lambda docname: (-seconds[docname], docname))


def run_pages(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Run the pages among `docnames` that are not cached, longest first."""
    config = env.mystnb_config
    if config.execution_mode != "cache":
        return
    if not Path(config.execution_cache_path).is_dir():  # every page will run
        start_server(len(docnames))
    cache = get_cache(config.execution_cache_path)
    jobs = {}
    for docname in docnames:
        notebook = notebook_of(app, docname)
        if notebook is None:
            continue
        known = cached(cache, notebook)
        if known is None or faults_of(known):
            folder = str(Path(env.doc2path(docname)).parent)
            limits = (config.execution_timeout, config.execution_allow_errors)
            jobs[docname] = (notebook, folder, *limits)
    if not jobs:
        return
    start_server(len(jobs))
    at_once = min(pages_at_once(), len(jobs))
    parts = app.course_parts
    seconds = seconds_to_run(app, jobs)
    jobs = {docname: jobs[docname] for docname in longest_first(seconds)}
    after = parts.expected("read") + parts.expected("write")
    progress = Progress({name: seconds[name] for name in jobs}, at_once, after)
    what = f"{len(jobs)} page{'s' * (len(jobs) > 1)}"
    logger.info(f"running {what}, {at_once} at a time")
    failed = {}
    for docname, run in runs(jobs, at_once, progress):
        if any(fault.kind == FAILED for fault in faults_of(run.notebook)):
            logger.info(f"{docname}: failed after {run.seconds:.0f} s, runs once more, alone")
            failed[docname] = jobs[docname]
        else:
            keep(app, cache, docname, run)
    for docname, run in runs(failed, 1):
        keep(app, cache, docname, run)
    parts.done("run", f"{what} run, {at_once} at a time")


def keep(app: Sphinx, cache: JupyterCacheAbstract, docname: str, run: Run) -> None:
    """Put what a page's run has printed into the cache, where myst-nb finds it."""
    bundle = CacheBundleIn(
        run.notebook, str(app.env.doc2path(docname)), data={"execution_seconds": run.seconds}
    )
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    logger.info(f"{docname}: executed in {run.seconds:.0f} s")


def path_of(app: Sphinx, docname: str) -> Path:
    """Where the executed notebook of a page is; there is none for a page without code cells."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{docname}.ipynb"


def forget(app: Sphinx, _env: BuildEnvironment, docname: str) -> None:
    """Remove the executed notebook of a page that is read again: it may have no cells any more."""
    path_of(app, docname).unlink(missing_ok=True)


@guarded
def fill_in(app: Sphinx, doctree: nodes.document) -> None:
    """Put the cached outputs into the notebook that myst-nb wrote, which has none.

    Outputs with a fault are then taken out of the cache, so that the next build runs the page.
    """
    docname = app.env.docname
    path = path_of(app, docname)
    if not path.is_file():
        return
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    notebook = cached(cache, nbformat.read(path, as_version=4))
    if notebook is None:
        return
    nbformat.write(notebook, path)
    if faults := faults_of(notebook):
        cache.remove_cache(cache.match_cache_notebook(notebook).pk)
        tell(app, docname, faults, doctree)


def nothing_to_merge(domain: Domain, docnames: set[str], data: dict) -> None:
    """For a domain without data, which Sphinx asks for all the same (that of sphinx-proof)."""


def read_side_by_side(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Have several processes read the pages, if there are many and every extension allows it.

    Sphinx gives out the end of the list first, and pages that stand together to one process.
    """
    for name in READ_SAFE:
        if name in app.extensions:
            app.extensions[name].parallel_read_safe = True
    for domain in map(type, env.domains.values()):
        if domain.merge_domaindata is Domain.merge_domaindata and not domain.initial_data:
            domain.merge_domaindata = nothing_to_merge
    safe = all(extension.parallel_read_safe for extension in app.extensions.values())
    app.parallel = available_cores() if safe and len(docnames) > WORTH_FORKING else 1
    docnames.sort(key=lambda docname: (docname.startswith(LAST_READ), docname))


def write_side_by_side(app: Sphinx, env: BuildEnvironment) -> None:
    """Write the pages on every core."""
    app.parallel = available_cores()


def setup(app: Sphinx) -> dict:
    # A reader who downloads a page gets matplotlib's own style, the book's figures look alike.
    os.environ["MATPLOTLIBRC"] = str(Path(app.srcdir, SETTINGS))
    given = [rule for rule in os.environ.get("PYTHONWARNINGS", "").split(",") if rule]
    os.environ["PYTHONWARNINGS"] = ",".join(dict.fromkeys([*given, SLOW_LEGEND]))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // pages_at_once())))
    app.connect("env-before-read-docs", run_pages)
    app.connect("env-before-read-docs", read_side_by_side, priority=600)
    app.connect("env-purge-doc", forget)
    app.connect("doctree-read", fill_in, priority=100)
    app.connect("env-check-consistency", write_side_by_side)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
