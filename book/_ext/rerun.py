"""Run a page again when code that it loads, or the environment's lock, has changed.

jupyter-cache keys an executed page on its code cells and its kernelspec, so editing
`course_pkg` would leave stale outputs in the book. This extension computes a fingerprint
of everything else that a page's outputs depend on, and

- on `source-read` writes it into the kernelspec's display name, so into the cache's key;
- on `env-get-outdated` asks Sphinx to re-read the pages whose fingerprint has changed.

A fingerprint covers: the lock file; the structure of the code that the page's cells can run
(course_pkg.common.fingerprints); the data files and folders that page or code name in a string;
and what was measured in the recorded experiments that the page names.
Pages without code cells have none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from faults import guarded
from shortcuts import merge_from
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from course_pkg.common.fingerprints.reach import PACKAGE, Sources
from course_pkg.pages.experiments import script_sources

CODE_CELL = re.compile(r"^(`{3,})\{code-cell\}[^\n]*\n(.*?)^\1`*\s*$", re.MULTILINE | re.DOTALL)
GLUED = re.compile(r"\{glue:\w+\}`([^`:]+\.md)::|^:doc: (\S+\.md)$", re.MULTILINE)
DISPLAY_NAME = re.compile(r"^(\s+display_name:\s*)(.+?)\s*$", re.MULTILINE)
ALWAYS = ("requirements.txt", "book/matplotlibrc")  # what every page with code depends on
DATA_ROOTS = (f"{PACKAGE}/data", "book/experiments")
RECORDS = f"{PACKAGE}/data/experiments"  # load_experiment("name") depends on name.json there, alone
NOT_MEASURED = ("files", "programs", "confirmed")  # of a record: no page computes with it


def page_code(text: str) -> str:
    """The Python of a page's code cells, with cell options and IPython's own lines dropped."""
    kept = []
    for match in CODE_CELL.finditer(text):
        body = re.sub(r"\A---\n.*?^---\n", "", match[2], flags=re.MULTILINE | re.DOTALL)
        lines = body.splitlines()
        kept += ["" if line.lstrip().startswith((":", "%", "!")) else line for line in lines]
    return "\n".join(kept) + "\n" if kept else ""


def data_names(root: Path) -> set[str]:
    """The last parts of everything that a string can name under the data roots."""
    roots = [root / name for name in DATA_ROOTS]
    found = {path.name for data in roots if data.is_dir() for path in (data, *data.rglob("*"))}
    return found | {path.stem for path in (root / RECORDS).glob("*.json")}


def data_files(
    root: Path, known: set[str], texts: Iterable[str], folders: Iterable[Path]
) -> Iterator[Path]:
    """Files under the data roots that one of the texts names, as a path from any folder.

    known: `data_names`, as hardly any string names a file.
    """
    roots = [(root / name).resolve() for name in DATA_ROOTS]
    records = (root / RECORDS).resolve()
    folders = list(folders)
    for text in (text for text in texts if text.rstrip("/").rpartition("/")[2] in known):
        for named in (*(folder / text for folder in folders), records / f"{text}.json"):
            if not named.exists():
                continue
            path = named.resolve()
            if not any(path.is_relative_to(data) for data in roots):
                continue
            if path.is_file():
                yield path
            elif path.is_dir():
                inside = (file for file in path.rglob("*") if file.is_file())
                yield from (file for file in inside if records not in file.parents)


def dependencies(sources: Sources, page: Path, code: str) -> dict[str, str]:
    """What, besides the page, the outputs of its `code` depend on: hashes by path."""
    root = sources.root
    data = {root / name for name in ALWAYS if (root / name).is_file()}
    reached = sources.reach(sources.parsed(code, f"page {page}", page))
    known = data_names(root)
    for path, texts in reached.strings.items():
        folders = [root, root / PACKAGE, path.parent]
        if path == page:
            folders = [root, page.parent, *(root / name for name in DATA_ROOTS)]
        data.update(data_files(root, known, texts, folders))
    found = sources.hashes(reached)
    found.pop(page.relative_to(root).as_posix(), None)  # its cells have a hash in the cache
    for path in data:
        if "__pycache__" not in path.parts:
            found[path.relative_to(root).as_posix()] = content_hash(root, path)
    return found


def content_hash(root: Path, path: Path) -> str:
    """A hash of a data file; of a record, of what pages compute with."""
    content = path.read_bytes()
    if path.is_relative_to(root / RECORDS):
        fields = json.loads(content)
        kept = {name: value for name, value in fields.items() if name not in NOT_MEASURED}
        content = json.dumps(kept, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def fingerprint(sources: Sources, page: Path, text: str) -> str | None:
    """A short hash of a page's dependencies; None for a page with no code cells."""
    code = page_code(text)
    if not code:
        return None
    found = dependencies(sources, page, code)
    return hashlib.sha256(str(sorted(found.items())).encode()).hexdigest()[:12]


@guarded
def mark_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the fingerprint into the page's header as it is read."""
    mark = fingerprint(app.course_sources, Path(app.env.doc2path(docname)), source[0])
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
    candidates = env.found_docs - added - changed
    stale = set()
    for docname in known.keys() & candidates:
        page = Path(env.doc2path(docname))
        if fingerprint(app.course_sources, page, page.read_text("utf8")) != known[docname]:
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


def prepare(app: Sphinx) -> None:
    app.course_sources = script_sources(Path(app.srcdir))
    if not hasattr(app.env, "course_fingerprints"):
        app.env.course_fingerprints = {}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("source-read", mark_source)
    app.connect("env-get-outdated", outdated)
    app.connect("env-merge-info", merge_from("course_fingerprints"))
    app.connect("env-purge-doc", lambda app, env, doc: env.course_fingerprints.pop(doc, None))
    return {"version": "1", "env_version": 2, "parallel_read_safe": True}
