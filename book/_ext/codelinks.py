"""Every page ends with the modules of the package that it uses, each a link to its description.

Used is what the page shows by `literalinclude`, and what its code cells import; for a name that a
folder exports, the module that defines it. The modules that are shown come first, in the page's
order, then the others by name. A module that no page under book/api describes
fails the build (as a missing reference does, with -n).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docutils import nodes
from faults import guarded
from rerun import page_code
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from course_pkg.common.fingerprints.reach import PACKAGE, Name, Sources, all_imports

SHOWN = re.compile(rf"^`{{3,}}\{{literalinclude\}}\s+\S*?({PACKAGE}/[\w/]+)\.py\s*$", re.MULTILINE)


@cache
def parsed(root: Path) -> Sources:
    """The package's modules; many pages ask."""
    return Sources(root)


def used_modules(root: Path, text: str) -> list[str]:
    """Dotted names of the package's modules that a page shows, in its order, or imports by name."""
    shown = [path.replace("/", ".") for path in SHOWN.findall(text)]
    try:
        tree = ast.parse(page_code(text))
    except SyntaxError:  # its cells say so
        tree = ast.Module([], [])
    sources = parsed(root)
    inner = {name for target in all_imports(tree) for name in modules_of(sources, target)}
    found = dict.fromkeys([*shown, *sorted(inner)])
    modules = {name: sources.module(name) for name in found}
    return [name for name, each in modules.items() if each and each.path.name != "__init__.py"]


def modules_of(sources: Sources, target: Name) -> Iterator[str]:
    """The modules of an imported name: where it is imported from, and where it is defined."""
    owner, name = target
    module = sources.module(owner)
    if module is not None:
        yield owner
        if name.isidentifier():  # and not the whole module
            yield f"{owner}.{name}"
        exported = module.imported.get(name) or module.lazy.get(name)
        if exported and module.path.name == "__init__.py":
            yield exported[0]


@cache
def pages_by_module(root: Path) -> dict[str, list[str]]:
    """For each module that pages of the book show or import: those pages, as "adapters/lora"."""
    pages: dict[str, list[str]] = {}
    book = root / "book"
    for path in sorted(book.rglob("*.md")):
        for module in used_modules(root, path.read_text("utf8")):
            pages.setdefault(module, []).append(path.relative_to(book).with_suffix("").as_posix())
    return pages


def link(docname: str, module: str) -> pending_xref:
    """A reference to a module's description, in code font."""
    options = {"refdomain": "py", "reftype": "mod", "refdoc": docname, "refexplicit": False}
    text = nodes.literal(module, module, classes=["xref", "py", "py-mod"])
    return pending_xref("", text, reftarget=module, refwarn=True, **options)


@guarded
def add_line(app: Sphinx, doctree: nodes.document) -> None:
    """Put the line at the end of a page."""
    docname = app.env.docname
    source = Path(app.env.doc2path(docname))
    if source.suffix != ".md":
        return
    modules = used_modules(Path(app.srcdir), source.read_text("utf8"))
    section = doctree.next_node(nodes.section)
    if not modules or section is None:
        return
    line = nodes.paragraph(classes=["code-used"])
    line += nodes.Text("Code of this page: ")
    for module in modules:
        line += [link(docname, module), nodes.Text(", ")]
    line[-1] = nodes.Text(".")
    section += line


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", add_line)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
