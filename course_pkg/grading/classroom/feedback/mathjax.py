"""Formulas in nbgrader's pages without a network: MathJax is part of the page.

nbconvert's template loads it from another host. Here the copy in the pip package
`sphinx-mathjax-offline` is packed into the page: 0.9 MB each. Extensions such as `href` and
`require` are not in it, so students' TeX can't load or link anything.
"""

import base64
import functools
import gzip
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

PACKAGE = "sphinx-mathjax-offline"
SCRIPT = "tex-svg.js"
TEMPLATES = Path(__file__).parents[3] / "data" / "nbgrader"
PAGE = """<script>
window.MathJax = {
  tex: {
    inlineMath: [["$", "$"], ["\\\\(", "\\\\)"]],
    displayMath: [["$$", "$$"], ["\\\\[", "\\\\]"]],
    processEscapes: true,
    tags: "ams",
    packages: {"[-]": ["require", "autoload"]},
  },
  options: {ignoreHtmlClass: "tex2jax_ignore|mathjax_ignore", enableMenu: false},
};
(async () => {
  const packed = Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(plain).text();
  document.head.append(script);
})();
</script>"""


def use_local_mathjax(config: Any) -> None:
    """Make nbgrader's pages use the local copy, in its configuration object."""
    import nbgrader

    theirs = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader" / "templates"
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), str(theirs)]
    config.HTMLExporter.filters = {"local_mathjax": f"{__name__}.local_mathjax"}


def local_mathjax(_: str = "") -> str:
    """The script element with MathJax, compressed; a comment if its package is not installed."""
    script = _packed()
    return Markup(PAGE % script if script else f"<!-- no MathJax: {PACKAGE} is not installed -->")


@functools.cache
def _packed() -> str:
    try:
        path = resources.files(PACKAGE) / "static" / "mathjax" / SCRIPT
    except ModuleNotFoundError:
        return ""
    return base64.b64encode(gzip.compress(path.read_bytes(), mtime=0)).decode()
