"""Every page ends with the modules of the package that it uses, each a link to its description.

Used is what the page shows by `literalinclude`, and what its code cells import; for a name that a
folder exports, the module that defines it. The modules that are shown come first, in the page's
order, then the others by name. A module that no page under book/api describes
fails the build (as a missing reference does, with -n).
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from closure import PACKAGE, imported_names, module_file, syntax_tree
from docutils import nodes
from faults import guarded
from rerun import page_code
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

SHOWN = re.compile(rf"^`{{3,}}\{{literalinclude\}}\s+\S*?({PACKAGE}/[\w/]+)\.py\s*$", re.MULTILINE)


def used_modules(root: Path, text: str) -> list[str]:
    """Dotted names of the package's modules that a page shows, in its order, or imports by name."""
    shown = [path.replace("/", ".") for path in SHOWN.findall(text)]
    imported = imported_names(syntax_tree(page_code(text)), "", False)
    inner = {name for name in imported if name.startswith(f"{PACKAGE}.")}
    inner |= {module for name in inner if (module := defining_module(root, name))}
    return [
        name
        for name in dict.fromkeys([*shown, *sorted(inner)])
        if (path := module_file(root, name)) is not None and path.name != "__init__.py"
    ]


def defining_module(root: Path, name: str) -> str | None:
    """The module that defines a name which a folder exports, such as course_pkg.metrics.bleu.x.

    The folder's `__init__.py` imports the name, or has a table from modules to their names.
    """
    package, _, exported = name.rpartition(".")
    path = module_file(root, package)
    if path is None or path.name != "__init__.py":
        return None
    return exports(path, path.stat().st_mtime_ns).get(exported)


@cache
def exports(path: Path, _mtime: int) -> dict[str, str]:
    """Name → the module that defines it, of what an `__init__.py` exports; many pages ask."""
    found: dict[str, str] = {}
    for node in ast.walk(syntax_tree(path.read_text("utf8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.setdefault(alias.name, node.module)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    for name in str(value.value).split():
                        found.setdefault(name, key.value)
    return found


def linked_modules(root: Path) -> set[str]:
    """The modules that any page of the book shows or imports; every other is only described."""
    pages = (root / "book").rglob("*.md")
    return {name for page in pages for name in used_modules(root, page.read_text("utf8"))}


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
