"""Exercises that open in the browser: a page for each assignment that needs no library.

A page is made from the released notebook in exercises/, never from solutions/. Its code cells
run, with the same `check` as in Jupyter. Where the book has no labs, it has no such page.
"""

from __future__ import annotations

import hashlib
import html
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from docutils import nodes
from faults import guarded
from lab_trial import ROOT
from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.application import Sphinx

from course_pkg.labs import ASSIGNMENTS, libraries

PAGES = "book/exercises"  # where the pages are in the site
QUESTION = re.compile(r"""\bcheck\(\s*["']([\w-]+)/([\w/-]+)["']""")


@dataclass(frozen=True)
class ExerciseCell:
    """A cell of a released notebook.

    kind: "text" to read, "prose" to write, "given" or "check" code that is run as it is, "answer"
    code to write. question: what a check cell asks, without the assignment. missing: packages that
    the cell needs and a browser lacks.
    """

    id: str
    kind: str
    source: str
    question: str = ""
    points: float = 0
    missing: tuple[str, ...] = ()


def exercise_cells(notebook: dict[str, Any], questions: tuple[str, ...]) -> list[ExerciseCell]:
    """The cells of a released notebook. questions: those that a browser can check."""
    found = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        given = cell["metadata"].get("nbgrader", {})
        question = match[2] if (match := QUESTION.search(source)) else ""
        if cell["cell_type"] == "markdown":
            found.append(ExerciseCell(cell["id"], "text" if given else "prose", source))
            continue
        kind = "given" if given.get("locked") else "answer"
        if given.get("grade") and question:
            kind = "check"
        packages = tuple(sorted(libraries(source))) if kind == "given" else ()
        packages = tuple(name for name in packages if name != "course_pkg")
        if kind == "check" and question not in questions:
            packages = ("Jupyter",)
        found.append(
            ExerciseCell(cell["id"], kind, source, question, given.get("points", 0), packages)
        )
    return found


