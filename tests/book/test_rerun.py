"""What the outputs of a page depend on: modules, followed through their imports, and data."""

from pathlib import Path

import pytest
import rerun

from course_pkg.common.fingerprints.reach import Sources
from tests.book import small
from tests.book.support import HEADER


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """The sources of the small book."""
    folder = tmp_path_factory.mktemp("sources")
    small.write(folder)
    return folder


def depends(book: Path, code: str) -> set[str]:
    found = rerun.dependencies(Sources(book), book / "book/index.md", code)
    return found.keys() - set(rerun.ALWAYS)


def test_what_a_page_uses_counts_and_what_it_only_imports_does_not(book):
    assert depends(book, "from course_pkg.one import ONE") == set()
    code = "from course_pkg.chain import value\nvalue()"
    assert depends(book, code) == {"course_pkg/chain.py", "course_pkg/one.py"}


def test_data_named_by_a_module_or_by_the_page_counts(book):
    words = "course_pkg/data/words.txt"
    assert words in depends(book, "from course_pkg.reader import read\nread()")
    assert words in depends(book, f"open({words!r})")
    assert words not in depends(book, "import course_pkg.one\ncourse_pkg.one.ONE")


def test_a_page_depends_on_the_record_that_it_names_and_on_no_other(tmp_path):
    folder = tmp_path / rerun.RECORDS
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text("{}")
    (folder.parent / "words.txt").write_text("words")
    (tmp_path / "course_pkg/reader.py").write_text('DATA = "data"\n')
    page = tmp_path / "book" / "page.md"

    def found(code: str) -> dict[str, str]:
        hashes = rerun.dependencies(Sources(tmp_path), page, code)
        return {Path(name).name: digest for name, digest in hashes.items()}

    loaded = found("load_experiment('one')")
    assert found("from course_pkg.reader import DATA\nDATA").keys() == {"reader.py", "words.txt"}
    (folder / "one.json").write_text('{"files": {"a": "b"}, "confirmed": {}, "programs": []}')
    assert found("load_experiment('one')") == loaded != {}  # no page computes with these
    (folder / "one.json").write_text('{"rows": [1]}')
    assert found("load_experiment('one')") != loaded and loaded.keys() == {"one.json"}


def test_the_lock_changes_the_fingerprint_of_every_page_with_code(book):
    page = book / "book/other.md"
    text = small.PAGES["other"]
    before = rerun.fingerprint(Sources(book), page, text)
    assert rerun.fingerprint(Sources(book), page, text) == before
    (book / "requirements.txt").write_text("torch==2\n")
    assert rerun.fingerprint(Sources(book), page, text) != before
    assert rerun.fingerprint(Sources(book), page, "# Text\n```python\nimport x\n```") is None


def test_a_cells_options_and_magics_are_not_code():
    text = (
        HEADER + "```{code-cell} ipython3\n---\ntags: [x]\n---\n%time 1\n:tags: [y]\na = 1\n```\n"
    )
    assert rerun.page_code(text).split() == ["a", "=", "1"]
