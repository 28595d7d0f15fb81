"""Run a page again when code that it imports, or the environment's lock, has changed.

jupyter-cache keys an executed page on its code cells and its kernelspec, so editing
`course_pkg` would leave stale outputs in the book. This extension computes a fingerprint
of everything else that a page's outputs depend on, and

- on `source-read` writes it into the kernelspec's display name, so into the cache's key;
- on `env-get-outdated` asks Sphinx to re-read the pages whose fingerprint has changed.

A fingerprint covers: the lock file; the modules of the package that the page imports,
found by parsing and followed through their own imports (see closure.py); the data files and
folders that page or modules name in a string; and the recorded experiments that the page names.
Pages without code cells have none.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from closure import PACKAGE, imported_names, package_modules, syntax_tree
from faults import guarded
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

CODE_CELL = re.compile(r"^(`{3,})\{code-cell\}[^\n]*\n(.*?)^\1`*\s*$", re.MULTILINE | re.DOTALL)
GLUED = re.compile(r"\{glue:\w+\}`([^`:]+\.md)::|^:doc: (\S+\.md)$", re.MULTILINE)
DISPLAY_NAME = re.compile(r"^(\s+display_name:\s*)(.+?)\s*$", re.MULTILINE)
ALWAYS = ("requirements.txt", "book/matplotlibrc")  # what every page with code depends on
DATA_ROOTS = (f"{PACKAGE}/data", "book/experiments")
RECORDS = f"{PACKAGE}/data/experiments"  # load_experiment("name") depends on name.json there, alone


def page_code(text: str) -> str:
    """The Python of a page's code cells, with cell options and IPython's own lines dropped."""
    kept = []
    for match in CODE_CELL.finditer(text):
        body = re.sub(r"\A---\n.*?^---\n", "", match[2], flags=re.MULTILINE | re.DOTALL)
        lines = body.splitlines()
        kept += ["" if line.lstrip().startswith((":", "%", "!")) else line for line in lines]
    return "\n".join(kept) + "\n" if kept else ""


def data_files(root: Path, tree: ast.AST, folders: tuple[Path, ...]) -> Iterator[Path]:
    """Files under the data roots that a string in `tree` names, as a path from any folder."""
    roots = [(root / name).resolve() for name in DATA_ROOTS]
    records = (root / RECORDS).resolve()
    for text in short_strings(tree):
        for named in (*(folder / text for folder in folders), records / f"{text}.json"):
            if not named.exists():  # hardly any string names a file
                continue
            path = named.resolve()
            if not any(path.is_relative_to(data) for data in roots):
                continue
            if path.is_file():
                yield path
            elif path.is_dir():
                inside = (file for file in path.rglob("*") if file.is_file())
                yield from (file for file in inside if records not in file.parents)


@cache
def short_strings(tree: ast.AST) -> list[str]:
    """The strings in a syntax tree that may be names of files."""
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return sorted(
        text for text in texts if 0 < len(text) < 200 and "\n" not in text and "\0" not in text
    )


def dependencies(root: Path, page: Path, code: str) -> set[Path]:
    """Every file, besides the page, that the outputs of a page's `code` depend on."""
    found = {root / name for name in ALWAYS if (root / name).is_file()}
    tree = syntax_tree(code)
    found.update(data_files(root, tree, (root, page.parent, *(root / d for d in DATA_ROOTS))))
    for path, module in package_modules(root, list(imported_names(tree, "", False))).items():
        found.add(path)
        found.update(data_files(root, module, (root, root / PACKAGE, path.parent)))
    return found


def fingerprint(root: Path, page: Path, text: str) -> str | None:
    """A short hash of a page's dependencies; None for a page with no code cells."""
    code = page_code(text)
    if not code:
        return None
    digest = hashlib.sha256()
    for path in sorted(dependencies(root, page, code)):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@guarded
def mark_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the fingerprint into the page's header as it is read."""
    mark = fingerprint(Path(app.srcdir), Path(app.env.doc2path(docname)), source[0])
    app.env.course_fingerprints[docname] = mark
    if mark is None:
        return
    head, end, rest = source[0].partition("\n---\n")
    head, count = DISPLAY_NAME.subn(rf"\g<1>\g<2> [{mark}]", head, count=1)
    if count != 1:
        raise ExtensionError(
            f"{docname}: has code cells, so its header needs a kernelspec with "
            "a name and a display_name (copy another page's header)"
        )
    source[0] = head + end + rest


def outdated(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list:
    """Pages whose dependencies have changed since they were last read."""
    known = env.course_fingerprints
    root = Path(app.srcdir)
    candidates = env.found_docs - added - changed
    stale = set()
    for docname in known.keys() & candidates:
        page = Path(env.doc2path(docname))
        if fingerprint(root, page, page.read_text("utf8")) != known[docname]:
            stale.add(docname)
    run_again = {Path(env.doc2path(docname)) for docname in stale | changed}
    for docname in candidates - stale:  # it may show values that a page run again has glued
        page = Path(env.doc2path(docname))
        if run_again & set(glued_pages(page, page.read_text("utf8"))):
            stale.add(docname)
    return sorted(stale)


def glued_pages(page: Path, text: str) -> Iterator[Path]:
    """The other pages whose glued values a page shows."""
    for match in GLUED.finditer(text):
        yield (page.parent / (match[1] or match[2])).resolve()


def merge(app: Sphinx, env: BuildEnvironment, docnames: list, other: BuildEnvironment) -> None:
    """Take over what another process has noted of the pages that it has read."""
    read = other.course_fingerprints
    env.course_fingerprints.update({name: read[name] for name in docnames if name in read})


def prepare(app: Sphinx) -> None:
    if not hasattr(app.env, "course_fingerprints"):
        app.env.course_fingerprints = {}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("source-read", mark_source)
    app.connect("env-get-outdated", outdated)
    app.connect("env-merge-info", merge)
    app.connect("env-purge-doc", lambda app, env, doc: env.course_fingerprints.pop(doc, None))
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
