"""The texts that the search page looks through, in a script: `fetch` does not work from disk.

`search-pages.js` holds for each page its address, title, rank and parts. A part is a section, a
term of the glossary or an object of the package, with its anchor, title, text and code. Chapters
have rank 0, what is looked up or practiced (errata, questions) rank 1, the package's pages rank 2;
`_static/search.js` shows lower ranks first. Left out are what cells print, the code of folded cells
and displayed formulas; formulas inside sentences are plain text (see formulas.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import formulas
from docutils import nodes
from faults import guarded
from reading import is_read_through
from sphinx import addnodes
from sphinx.application import Sphinx

SCRIPT = "search-pages.js"
REFERENCE = ("book/api/", "book/appendix/errata")
PRACTICE = ("book/exercises", "book/qa/", "book/routes")
START = "const coursePages = "
END = ";\n"
LEFT_OUT = (nodes.Invisible, nodes.raw, nodes.image, nodes.math_block, nodes.literal_block)
LEFT_OUT_CLASSES = {"cell_output", "reading-time", "page-cost", "code-used"}
PART = (nodes.section, addnodes.desc, nodes.definition_list_item)
FOLDED = {"tag_hide-input", "tag_hide-cell"}  # cells whose code a reader has to open first


def is_looked_up(docname: str) -> bool:
    """Whether a page is for looking things up.

    >>> [is_looked_up(f"book/{page}") for page in ("metrics/bleu", "appendix/glossary", "api/lm")]
    [False, True, True]
    """
    return docname.startswith(REFERENCE) or not is_read_through(docname)


def rank(docname: str) -> int:
    """0 for pages that teach, 1 for those to look things up in or to practice, 2 for the package's.

    >>> [rank(f"book/{page}") for page in ("metrics/bleu", "exercises", "qa/metrics", "api/lm")]
    [0, 1, 1, 2]
    """
    if docname.startswith("book/api/"):
        return 2
    return int(docname.startswith(PRACTICE) or is_looked_up(docname))


def is_part(node: nodes.Node) -> bool:
    """Whether a node is shown on its own among the results."""
    is_term = isinstance(node, nodes.definition_list_item) and node[0].get("ids")
    return isinstance(node, PART) and bool(is_term or not isinstance(node, PART[2]))


def is_prose(node: nodes.Node) -> bool:
    """Whether the text of a node is the author's, and is not code."""
    left_out = isinstance(node, LEFT_OUT) or LEFT_OUT_CLASSES.intersection(node.get("classes", ()))
    return not left_out and not is_part(node)


def text_of(node: nodes.Node) -> str:
    """The text of a node, without that of the parts inside it."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.math):
        return formulas.plain(node.astext())
    kept = [child for child in node.children if isinstance(child, nodes.Text) or is_prose(child)]
    return ("" if isinstance(node, nodes.TextElement) else " ").join(map(text_of, kept))


def code_of(node: nodes.Element) -> str:
    """The code that a part shows, without what is folded and what it prints."""
    inner = [child for child in node.children if isinstance(child, nodes.Element)]
    inner = [child for child in inner if not is_part(child)]
    left_out = FOLDED | {"cell_output"}
    inner = [child for child in inner if left_out.isdisjoint(child["classes"])]
    blocks = [child.astext() for child in inner if isinstance(child, nodes.literal_block)]
    return " ".join([*blocks, *map(code_of, inner)])


def part_of(node: nodes.Element) -> tuple[str, ...] | None:
    """Anchor, title, text and code of a part; None if nothing leads to it."""
    head = node.next_node(addnodes.desc_signature) if isinstance(node, addnodes.desc) else node[0]
    ids = node["ids"] if isinstance(node, nodes.section) else head.get("ids", ())
    if not ids:
        return None
    title = head.get("fullname") or text_of(head)
    text = " ".join(text_of(child) for child in node if child is not head and is_prose(child))
    return ids[0], *(" ".join(found.split()) for found in (title, text, code_of(node)))


def page_of(docname: str, doctree: nodes.document) -> dict[str, Any] | None:
    """What the script holds of a page; None if it has no title."""
    parts = [part for node in doctree.findall(is_part) if (part := part_of(node))]
    if not parts:
        return None
    parts[0] = ("", *parts[0][1:])  # the page's own section begins at its top
    return {"url": f"{docname}.html", "title": parts[0][1], "rank": rank(docname), "parts": parts}


def kept(app: Sphinx, docname: str) -> Path:
    """The file with a page's entry. Several processes write pages, and a build writes only some."""
    return Path(app.doctreedir, "search", f"{docname}.json")


@guarded
def keep(app: Sphinx, pagename: str, _template: str, context: dict, doctree: Any) -> None:
    if doctree is not None and (page := page_of(pagename, doctree)):
        file = kept(app, pagename)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(page, ensure_ascii=False, separators=(",", ":")), "utf8")


def write_script(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    files = [kept(app, docname) for docname in sorted(app.env.all_docs)]
    pages = [file.read_text("utf8") for file in files if file.is_file()]
    Path(app.outdir, SCRIPT).write_text(f"{START}[{','.join(pages)}]{END}", "utf8")


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", keep)
    app.connect("build-finished", write_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
