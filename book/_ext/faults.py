"""What goes wrong on one page is named in the log, and the rest of the book is built.

    WARNING: PAGE FAILED book/adapters/lora: cell 3 (line 120): KeyError: 'rank'
    WARNING: PAGE WARNING book/serving/kv-cache: cell 2 (line 80): stderr: retrying
    WARNING: PAGE WARNING book/metrics/bleu: figures: KeyError: 'bleu.svg'

A page has failed if a cell raised an error, ran out of time or ended its kernel. Its site shows
the outputs up to that cell and says at the top what happened; the traceback is in `reports/`. The
second line is about a page that writes to stderr, the third about one of these extensions. There
is one line for each page's cells. The outputs of such a page are not kept in the cache, and the
page is read again by the next build, whatever has changed.

Cells are numbered as in a notebook with nothing but code; lines are those of the page's source.

A build that is interrupted while it writes may leave half a page, or pages of an earlier build, and
Sphinx takes them for new. So a site has a mark while no build writes it, and where that is missing,
the next build writes every page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from nbconvert.filters import strip_ansi
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

FAILED = "PAGE FAILED"
WARNING = "PAGE WARNING"
NOTICE = "page-failed"
FINISHED = ".finished"  # in the site
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fault:
    """What a page's cells did wrong: a kind of line, the cell and its line, a message of one line.

    line: of the page's source, 0 if the notebook does not say. report: for reports/, with the
    cell's code and its traceback; empty for a page that only wrote to stderr.
    """

    kind: str
    cell: int
    line: int
    message: str
    report: str = ""

    def __str__(self) -> str:
        place = f" (line {self.line})" if self.line else ""
        return f"cell {self.cell}{place}: {self.message}"


def first_line(text: str) -> str:
    """The first line with a word, cut to 200 characters."""
    lines = [line.strip() for line in strip_ansi(text).splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


def faults_of(notebook: nbformat.NotebookNode) -> list[Fault]:
    """What went wrong in the cells of an executed notebook, errors first.

    >>> cell = nbformat.v4.new_code_cell("1 / 0")
    >>> cell.outputs = [nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="by 0")]
    >>> print(*faults_of(nbformat.v4.new_notebook(cells=[cell])))
    cell 1: ZeroDivisionError: by 0
    """
    lines = notebook.metadata.get("source_map", [0] * len(notebook.cells))
    both = zip(lines, notebook.cells, strict=True)
    found = []
    for number, (line, cell) in enumerate(
        [(line, cell) for line, cell in both if cell.cell_type == "code"], start=1
    ):
        tags = cell.metadata.get("tags", ())
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags:
                message = first_line(f"{output.ename}: {output.evalue}")
                traceback = strip_ansi("\n".join(output.get("traceback", ())))
                report = f"{cell.source}\n{'-' * 20}\n{traceback}\n"
                found.append(Fault(FAILED, number, line, message, report))
            elif output.get("name") == "stderr" and "remove-stderr" not in tags:
                message = f"stderr: {first_line(output.text)}"
                found.append(Fault(WARNING, number, line, message))
    return sorted(found, key=lambda fault: fault.kind)


def report_path(app: Sphinx, docname: str) -> Path:
    return Path(app.outdir, "reports", f"{docname}.err.log")


def notice(fault: Fault) -> nodes.Element:
    """What a failed page says at its top."""
    text = (
        "This page is incomplete: a cell failed when the book was built, and the cells after it "
        "did not run. "
    )
    paragraph = nodes.paragraph("", text, nodes.literal("", str(fault)))
    return nodes.error("", paragraph, classes=[NOTICE])


def tell(app: Sphinx, docname: str, faults: list[Fault], doctree: nodes.document) -> None:
    """Name a page in the log, on the page itself and in reports/, and have it read again."""
    worst = faults[0]
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    logger.warning(f"{worst.kind} {docname}: {worst}{others}")
    mark(app, docname)
    if worst.kind != FAILED:
        return
    report = report_path(app, docname)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(worst.report, "utf8")
    logger.info(f"{docname}: the traceback is in {report}")
    title = doctree.next_node(nodes.title)
    if title is not None:
        title.parent.insert(title.parent.index(title) + 1, notice(worst))


def guarded(listener: Callable) -> Callable:
    """A listener whose error is a warning that names the page, and not the end of the build."""

    @wraps(listener)
    def call(app: Sphinx, *args: Any) -> Any:
        try:
            return listener(app, *args)
        except Exception as error:
            named = next((arg for arg in args if isinstance(arg, str)), "")
            page = app.env.temp_data.get("docname") or named
            what = first_line(f"{type(error).__name__}: {error}")
            logger.warning(f"{WARNING} {page}: {listener.__module__}: {what}")
            mark(app, page)
            return None

    return call


def marker(app: Sphinx, docname: str) -> Path:
    """The file that says that a page had a fault; pages are written by several processes."""
    return Path(app.doctreedir, "faulty", docname)


def mark(app: Sphinx, docname: str) -> None:
    """Have the next build read a page again."""
    file = marker(app, docname)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def outdated(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list:
    """Pages that had a fault in the last build."""
    return sorted(docname for docname in env.found_docs if marker(app, docname).is_file())


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """A page that is read again begins without faults."""
    marker(app, docname).unlink(missing_ok=True)
    report_path(app, docname).unlink(missing_ok=True)


def begin(app: Sphinx) -> None:
    """Note whether the last build came to its end, and that this one has not."""
    mark = Path(app.outdir, FINISHED)
    app.site_is_whole = app.builder.format != "html" or mark.is_file()
    if app.builder.format == "html":
        mark.unlink(missing_ok=True)


def to_write(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Pages to write besides those that were read."""
    return [] if app.site_is_whole else sorted(env.found_docs)


def finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        Path(app.outdir, FINISHED).touch()


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", begin)
    app.connect("env-updated", to_write)
    app.connect("build-finished", finish, priority=999)
    app.connect("env-get-outdated", outdated)
    app.connect("env-purge-doc", forget)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
