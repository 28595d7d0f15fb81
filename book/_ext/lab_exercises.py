"""Exercises that open in the browser: a page for each assignment that needs no library.

A page is made from the released notebook in exercises/, never from solutions/ (lab_notebook.py).
Its code cells run, with the same `check` as in Jupyter. Where the book names such an assignment, a
link leads to its page. Where the book has no labs, there are no such pages and links.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from faults import WARNING, guarded
from lab_notebook import cell_html, contents, exercise_cells, renderer, title_of
from lab_pages import add_files, page_data
from lab_trial import ROOT
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from course_pkg.grading.questions import registry
from course_pkg.pages.labs.assignments import ASSIGNMENTS

PAGES = "book/exercises"  # where the pages are in the site, and the page that lists them
UNMARKED = "book/appendix/"  # pages of tables that name an assignment in every row
# Under the title: what a reader of the notebook's text must know here, and the place of the points.
HEAD = """
<p class="reading-time">One of the <a href="../exercises.html">exercises</a>, with the checks of its
notebook. To run a line of your own, such as one from a report, write it at the end of your answer's
cell.</p>
<div class="lab-progress"></div>
"""
Anchor = Callable[[str, str], str]
logger = logging.getLogger(__name__)


def site_link(target: str, name: str, anchor: Anchor = lambda page, place: place) -> str:
    """A link of the notebook in exercises/NAME as it is from the page book/exercises/NAME.html.

    anchor: gives the id of a heading in the site, from its page and its name in a Markdown link.

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
    return f"{page}#{anchor(inside.removesuffix('.md'), place)}" if place else page


def heading_ids(app: Sphinx, name: str) -> Anchor:
    """How the headings of the book's pages are found; one that is not there is a warning."""

    def anchor(page: str, place: str) -> str:
        slugs = app.env.metadata[page].get("myst_slugs", {})
        if place not in slugs:
            logger.warning(f"{WARNING} {PAGES}/{name}: no heading #{place} on {page}")
            return place
        return slugs[place][1]

    return anchor


def exercise_page(
    name: str,
    notebook_text: str,
    questions: tuple[str, ...],
    link: Callable[[str], str] = str,
) -> dict[str, str]:
    """Title, body and contents of the page of an assignment. link: as in `renderer`."""
    notebook = json.loads(notebook_text)
    cells = exercise_cells(notebook, questions, registry.load(name).questions)
    markdown = renderer(link)
    title = title_of(cells)
    data = {
        "name": name,
        "hash": hashlib.sha256(notebook_text.encode()).hexdigest()[:16],
        "cells": [
            {
                "id": cell.id,
                "kind": cell.kind,
                "code": cell.source,
                "label": cell.label,
                "question": cell.question,
                "follows": cell.follows,
                "points": cell.points,
                "missing": cell.missing,
            }
            for cell in cells
            if cell.kind != "text"
        ],
        "notebook": notebook,
    }
    rendered = [cell_html(cell, markdown) for cell in cells]
    rendered[0] = rendered[0].replace("</h1>", f"</h1>{HEAD}", 1)
    body = f'<section class="lab-exercise-page">{"".join(rendered)}</section>'
    return {
        "title": title,
        "body": body + page_data("lab-exercise", data),
        "toc": contents(cells),
    }


def offered(app: Sphinx) -> list[str]:
    """The assignments that have a page in this book: none if it has no labs, or no list of them."""
    if not app.config.labs_built or app.builder.format != "html":
        return []
    if PAGES not in app.env.found_docs:
        return []
    return [name for name in ASSIGNMENTS if released(name).is_file()]


def released(name: str) -> Path:
    """The notebook that students get."""
    return ROOT / "exercises" / name / f"{name}.ipynb"


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages, for Sphinx to write."""
    for name in offered(app):
        page = f"{PAGES}/{name}"
        anchor = heading_ids(app, name)
        shown = exercise_page(
            name,
            released(name).read_text("utf8"),
            ASSIGNMENTS[name],
            lambda target, name=name, anchor=anchor: site_link(target, name, anchor),
        )
        parents = [{"link": app.builder.get_relative_uri(page, PAGES), "title": "Exercises"}]
        app.env.get_domain("math").data["has_equations"][page] = True  # so that MathJax is loaded
        yield page, {**shown, "parents": parents}, "page.html"


@guarded
def link_to_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Behind an assignment's name, where a page first links to it or lists it: its own page."""
    left = set() if docname.startswith(UNMARKED) else set(offered(app))
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext()
        place = literal.parent
        if isinstance(place, nodes.inline):  # a reference to a page has one around its text
            place = place.parent
        linked = isinstance(place, nodes.reference) and "exercises" in place.get("refuri", "")
        listed = isinstance(place, nodes.term) and place[0] is literal and docname == PAGES
        if name not in left or not (linked or listed):
            continue
        left.remove(name)
        target = app.builder.get_relative_uri(docname, f"{PAGES}/{name}")
        link = nodes.reference("", "in your browser", refuri=target, internal=True)
        behind = [nodes.Text(" ("), link, nodes.Text(")")]
        if listed:
            place.extend(behind)
        else:
            at = place.parent.index(place) + 1
            place.parent[at:at] = behind


class LabExercises(SphinxDirective):
    """A paragraph that ends with links to the pages; its content is the words before them."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The paragraph, or nothing in a book without labs."""
        names = offered(self.env.app)
        if not names:
            return []
        said = self.parse_content_to_nodes()
        links = [nodes.reference("", name, refuri=self.link(name), internal=True) for name in names]
        for number, link in enumerate(links):
            said[-1].extend([nodes.Text(", " if number else " "), link])
        said[-1].append(nodes.Text("."))
        return said

    def link(self, name: str) -> str:
        """From the page with this directive to that of an assignment."""
        return self.env.app.builder.get_relative_uri(self.env.docname, f"{PAGES}/{name}")


class IfLabs(SphinxDirective):
    """Text that only a book with labs has."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The text, or nothing."""
        return self.parse_content_to_nodes() if offered(self.env.app) else []


def add_scripts(app: Sphinx, pagename: str, _template: str, context: dict, _doctree: Any) -> None:
    if pagename.startswith(f"{PAGES}/"):
        add_files(app)


def setup(app: Sphinx) -> dict:
    app.add_directive("if-labs", IfLabs)
    app.add_directive("lab-exercises", LabExercises)
    app.connect("html-collect-pages", collect)
    app.connect("doctree-resolved", link_to_pages)
    app.connect("html-page-context", add_scripts)
    return {
        "version": "1",
        "env_version": 3,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
