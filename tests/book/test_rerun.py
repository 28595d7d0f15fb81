"""A page runs again when what its outputs rest on has changed, and only then."""

import re
from pathlib import Path

import pytest
import rerun
import yaml

from .support import EXTENSIONS, HEADER, build

PAGES = {
    "index": "# Start\n",
    "direct": HEADER + "# Direct\n\n```{code-cell} ipython3\nfrom course_pkg.one import ONE\n"
    'print("one is", ONE)\n```\n',
    "transitive": HEADER + "# Transitive\n\n```{code-cell} ipython3\n"
    'from course_pkg import chain\nprint("chain is", chain.value())\n```\n',
    "other": HEADER + "# Other\n\n```{code-cell} ipython3\nimport course_pkg.two\n"
    'print("two is", course_pkg.two.TWO)\n```\n',
    "data": HEADER + "# Data\n\n```{code-cell} ipython3\nfrom course_pkg.reader import read\n"
    'print("data is", read())\n```\n',
}
PACKAGE = {
    "__init__": "",
    "one": "ONE = 1\n",
    "two": "TWO = 2\n",
    "chain": "def value():\n    from .one import ONE\n    return 10 * ONE\n",
    "reader": "from pathlib import Path\n\ndef read():\n"
    '    return (Path(__file__).parent / "data" / "words.txt").read_text()\n',
}


@pytest.fixture
def book(tmp_path) -> Path:
    """A throw-away book of five pages and a package of five modules; not yet built."""
    for name, text in PAGES.items():
        path = tmp_path / "book" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name, text in PACKAGE.items():
        path = tmp_path / "course_pkg" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "course_pkg/data").mkdir()
    (tmp_path / "course_pkg/data/words.txt").write_text("first")
    (tmp_path / "requirements.txt").write_text("torch==1\n")
    config = {
        "title": "t",
        "only_build_toc_files": True,
        "execute": {"execute_notebooks": "cache"},
        "sphinx": {"local_extensions": {"rerun": str(EXTENSIONS)}},
    }
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config))
    chapters = [{"file": f"book/{name}"} for name in PAGES if name != "index"]
    toc = {"format": "jb-book", "root": "book/index", "chapters": chapters}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc))
    return tmp_path


def executed(log: str) -> set[str]:
    """Names of the pages that a build ran."""
    return set(re.findall(r"(\w+)\.md: Executing notebook", log))


def read(log: str) -> set[str]:
    """Names of the pages that a build read at all."""
    return set(re.findall(r"reading sources\.\.\..*?book/(\w+)", log))


def shown(book: Path, page: str) -> str:
    return (book / f"_build/html/book/{page}.html").read_text()


@pytest.mark.slow
def test_an_edit_runs_the_pages_concerned_and_no_others(book):
    assert executed(build(book)) == {"direct", "transitive", "other", "data"}
    assert "one is 1" in shown(book, "direct")

    log = build(book)
    assert executed(log) == read(log) == set()

    (book / "course_pkg/one.py").write_text("ONE = 7\n")
    log = build(book)
    assert executed(log) == read(log) == {"direct", "transitive"}
    assert "one is 7" in shown(book, "direct")
    assert "chain is 70" in shown(book, "transitive")
    assert "two is 2" in shown(book, "other")

    (book / "course_pkg/data/words.txt").write_text("second")
    assert executed(build(book)) == {"data"}
    assert "data is second" in shown(book, "data")

    (book / "course_pkg/one.py").write_text("ONE = 1\n")  # known from before: read, not run
    log = build(book)
    assert (executed(log), read(log)) == (set(), {"direct", "transitive"})
    assert "one is 1" in shown(book, "direct")

    (book / "requirements.txt").write_text("torch==2\n")
    assert executed(build(book)) == {"direct", "transitive", "other", "data"}


@pytest.mark.slow
def test_a_second_build_with_every_extension_reads_runs_and_writes_no_page(small_book):
    build(small_book)
    log = build(small_book)
    assert executed(log) == read(log) == set()
    assert not re.search(r"writing output.*book/", log)


def depends(book: Path, code: str) -> set[str]:
    files = rerun.dependencies(book, book / "book/index.md", code)
    return {path.relative_to(book).as_posix() for path in files} - {"requirements.txt"}


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


def test_a_cells_options_and_magics_are_not_code():
    text = (
        HEADER + "```{code-cell} ipython3\n---\ntags: [x]\n---\n%time 1\n:tags: [y]\na = 1\n```\n"
    )
    assert rerun.page_code(text).split() == ["a", "=", "1"]


def test_a_page_without_code_has_no_fingerprint(book):
    assert (
        rerun.fingerprint(book, book / "book/index.md", "# Text\n```python\nimport x\n```") is None
    )
