"""One line under the first figure of a recorded experiment: when it was measured, and what changed.

A record whose code or data has changed since is no fault: the page says before which change it was
measured. If one of its rows was repeated after earlier changes, the page says that this is all that
was repeated. A page is read again, but not run again, when its line has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from faults import guarded
from rerun import CODE_CELL
from shortcuts import merge_from
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from course_pkg.pages.experiments import ExperimentError, changed_files, load_experiment

LOADED = re.compile(r"\bload_experiment\(\s*[\"'](\w+)[\"']\s*\)")
HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
NAMED = 3  # files that a line names


def shown_records(text: str) -> dict[str, int]:
    """The records that a page's cells load: the line after its header where each first does so."""
    header = HEADER.match(text)
    start = text.count("\n", 0, header.end()) if header else 0
    found: dict[str, int] = {}
    for cell in CODE_CELL.finditer(text):
        line = text.count("\n", 0, cell.start()) + 1 - start
        for name in LOADED.findall(cell[2]):
            found.setdefault(name, line)
    return found


def note(app: Sphinx, name: str) -> str:
    """The line for a record; "" if nothing has changed since it was measured."""
    if name not in app.course_notes:
        app.course_notes[name] = _note(app, name)
    return app.course_notes[name]


def _note(app: Sphinx, name: str) -> str:
    folder = Path(app.srcdir) / "course_pkg" / "data" / "experiments"
    try:
        record = load_experiment(name, folder=folder)
    except ExperimentError:  # the page's cell says so
        return ""
    changed = changed_files(record, app.course_sources)
    if not changed and not record.confirmed:
        return ""
    if not changed:
        day = record.confirmed["finished"][:10]
        after = f"Its code has changed since; one short row, repeated on {day}, came out the same."
        return f"Recorded on {record.date}. {after}"
    named = [path.removeprefix("course_pkg/").removeprefix("book/") for path in changed[:NAMED]]
    if len(changed) > NAMED:
        named.append(f"{len(changed) - NAMED} more files")
    files = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    return f"Recorded on {record.date}, before {files} changed."


def notes_of(app: Sphinx, docname: str) -> dict[str, str]:
    """The lines of a page, by record."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".md":
        return {}
    names = shown_records(path.read_text("utf8"))
    return {name: text for name in names if (text := note(app, name))}


@guarded
def add_notes(app: Sphinx, doctree: nodes.document) -> None:
    """Put each line under the first output at or after the cell that loads the record."""
    docname = app.env.docname
    app.env.course_notes[docname] = notes = notes_of(app, docname)
    if not notes:
        return
    lines = shown_records(Path(app.env.doc2path(docname)).read_text("utf8"))
    outputs = [
        cell
        for cell in doctree.findall(nodes.container)
        if "cell" in cell["classes"]
        and any("cell_output" in child.get("classes", ()) for child in cell.children)
    ]
    for name, text in notes.items():
        after = [cell for cell in outputs if (cell.line or 0) >= lines[name] - 1]
        if after:
            place = after[0].parent
            line = nodes.paragraph("", text, classes=["record-note"])
            place.insert(place.index(after[0]) + 1, line)


def outdated(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list:
    """Pages whose lines have changed since they were read."""
    known = env.course_notes
    pages = known.keys() & (env.found_docs - added - changed)
    return sorted(name for name in pages if notes_of(app, name) != known[name])


def prepare(app: Sphinx) -> None:
    app.course_notes = {}
    if not hasattr(app.env, "course_notes"):
        app.env.course_notes = {}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", prepare)
    app.connect("doctree-read", add_notes)
    app.connect("env-get-outdated", outdated)
    app.connect("env-merge-info", merge_from("course_notes"))
    app.connect("env-purge-doc", lambda app, env, doc: env.course_notes.pop(doc, None))
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
