"""Chapters and pages are numbered from 1, the sections inside a page are not numbered.

"1.1.6.1." before a heading helps nobody, and the theme's numbering knows no depth. So the numbers
of sections are taken away just before a page is written: from its headings and from its list
of contents. Numbers of figures and equations, which begin with the chapter's, stay.

Sphinx counts a chapter's own headings together with its pages, in their order on the page. As the
pages come last there, two headings would make the first page 6.3. So the pages are counted first.
"""

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


@guarded
def drop_numbers(app: Sphinx, _doctree: object, docname: str) -> None:
    """Forget the numbers of a page's sections; the environment on disk still has them."""
    numbers = app.env.toc_secnumbers.get(docname, {})
    numbers.update({anchor: None for anchor in numbers if anchor})
    for entry in app.env.tocs[docname].findall(nodes.reference):
        if entry.get("anchorname"):
            entry.attributes.pop("secnumber", None)


def setup(app: Sphinx) -> dict:
    app.connect("env-get-updated", pages_first, priority=400)  # before Sphinx counts
    app.connect("doctree-resolved", drop_numbers)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
