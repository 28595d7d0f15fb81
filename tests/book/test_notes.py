"""The line under a recorded experiment's figure: when it was measured, what has changed since."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
from docutils import nodes
from docutils.utils import new_document

from course_pkg.pages.experiments import code_hashes, script_sources
from tests.book import small

PAGE = small.page("Rows", "from course_pkg.pages.experiments import load_experiment") + (
    "\n```{code-cell} ipython3\n:tags: [remove-cell]\nrows = load_experiment('squares')\n```\n"
    "\nText.\n\n```{code-cell} ipython3\nplot(rows)\n```\n"
    "\n```{code-cell} ipython3\nplot(load_experiment('squares'))\n```\n"
)


@pytest.fixture
def app(tmp_path):
    """What the extension sees of Sphinx, with the record of one experiment."""
    script = tmp_path / "book/experiments/squares.py"
    script.parent.mkdir(parents=True)
    script.write_text("def square(x):\n    return x * x\n")
    (tmp_path / "book/page.md").write_text(PAGE)
    (tmp_path / "book/plain.md").write_text("# Plain\n")
    env = SimpleNamespace(
        docname="book/page",
        found_docs={"book/page", "book/plain"},
        doc2path=lambda name: str(tmp_path / f"{name}.md"),
    )
    made = SimpleNamespace(srcdir=str(tmp_path), env=env)
    record = {
        "name": "squares",
        "command": "python book/experiments/squares.py",
        "settings": {},
        "machine": {},
        "versions": {},
        "files": code_hashes("squares", (), script_sources(tmp_path)),
        "rows": [{"x": 1, "seconds": 2.0, "finished": "2026-11-01T00:00:00+00:00"}],
    }
    write_record(made, record)
    begin(made)
    return made


def write_record(app, record: dict) -> None:
    path = Path(app.srcdir, "course_pkg/data/experiments/squares.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def begin(app) -> None:
    """What a new build begins with."""
    app.course_sources = script_sources(Path(app.srcdir))
    records.prepare(app)


def confirm(app) -> None:
    path = Path(app.srcdir, "course_pkg/data/experiments/squares.json")
    stamp = {"finished": "2026-11-20T00:00:00+00:00"}
    write_record(app, json.loads(path.read_text()) | {"confirmed": stamp})


def change(app) -> None:
    Path(app.srcdir, "book/experiments/squares.py").write_text("def square(x): return 2\n")


def test_only_what_has_changed_is_said(app):
    assert records.note(app, "squares") == records.note(app, "no_such") == ""
    confirm(app)
    begin(app)
    assert records.note(app, "squares") == (
        "Recorded on 2026-11-01. Its code has changed since; one short row, repeated on "
        "2026-11-20, came out the same."
    )
    change(app)
    begin(app)
    said = "Recorded on 2026-11-01, before experiments/squares.py changed."
    assert records.note(app, "squares") == said


def test_the_line_stands_under_the_first_output_after_the_record_is_loaded_once(app):
    change(app)
    begin(app)
    document = new_document("page.md")
    section = nodes.section()
    document += section
    for line, output in ((3, False), (13, True), (17, True)):
        cell = nodes.container("", classes=["cell"])
        cell.line = line
        cell += nodes.container("", classes=["cell_output" if output else "cell_input"])
        section += cell
    records.add_notes(app, document)
    kinds = [node["classes"] for node in section.children]
    assert kinds == [["cell"], ["cell"], ["record-note"], ["cell"]]
    assert list(records.shown_records(PAGE).values()) == [7]


def test_a_page_is_read_again_when_its_line_has_changed(app):
    document = new_document("page.md")
    records.add_notes(app, document)
    app.env.docname = "book/plain"
    records.add_notes(app, document)
    assert records.outdated(app, app.env, set(), set(), set()) == []
    change(app)
    begin(app)
    assert records.outdated(app, app.env, set(), set(), set()) == ["book/page"]
