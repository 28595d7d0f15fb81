"""Pictures are part of the page, so that their text has the page's color in light and dark.

A browser shows an SVG file in an <img> as it is: gray text that has to do for both modes. Here
each SVG picture, drawn by hand or by a cell, becomes an <svg> element of the page, its gray ink
becomes `currentColor`, and the alternative text stays with it. Frames of sliders, which are <svg>
elements already, get the same ink. Pages run with matplotlib's SVG output, set here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from faults import guarded
from sphinx.application import Sphinx

INK = re.compile(r"#([678][0-9a-f])\1\1\b", re.IGNORECASE)  # middle grays
IMAGE = re.compile(r'<img\b[^>]*?\bsrc="[^"]*?_images/([^"/]+\.svg)"[^>]*>')
ALT = re.compile(r'\balt="([^"]*)"')  # its value is escaped already
SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
KERNEL_CONFIG = "c.InlineBackend.figure_formats = {'svg'}\n"


def with_page_ink(svg: str) -> str:
    """An SVG whose gray is the page's text color, without the ids that nothing refers to.

    >>> with_page_ink('<svg><g id="axes_1"><path fill="#808080"/></g></svg>')
    '<svg><g><path fill="currentColor"/></g></svg>'
    """
    used = set(re.findall(r"#([\w.-]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda id: id[0] if id[1] in used else "", svg)
    return INK.sub("currentColor", svg)


def as_element(file: Path, tag: str) -> str:
    """The picture in `file` as an <svg> element with the alternative text and size of an <img>."""
    text = file.read_text("utf8")
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    svg = svg[svg.index("<svg") :]
    # Ids are made unique: two pictures of a page may both have a marker "a".
    prefix = re.sub(r"\W", "", file.stem)[:12] + "-"
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    alt = ALT.search(tag)
    described = f'role="img" aria-label="{alt[1] if alt else ""}" class="figure-svg"'
    return svg.replace("<svg", f"<svg {described}", 1)


@guarded
def inline(app: Sphinx, pagename: str, _template: str, context: dict, _doctree: Any) -> None:
    """Put the SVG pictures of a page into its HTML."""
    body = context.get("body")
    if not body or app.builder.format != "html":
        return
    files = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}
    body = IMAGE.sub(lambda tag: as_element(files[tag[1]], tag[0]), body)
    context["body"] = SVG.sub(lambda svg: with_page_ink(svg[0]), body)


def setup(app: Sphinx) -> dict:
    profile = Path(app.outdir).parent / ".ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(KERNEL_CONFIG, "utf8")
    os.environ["IPYTHONDIR"] = str(profile.parent)
    app.connect("html-page-context", inline, priority=450)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