def renderer(name: str) -> MarkdownIt:
    """Markdown to HTML; formulas as MathJax finds them, links as they are from the page."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    math = {"inline": r"<span class='math notranslate nohighlight'>\({}\)</span>"}
    math["block"] = r"<div class='math notranslate nohighlight'>\[{}\]</div>"

    def formula(text: str, options: dict) -> str:
        kind = "block" if options["display_mode"] else "inline"
        return math[kind].replace("{}", html.escape(text))

    dollarmath_plugin(markdown, renderer=formula, allow_space=True, double_inline=True)
    amsmath_plugin(markdown, renderer=lambda text: math["block"].replace("{}", html.escape(text)))

    def link(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        token = tokens[at]
        token.attrSet("href", site_link(token.attrGet("href"), name))
        token.attrSet("class", "reference")
        return self.renderToken(tokens, at, options, env)

    def code(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        return colored(tokens[at].content) if tokens[at].info else block(tokens[at].content)

    def table(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        return '<table class="table">\n'

    markdown.add_render_rule("link_open", link)
    markdown.add_render_rule("table_open", table)
    markdown.add_render_rule("fence", code)
    return markdown


def site_link(target: str, name: str) -> str:
    """A link of the notebook in exercises/NAME as it is from the page book/exercises/NAME.html.

    >>> site_link("../../book/metrics/bleu.md#one", "bleu"), site_link("https://a.org", "bleu")
    ('../metrics/bleu.html#one', 'https://a.org')
    """
    if "://" in target or target.startswith(("#", "mailto:")):
        return target
    path, _, place = target.partition("#")
    inside = posixpath.normpath(posixpath.join("exercises", name, path))
    if not inside.startswith("book/"):
        return target
    page = posixpath.relpath(re.sub(r"\.md$", ".html", inside), PAGES)
    return f"{page}#{place}" if place else page


def colored(code: str) -> str:
    """Python code as the book's pages show it."""
    inner = highlight(code, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return (
        '<div class="highlight-ipython3 notranslate"><div class="highlight">'
        f"<pre><span></span>{inner}</pre></div></div>"
    )


def block(text: str) -> str:
    return f'<div class="highlight"><pre>{html.escape(text)}</pre></div>'


def cell_html(cell: ExerciseCell, markdown: MarkdownIt) -> str:
    """One cell as HTML that reads well without a script."""
    name = f'id="lab-cell-{html.escape(cell.id)}"'
    if cell.kind == "text":
        return f'<div class="lab-text">{markdown.render(cell.source)}</div>'
    if cell.kind == "prose":
        return (
            f'<div class="cell lab-prose" {name}><label>Your text (Markdown)'
            f'<textarea rows="6">{html.escape(cell.source)}</textarea></label></div>'
        )
    return (
        f'<div class="cell docutils container lab-{cell.kind}" {name}>'
        f'<div class="cell_input docutils container">{colored(cell.source)}</div></div>'
    )


def title_of(cells: list[ExerciseCell]) -> str:
    """The heading of the first cell."""
    return next(iter(re.findall(r"^# (.+)$", cells[0].source, re.MULTILINE)), "Exercise")


def exercise_page(name: str, notebook_text: str, questions: tuple[str, ...]) -> dict[str, str]:
    """Title and body of the page of an assignment."""
    notebook = json.loads(notebook_text)
    cells = exercise_cells(notebook, questions)
    markdown = renderer(name)
    title = title_of(cells)
    data = {
        "name": name,
        "hash": hashlib.sha256(notebook_text.encode()).hexdigest()[:16],
        "cells": [
            {
                "id": cell.id,
                "kind": cell.kind,
                "code": cell.source,
                "question": cell.question,
                "points": cell.points,
                "missing": cell.missing,
            }
            for cell in cells
            if cell.kind != "text"
        ],
        "notebook": notebook,
    }
    text = json.dumps(data).replace("</", "<\\/")
    rendered = [cell_html(cell, markdown) for cell in cells]
    rendered[0] = rendered[0].replace("</h1>", '</h1><div class="lab-progress"></div>', 1)
    body = f'<section class="lab-exercise-page">{"".join(rendered)}</section>'
    script = f'<script type="application/json" class="lab-exercise">{text}</script>'
    return {"title": title, "body": body + script}


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages, for Sphinx to write."""
    if not app.config.labs_built or app.builder.format != "html":
        return
    link = app.builder.get_relative_uri
    for name, questions in ASSIGNMENTS.items():
        path = ROOT / "exercises" / name / f"{name}.ipynb"
        if not path.is_file():
            continue
        page = f"{PAGES}/{name}"
        parents = [{"link": link(page, "book/exercises"), "title": "Exercises"}]
        context = {**exercise_page(name, path.read_text("utf8"), questions), "parents": parents}
        yield page, context, "page.html"


@guarded
def link_to_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """In the list of assignments, a link after the name of each that opens in the browser."""
    if docname != PAGES or not app.config.labs_built or app.builder.format != "html":
        return
    for term in doctree.findall(nodes.term):
        name = term[0].astext() if isinstance(term[0], nodes.literal) else ""
        if name in ASSIGNMENTS and (ROOT / "exercises" / name / f"{name}.ipynb").is_file():
            link = nodes.reference("", "in your browser", refuri=f"exercises/{name}.html")
            term.extend([nodes.Text(" ("), link, nodes.Text(")")])


def add_scripts(app: Sphinx, pagename: str, _template: str, context: dict, _doctree: Any) -> None:
    if pagename.startswith(f"{PAGES}/"):
        app.add_js_file("labs/labs.js", loading_method="defer")
        app.add_css_file("labs/labs.css")


def setup(app: Sphinx) -> dict:
    app.connect("html-collect-pages", collect)
    app.connect("doctree-resolved", link_to_pages)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
