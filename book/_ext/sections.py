"""Chapters and pages have the numbers of document 1; the sections inside a page have none.

A page has the number of the section whose label stands in front of its title (see documents.py).
A page without such a label treats what document 1 doesn't have, or continues the page before it,
and has no number. Sphinx counts chapters and pages as well. Its numbers are used only where those
of figures and equations begin with them, and in a book without labels.

"1.1.6.1." before a heading helps nobody. So the numbers of sections are taken away just before a
page is written: from its headings and from its list of contents.

Sphinx counts a chapter's own headings together with its pages, in their order on the page. As the
pages come last there, two headings would make the first page 6.3. So the pages are counted first.
"""

from pathlib import Path

import documents
from docutils import nodes
from faults import guarded
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def pages_first(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Put the pages of every chapter before its headings, where Sphinx counts them."""
    for contents in env.tocs.values():
        for part in contents.findall(nodes.bullet_list):
            part.children.sort(key=lambda entry: not isinstance(entry, addnodes.toctree))
    return []


def forget_numbers(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Take away the numbers of an earlier build, as in a first one.

    sphinx-external-toc counts a title that has a number, and changes the number in its place.
    """
    for title in env.titles.values():
        number(title, None)
    return []


def number(node: nodes.Element | None, value: tuple[str, ...] | None) -> None:
    """Set the number that a title or a link to a page shows, or take it away."""
    if node is not None and value:
        node["secnumber"] = value
    elif node is not None:
        node.attributes.pop("secnumber", None)


def as_in_the_document(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Give every page the number of document 1 where titles and navigation look."""
    app.course_numbers = documents.numbers(Path(env.srcdir))
    for docname in env.tocs if app.course_numbers else ():
        shown = app.course_numbers.get(docname)
        number(env.titles.get(docname), shown)
        number(next(env.tocs[docname].findall(nodes.reference), None), shown)
    return []


@guarded
def drop_numbers(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Number a page's title, and nothing in it; the environment on disk still has Sphinx's.

    Sphinx gives a heading that it has not counted the number of the page.
    """
    numbers = app.env.toc_secnumbers.setdefault(docname, {})
    numbers.update({anchor: None for anchor in numbers if anchor})
    for section in doctree.findall(nodes.section):
        if isinstance(section.parent, nodes.section):
            numbers.update({f"#{anchor}": None for anchor in section["ids"]})
    if app.course_numbers:
        numbers[""] = app.course_numbers.get(docname)
    for entry in app.env.tocs[docname].findall(nodes.reference):
        if entry.get("anchorname"):
            entry.attributes.pop("secnumber", None)


def setup(app: Sphinx) -> dict:
    app.connect("env-get-updated", forget_numbers, priority=400)  # before Sphinx counts
    app.connect("env-get-updated", pages_first, priority=400)
    app.connect("env-get-updated", as_in_the_document, priority=600)  # after Sphinx has counted
    app.connect("doctree-resolved", drop_numbers)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
