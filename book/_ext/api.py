"""The package's pages: one per folder, written from the docstrings of its modules.

    ```{eval-rst}
    .. package:: course_pkg.adapters
    ```

lists every module under that name with autodoc; several names may stand there, and `:without:`
names folders to leave out. A page is read again when a module was added or removed. docstrings.py
turns plain docstrings into what Sphinx reads.

A module has a page with its source, and links to it, if a page of the book shows or imports it. Of
the others, half of the package, the description is enough.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from codelinks import linked_modules
from docstrings import as_rst
from docutils import nodes
from docutils.statemachine import StringList
from faults import guarded
from sphinx.application import Sphinx
from sphinx.ext import viewcode
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles
from sphinx.util.parallel import ParallelTasks

from course_pkg.common.fingerprints.reach import PACKAGE

LISTED = "packages listed"  # of a page: package, folders left out, modules found
INDEX = "_modules/index"
LINKED = "modules with a source page"  # of a page: those that it describes


def parameters(obj: Any) -> set[str]:
    """Names of what an object takes, or of a dataclass's fields."""
    try:
        return set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return set()


@guarded
def convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """autodoc hands the docstring over as lines, and takes what is left in the list."""
    names = parameters(obj) if what in ("class", "function", "method") else set()
    lines[:] = as_rst("\n".join(lines), names, app.env.found_docs)


def public_modules(root: Path, package: str, without: set[str]) -> list[str]:
    """Dotted names of the modules of a package, or of the one module of that name."""
    base = root.joinpath(*package.split("."))
    if base.with_suffix(".py").is_file():
        return [package]
    files = sorted(path.relative_to(root) for path in base.rglob("*.py"))
    named = [".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"]
    return [name for name in named if without.isdisjoint(name.split("."))]


class Package(SphinxDirective):
    """A section for each module, with all that is public in it."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict] = {"without": str.split}

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        left_out = set(self.options.get("without", ()))
        listed = self.env.metadata[self.env.docname].setdefault(LISTED, [])
        for package in self.arguments[0].split():
            found = public_modules(Path(self.env.srcdir), package, left_out)
            listed.append((package, left_out, found))
            if not found:
                raise self.error(f"{package}: no such package or module in {self.env.srcdir}")
            for name in found:
                title = name.partition(".")[2]  # two packages may have a module of one name
                lines += [f"``{title}``", "-" * (len(title) + 4), "", f".. automodule:: {name}"]
                lines += ["   :members:", "   :member-order: bysource", ""]
            have = self.env.metadata[self.env.docname].setdefault(LINKED, set())
            have |= self.env.app.course_linked.intersection(found)
        content = nodes.section()
        content.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, self.get_source_info()[0]), content)
        return content.children


def outdated(app: Sphinx, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Pages that were read when a package had other modules."""

    def differs(package: str, left_out: set[str], found: list[str]) -> bool:
        return public_modules(Path(env.srcdir), package, left_out) != found

    def is_outdated(data: dict) -> bool:
        listed = data.get(LISTED, ())
        described = {name for _, _, found in listed for name in found}
        have = app.course_linked & described
        return any(differs(*entry) for entry in listed) or have != data.get(LINKED, have)

    return [page for page, data in env.metadata.items() if is_outdated(data)]


def choose_sources(app: Sphinx) -> None:
    """Find the modules that pages link to. viewcode passes over a module that is False."""
    root = Path(app.srcdir)
    app.course_linked = linked_modules(root)
    known = getattr(app.env, "_viewcode_modules", {})
    for name in public_modules(root, PACKAGE, set()):
        if name not in app.course_linked:
            known[name] = False
        elif known.get(name) is False:
            del known[name]
    app.env._viewcode_modules = known


def write_sources(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Write the modules' pages, which takes a process for each core; give Sphinx their index."""
    known = {name: entry for name, entry in app.env._viewcode_modules.items() if entry}

    def write(names: list[str]) -> None:
        app.env._viewcode_modules = {name: known[name] for name in names}
        for name, context, template in viewcode.collect_pages(app):
            if name != INDEX:
                app.builder.handle_page(name, context, template)

    names = sorted(known)
    tasks = ParallelTasks(app.parallel)
    for first in range(app.parallel):
        tasks.add_task(write, names[first :: app.parallel])
    tasks.join()
    app.env._viewcode_modules = dict.fromkeys(known, False)  # no page is left to be made
    yield from viewcode.collect_pages(app)
    app.env._viewcode_modules = known


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
    config.autodoc_typehints_format = "short"
    config.autodoc_preserve_defaults = True
    config.add_module_names = False
    config.python_use_unqualified_type_names = True
    config.maximum_signature_line_length = 90


def setup(app: Sphinx) -> dict:
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.viewcode")
    app.add_directive("package", Package)
    app.connect("config-inited", prepare)
    app.connect("builder-inited", choose_sources)
    for listener in list(app.events.listeners["html-collect-pages"]):
        if listener.handler is viewcode.collect_pages:
            app.disconnect(listener.id)
    app.connect("html-collect-pages", write_sources)
    app.connect("autodoc-process-docstring", convert)
    app.connect("autodoc-skip-member", skip)
    app.connect("env-get-outdated", outdated)
    app.connect("missing-reference", unlinked)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
