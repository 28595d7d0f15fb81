"""The navigation of pages that are not in the table of contents is made once, not for each of them.

Most HTML pages show a module's source. Their navigation has every page of the book and marks none
as current, so it is the same for all in one folder depth, where relative links are the same. Making
it takes Sphinx longer than all the rest of such a page.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def share(app: Sphinx, pagename: str, _template: str, context: dict, doctree: Any) -> None:
    """Give a page that has no source a `toctree` that keeps what it has made."""
    if doctree is not None or pagename in app.env.all_docs or "toctree" not in context:
        return
    make, depth = context["toctree"], pagename.count("/")

    def toctree(**options: Any) -> str:
        key = (depth, *sorted(options.items()))
        if key not in app.course_navigation:
            app.course_navigation[key] = make(**options)
        return app.course_navigation[key]

    context["toctree"] = toctree


def prepare(app: Sphinx) -> None:
    app.course_navigation = {}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("html-page-context", share, priority=400)  # before the theme uses it
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
