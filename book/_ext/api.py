"""The package's pages: one per folder, written from the docstrings of its modules.

    ```{eval-rst}
    .. package:: course_pkg.adapters
    ```

lists every module under that name with autodoc and napoleon, after the pages that show or import
it; several names may stand there, and `:without:` names folders to leave out. A page is read again
when a module was added or removed. (autosummary would write a page per module: 500 of them, in a
book of 120.)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from codelinks import pages_by_module
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

LISTED = "packages listed"  # of a page: package, folders left out, its modules with their pages


def public_modules(root: Path, package: str, without: set[str]) -> list[str]:
    """Dotted names of the modules of a package, or of the one module of that name."""
    base = root.joinpath(*package.split("."))
    if base.with_suffix(".py").is_file():
        return [package]
    files = sorted(path.relative_to(root) for path in base.rglob("*.py"))
    named = [".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"]
    return [name for name in named if without.isdisjoint(name.split("."))]


def described(root: Path, package: str, without: set[str]) -> list[tuple[str, list[str]]]:
    """The public modules of a package, each with the pages that show or import it."""
    pages = pages_by_module(root)
    return [(name, pages.get(name, [])) for name in public_modules(root, package, without)]


class Package(SphinxDirective):
    """A section for each module, with all that is public in it."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict] = {"without": str.split}

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        without = set(self.options.get("without", ()))
        listed = self.env.metadata[self.env.docname].setdefault(LISTED, [])
        for package in self.arguments[0].split():
            modules = described(Path(self.env.srcdir), package, without)
            if not modules:
                raise self.error(f"{package}: no such package or module in {self.env.srcdir}")
            listed.append((package, without, modules))
            for name, pages in modules:
                title = name.partition(".")[2]  # two packages may have a module of one name
                lines += [f"``{title}``", "-" * (len(title) + 4), ""]
                if pages:
                    lines += ["On " + ", ".join(f":doc:`/book/{page}`" for page in pages) + ".", ""]
                lines += [f".. automodule:: {name}", "   :members:", ""]
        content = nodes.section()
        content.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, self.get_source_info()[0]), content)
        return content.children


def outdated(app: Sphinx, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Pages that were read when a package had other modules, or they other pages."""
    root = Path(app.srcdir)
    pages_by_module.cache_clear()
    pages_by_module(root)  # here, so that the processes that read pages have it
    return [
        page
        for page, data in env.metadata.items()
        if any(described(root, *names) != modules for *names, modules in data.get(LISTED, ()))
    ]


def unlinked(app: Sphinx, env: Any, node: Any, contnode: nodes.Node) -> nodes.Node | None:
    """Types in signatures that no page of ours describes (torch.Tensor) are shown, not linked."""
    if node.get("refdomain") == "py" and node["reftype"] != "mod":
        return contnode
    return None


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Fields of named tuples carry a docstring that says nothing."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def prepare(app: Sphinx, config: Any) -> None:
    """Document the package beside the book, whatever else is installed."""
    if str(app.srcdir) not in sys.path:
        sys.path.insert(0, str(app.srcdir))


def setup(app: Sphinx) -> dict:
    for extension in ("autodoc", "napoleon", "viewcode"):
        app.setup_extension(f"sphinx.ext.{extension}")
    app.add_directive("package", Package)
    app.connect("config-inited", prepare)
    app.connect("autodoc-skip-member", skip)
    app.connect("env-get-outdated", outdated)
    app.connect("missing-reference", unlinked)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
