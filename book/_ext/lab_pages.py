"""Labs: cells, playgrounds and exercises that run in the reader's browser, from disk.

`make` builds what they load into `_build/labs/dist` (see book/_labs), if npm is there. Without it
the book has no labs. Here each page gets the code of its cells that the browser can run (see
lab_cells.py), a line that says how many they are, or what its code needs instead, and the scripts.
Everything that a lab loads is copied into the site; the course's own files are one text in
a script, because a page from disk can load nothing but scripts, styles and pictures.
"""

from __future__ import annotations

import base64
import json
import shutil
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from execution import path_of
from faults import guarded
from lab_cells import LabCell, lab_cells, offered
from lab_trial import ROOT, Trial, course_archive, tried
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

BUILT = ROOT / "_build" / "labs" / "dist"
SCRIPTS = ("labs.js", "kit.js", "python.js")
logger = logging.getLogger(__name__)


@cache
def trial() -> Trial:
    """The process that tries cells, started when the first page asks; it ends with this one."""
    started = Trial()
    Finalize(None, started.close, exitpriority=0)
    return started


def cells_of(env: BuildEnvironment) -> dict[str, list[LabCell]]:
    """The cells that the browser gets, by page."""
    if not hasattr(env, "lab_cells"):
        env.lab_cells = {}
    return env.lab_cells


@guarded
def read_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Find the page's cells that run in the browser, mark them, and say so under the title."""
    docname = app.env.docname
    path = path_of(app, docname)
    if not app.config.labs_built or not path.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    found = tried(lab_cells(notebook, trial().missing), notebook, trial())
    cells_of(app.env)[docname] = found
    shown = {cell.index for cell in found if cell.shown}
    if not shown:
        return
    for line in doctree.findall(nodes.paragraph):
        if "reading-time" in line["classes"]:
            line += nodes.Text(f" {sentence(found)}")
    if not offered(found):
        return
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code" and node.get("cell_index") in shown:
            node["ids"].append(f"lab-cell-{node['cell_index']}")


def sentence(cells: list[LabCell]) -> str:
    """What a page says of its cells, of which at least one is shown.

    >>> sentence([LabCell(0, "cell 1", "", True), LabCell(1, "cell 2", "", True, ("torch",))])
    '1 of 2 cells can be run and edited here; the others need torch.'
    """
    shown = [cell for cell in cells if cell.shown]
    others = sorted({package for cell in shown for package in cell.missing})
    names = others if len(others) < 3 else [*others[:2], "more"]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    able = len(offered(cells))
    if not able:
        return f"Its code runs in Jupyter only: it needs {listed}."
    if able == len(shown):
        return "All cells can be run and edited here."
    return f"{able} of {len(shown)} cells can be run and edited here; the others need {listed}."


def forget(_app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    cells_of(env).pop(docname, None)


def merge(_app: Sphinx, env: BuildEnvironment, _names: Any, other: BuildEnvironment) -> None:
    cells_of(env).update(cells_of(other))


def page_data(kind: str, data: dict[str, Any]) -> str:
    """What a page's script reads, as an element that no browser runs. kind: its class."""
    text = json.dumps(data).replace("<", "\\u003c")  # so that no text ends the element
    return f'<script type="application/json" class="{kind}">{text}</script>'


def add_files(app: Sphinx) -> None:
    """Give the page that is written the labs' look, and the one script that loads the rest."""
    app.add_css_file("labs.css")
    if app.config.labs_built:
        app.add_js_file("labs/labs.js", loading_method="defer")


@guarded
def add_cells(app: Sphinx, pagename: str, _template: str, context: dict, _doctree: Any) -> None:
    """Give a page with a lab its cells."""
    cells = cells_of(app.env).get(pagename, [])
    if offered(cells):
        rows = [
            {"id": c.index, "name": c.name, "code": c.code, "shown": c.shown, "missing": c.missing}
            for c in cells
        ]
        context["body"] = context.get("body", "") + page_data("lab-cells", {"cells": rows})
        add_files(app)


def copy_built(app: Sphinx, exception: Exception | None) -> None:
    """Copy what labs load into the site, and write the course's modules beside it."""
    if trial.cache_info().currsize:
        trial().close()
        trial.cache_clear()
    if exception is not None or app.builder.format != "html" or not app.config.labs_built:
        return
    target = Path(app.outdir, "_static", "labs")
    target.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        shutil.copyfile(BUILT / name, target / name)
    text = base64.b64encode(course_archive()).decode()
    (target / "package.js").write_text(f'window.courseLabsCourse="{text}";\n', "utf8")


def look_for_labs(_app: Sphinx, config: Any) -> None:
    """Whether labs are built; a change makes Sphinx read all pages again."""
    config.labs_built = (BUILT / "built.txt").is_file()
    if not config.labs_built:
        logger.info("the book gets no labs: they are not built (make labs says why)")


def setup(app: Sphinx) -> dict:
    app.add_config_value("labs_built", False, "env", bool)
    app.connect("config-inited", look_for_labs)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", read_cells, priority=600)
    app.connect("html-page-context", add_cells)
    app.connect("build-finished", copy_built)
    return {
        "version": "1",
        "env_version": 4,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
