"""A site that opens from disk and asks nothing of any other host.

- MathJax is copied into the site from the pip package `sphinx-mathjax-offline`. The SVG
  build with every TeX package is used: one file, and no fonts, which some browsers
  refuse to load over file://.
- sphinx-thebe, which Jupyter Book always loads, would add a script from a CDN and
  listeners that fail without it: its listeners and its stylesheet are dropped.
- jupyterquiz falls back to MathJax from a CDN: that branch is cut from the pages. Half a second
  after the quiz it looks at MathJax's version, which is an error where MathJax loads for longer;
  then it does nothing now, because MathJax typesets the whole page when it has loaded.

A page that would still load a script, style, font or picture from elsewhere is a warning.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from faults import guarded
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.fileutil import copy_asset

MATHJAX_PACKAGE = "sphinx-mathjax-offline"
MATHJAX = "tex-svg-full.js"
QUIZ_FALLBACK = re.compile(
    r"else \{\s*console\.log\('WARNING: Trying to force load MathJax 3'\);.*?\}\)\(\);\s*\}",
    re.DOTALL,
)
QUIZ_VERSION = re.compile(r"\bversion\[0\]")
# What a browser fetches by itself when it shows a page; plain links are not among it.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']((?:https?:)?//[^"']+)
      | <link\b(?=[^>]*\brel=["'](?:stylesheet|preload|icon|shortcut\ icon|modulepreload)["'])
        [^>]*?\bhref=["']((?:https?:)?//[^"']+)
      | (?:@import\s+(?:url\()?|\burl\(|\.src\s*=|\bimport\(|\bfetch\(|importScripts\()
        \s*["'`]?((?:https?:)?//[^"'`)\s;]+)""",
    re.VERBOSE | re.IGNORECASE,
)


def loaded_urls(text: str) -> list[str]:
    """URLs on other hosts that a browser would fetch by itself to show this HTML, CSS or JS.

    >>> loaded_urls('<a href="https://a.org">a</a> <script src="https://b.org/x.js"></script>')
    ['https://b.org/x.js']
    """
    return ["".join(groups) for groups in LOADED.findall(text)]


def drop_thebe(app: Sphinx, _config: Any) -> None:
    """Disconnect every listener that sphinx-thebe connected, and its stylesheet."""
    for listeners in app.events.listeners.values():
        listeners[:] = [
            item for item in listeners if not item.handler.__module__.startswith("sphinx_thebe")
        ]
    files = app.registry.css_files
    files[:] = [item for item in files if item[0] != "sphinx-thebe.css"]


@guarded
def check_page(app: Sphinx, pagename: str, _template: str, context: dict, _doctree: Any) -> None:
    """Repair the quiz's script in a page, and name what is still loaded from elsewhere."""
    body = context.get("body")
    if not body:
        return
    body = QUIZ_FALLBACK.sub("{ }", body)
    context["body"] = body = QUIZ_VERSION.sub("version?.[0]", body)
    if urls := loaded_urls(body):
        raise ExtensionError(
            f"{pagename}: the page would load {urls[0]} from another host; "
            "put the file under book/_static or drop it, so that the book opens offline"
        )


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    """Copy MathJax, and what its accessibility menu may ask for, into the site."""
    if exception is not None or app.builder.format != "html":
        return
    target = Path(app.outdir, "_static", "mathjax")
    with resources.as_file(resources.files(MATHJAX_PACKAGE) / "static" / "mathjax") as source:
        target.mkdir(parents=True, exist_ok=True)
        copy_asset(str(source / MATHJAX), str(target))
        copy_asset(str(source / "a11y"), str(target / "a11y"))
        for language in ("base", "en"):
            maps = target / "sre" / "mathmaps"
            maps.mkdir(parents=True, exist_ok=True)
            copy_asset(str(source / "sre" / "mathmaps" / f"{language}.json"), str(maps))


def check_mathjax(app: Sphinx, config: Any) -> None:
    try:
        resources.files(MATHJAX_PACKAGE)
    except ModuleNotFoundError as error:
        raise ExtensionError(
            f"the book needs the pip package {MATHJAX_PACKAGE}: "
            "install the environment again (make setup)"
        ) from error
    config.mathjax_path = f"mathjax/{MATHJAX}"


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", drop_thebe, priority=900)
    app.connect("config-inited", check_mathjax)
    app.connect("html-page-context", check_page)
    app.connect("build-finished", copy_mathjax)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
