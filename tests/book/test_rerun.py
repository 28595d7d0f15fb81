"""What the outputs of a page depend on: modules, followed through their imports, and data."""

from pathlib import Path

import pytest
import rerun

from tests.book import small
from tests.book.support import HEADER


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """The sources of the small book."""
    folder = tmp_path_factory.mktemp("sources")
    small.write(folder)
    return folder


def depends(book: Path, code: str) -> set[str]:
    files = rerun.dependencies(book, book / "book/index.md", code)
    return {path.relative_to(book).as_posix() for path in files} - set(rerun.ALWAYS)


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import torch", set()),
        ("import course_pkg.two", {"__init__", "two"}),
        ("from course_pkg import two", {"__init__", "two"}),
        ("def f():\n    from course_pkg.one import ONE", {"__init__", "one"}),
        ("import importlib\nimportlib.import_module('course_pkg.two')", {"__init__", "two"}),
        ("from course_pkg.chain import value", {"__init__", "chain", "one"}),
    ],
)
def test_imports_are_followed(book, code, modules):
    assert depends(book, code) == {f"course_pkg/{name}.py" for name in modules}


def test_data_named_by_a_module_or_by_the_page_counts(book):
    assert "course_pkg/data/words.txt" in depends(book, "import course_pkg.reader")
    assert "course_pkg/data/words.txt" in depends(book, "open('course_pkg/data/words.txt')")
    assert "course_pkg/data/words.txt" not in depends(book, "import course_pkg.one")


def test_a_page_depends_on_the_record_that_it_names_and_on_no_other(tmp_path):
    folder = tmp_path / rerun.RECORDS
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text("{}")
    (folder.parent / "words.txt").write_text("words")
    (tmp_path / "course_pkg/reader.py").write_text('DATA = "data"\n')

    def found(code: str) -> set[str]:
        page = tmp_path / "book" / "page.md"
        return {path.name for path in rerun.dependencies(tmp_path, page, code)}

    assert found("load_experiment('one')") == {"one.json"}
    assert found("from course_pkg import reader") == {"reader.py", "words.txt"}


def test_the_lock_changes_the_fingerprint_of_every_page_with_code(book):
    page = book / "book/other.md"
    text = small.PAGES["other"]
    before = rerun.fingerprint(book, page, text)
    assert rerun.fingerprint(book, page, text) == before
    (book / "requirements.txt").write_text("torch==2\n")
    assert rerun.fingerprint(book, page, text) != before
    assert rerun.fingerprint(book, page, "# Text\n```python\nimport x\n```") is None


def test_a_cells_options_and_magics_are_not_code():
    text = (
        HEADER + "```{code-cell} ipython3\n---\ntags: [x]\n---\n%time 1\n:tags: [y]\na = 1\n```\n"
    )
    assert rerun.page_code(text).split() == ["a", "=", "1"]
