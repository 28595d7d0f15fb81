"""Work that Sphinx and its extensions would do again and again is done once, or side by side.

No page changes by it.

- For each citation, sphinxcontrib-bibtex has pybtex search all installed packages for a plugin.
- To number figures, Sphinx asks every domain about every node of every page, down to each word of
  a signature. What stands inside a line of text has no number of its own.
- Several processes read the pages. `merge_from` puts together what each has noted of its pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import pybtex.plugin
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector


def merge_from(name: str) -> Callable:
    """A listener that takes over entries by page, of the dict `name` of another process."""

    def merge(app: Sphinx, env: BuildEnvironment, pages: list, other: BuildEnvironment) -> None:
        read = getattr(other, name)
        getattr(env, name).update({page: read[page] for page in pages if page in read})

    return merge


def outline(node: nodes.Element) -> nodes.Element:
    """A doctree, in place, without what is inside its lines; titles and captions are whole."""
    for child in node.children:
        if isinstance(child, nodes.TextElement):
            if not isinstance(child, nodes.title | nodes.caption):
                child.children = []
        elif isinstance(child, nodes.Element):
            outline(child)
    return node


def number_figures(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Sphinx's `assign_figure_numbers`, on outlines of the pages."""
    whole = env.get_doctree
    env.get_doctree = lambda docname: outline(whole(docname))
    try:
        return number_figures.__wrapped__(self, env)
    finally:
        del env.get_doctree


def setup(app: Sphinx) -> dict[str, Any]:
    if not hasattr(pybtex.plugin._load_entry_point, "cache_info"):
        pybtex.plugin._load_entry_point = cache(pybtex.plugin._load_entry_point)
    if TocTreeCollector.assign_figure_numbers is not number_figures:
        wraps(TocTreeCollector.assign_figure_numbers)(number_figures)
        TocTreeCollector.assign_figure_numbers = number_figures
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
