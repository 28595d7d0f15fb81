"""Chapters and pages are numbered, the sections inside a page are not.

"1.1.6.1." before a heading helps nobody, and the theme's numbering knows no depth. So the numbers
of sections are taken away just before a page is written: from its headings and from its list
of contents. Numbers of figures and equations, which begin with the chapter's, stay.
"""

from docutils import nodes
from faults import guarded
from sphinx.application import Sphinx


@guarded
def drop_numbers(app: Sphinx, _doctree: object, docname: str) -> None:
    """Forget the numbers of a page's sections; the environment on disk still has them."""
    numbers = app.env.toc_secnumbers.get(docname, {})
    numbers.update({anchor: None for anchor in numbers if anchor})
    for entry in app.env.tocs[docname].findall(nodes.reference):
        if entry.get("anchorname"):
            entry.attributes.pop("secnumber", None)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-resolved", drop_numbers)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
