"""The navigation beside every page, made from titles alone, and once for pages of one kind.

For each HTML page Sphinx copies the table of contents of every page of the book, with each heading
and object, and then throws away all but the titles. Here it gets the titles only.

Most HTML pages show a module's source. They are not in the table of contents, so their navigation
marks no page as current, and is the same for all in one folder depth, where relative links are the
same: it is made once, and so is what the theme makes of it. The pages of exercises in the browser
aren't in the table either, but share a folder with pages that are. On any other page the theme asks
twice.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from pydata_sphinx_theme.toctree import add_toctree_functions
from sphinx import addnodes
from sphinx.application import Sphinx


def titles(contents: nodes.Element) -> nodes.Element:
    """A page's table of contents with its title and the pages below it, without its headings."""
    page = contents[0]
    kept = nodes.list_item("", page[0].deepcopy(), **page.attributes)
    below = [toctree.deepcopy() for toctree in page.findall(addnodes.toctree)]
    if below:
        kept += nodes.bullet_list("", *below)
    return type(contents)("", kept, **contents.attributes)


def place(pagename: str) -> str:
    """The same for unlisted pages whose links to the book's pages are the same.

    >>> place("_modules/p/a"), place("book/exercises/bleu"), place("search")
    ('../../', 'book/exercises', '')
    """
    folder = pagename.rpartition("/")[0]
    return folder if folder.startswith("book") else "../" * pagename.count("/")


def share(app: Sphinx, pagename: str, _template: str, context: dict, doctree: Any) -> None:
    """Give a page a `toctree` that works on titles, and keeps what it has made for other pages."""
    if "toctree" not in context:
        return
    make = context["toctree"]
    is_listed = doctree is not None or pagename in app.env.all_docs

    def from_titles(**options: Any) -> str:
        if not options.get("titles_only"):
            return make(**options)
        if app.course_titles is None:
            app.course_titles = {name: titles(toc) for name, toc in app.env.tocs.items()}
        whole = app.env.tocs
        app.env.tocs = app.course_titles
        try:
            return make(**options)
        finally:
            app.env.tocs = whole

    def toctree(**options: Any) -> str:
        if is_listed:
            return from_titles(**options)
        key = (place(pagename), *sorted(options.items()))
        if key not in app.course_navigation:
            app.course_navigation[key] = from_titles(**options)
        return app.course_navigation[key]

    context["toctree"] = toctree


def shared(app: Sphinx, pagename: str, context: dict, doctree: Any) -> None:
    """Give a page a `generate_toctree_html` that keeps its result, as text."""
    make = context["generate_toctree_html"]
    is_listed = doctree is not None or pagename in app.env.all_docs
    known = {} if is_listed else app.course_navigation

    def html(**options: Any) -> str:
        key = ("html", place(pagename), *sorted(options.items()))
        if key not in known:
            known[key] = str(make(**options))
        return known[key]

    context["generate_toctree_html"] = html


def follow_theme(app: Sphinx) -> None:
    """Do so right after the theme has added its function: the next listener already uses it."""
    listeners = app.events.listeners["html-page-context"]
    for at, listener in enumerate(listeners):
        if listener.handler is add_toctree_functions:

            def add(app: Sphinx, page: str, template: str, context: dict, doctree: Any) -> None:
                add_toctree_functions(app, page, template, context, doctree)
                shared(app, page, context, doctree)

            listeners[at] = listener._replace(handler=add)


def prepare(app: Sphinx) -> None:
    app.course_navigation = {}
    app.course_titles = None


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("builder-inited", follow_theme)
    app.connect("html-page-context", share, priority=400)  # before the theme uses it
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
