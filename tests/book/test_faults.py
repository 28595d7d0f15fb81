"""Pages that fail or write to stderr: named in the log, run again, and the others whole."""

import re
from pathlib import Path

import execution
import faults
import nbformat
import pytest
from jupyter_cache import get_cache

from tests.book import small
from tests.book.support import build, try_to_build

PAGES = {
    "index": "# Start\n\nNo code here.\n",
    "good": small.page("Good", 'print("all is", "well")'),
    "raising": small.page("Raising", 'print("before it", "failed")')
    + "\n```{code-cell} ipython3\n:tags: [remove-cell]\nfrom myst_nb import glue\n"
    'glue("n", {}["lost at sea"])\n```\n\nThe value {glue:text}`n`.\n\n'
    '```{code-cell} ipython3\nprint("never", "seen")\n```\n',
    "noisy": small.page(
        "Noisy",
        "import os, sys\nprint('in full')\nif not os.path.exists('quiet'):\n"
        "    print('a line that nobody', 'asked for', file=sys.stderr)",
    ),
    "late": small.page(  # what matplotlib says on a slow machine
        "Late",
        "import warnings\n"
        "warnings.warn('Creating legend with loc=\"best\" can be slow with large amounts of')",
    ),
    "dying": small.page("Dying", "print('last words')\nimport os\nos._exit(3)"),
    "broken": small.page("Broken", "x = = 1"),
    "strange": "# Strange\n\n```{raw} html\n<img src='https://example.org/a.png'>\n```\n",
}
LINES = {
    f"PAGE FAILED book/{name}"
    for name in (
        "raising: cell 2 (line 16): KeyError: 'lost at sea'",
        "dying: cell 1 (line 12): DeadKernelError: Kernel died",
        "broken: cell 1 (line 12): SyntaxError: invalid syntax (1234.py, line 1)",
    )
}
STRANGE = "PAGE WARNING book/strange: offline: ExtensionError: book/strange: the page would"


def lines(log: str) -> set[str]:
    """What the log says of pages, as the Makefile reads it; one line is cut to `STRANGE`."""
    found = re.findall(r"PAGE (?:FAILED|WARNING) .*?(?=\s*(?:\x1b|$))", log, re.MULTILINE)
    found = [STRANGE if line.startswith(STRANGE) else line for line in found]
    return {re.sub(r"\d+\.py", "1234.py", line) for line in found}


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    small.write(folder, PAGES)
    small.put_labs(folder)
    return folder


@pytest.fixture(scope="module")
def first(book) -> str:
    """What the first build says."""
    return build(book)


def html(book: Path, name: str) -> str:
    return (book / f"_build/html/book/{name}.html").read_text("utf8")


@pytest.mark.slow
def test_each_page_with_a_fault_has_one_line_and_no_other_page_has_one(first):
    """The page that would load a picture from elsewhere is named by the extension that saw it."""
    noisy = "PAGE WARNING book/noisy: cell 1 (line 12): stderr: a line that nobody asked for"
    assert lines(first) == LINES | {STRANGE, noisy}
    assert sorted(re.findall(r"book/(\w+): failed after", first)) == ["broken", "dying", "raising"]


@pytest.mark.slow
def test_a_failed_page_shows_what_it_printed_and_says_what_failed(book, first):
    page = html(book, "raising")
    assert "before it failed" in page and "never seen" not in page
    shown = page.split('class="page-failed')[1].split("</div>")[0]
    plain = re.sub(r"<[^>]+>", "", shown)
    assert "did not run" in plain and "cell 2 (line 16): KeyError" in plain
    report = (book / "_build/html/reports/book/raising.err.log").read_text("utf8")
    assert 'glue("n", {}["lost at sea"])' in report and "Traceback" in report
    assert "last words" in html(book, "dying") and "page-failed" in html(book, "dying")


@pytest.mark.slow
def test_the_other_pages_are_whole(book, first):
    assert "all is well" in html(book, "good") and "page-failed" not in html(book, "good")
    assert "a line that nobody asked for" in html(book, "noisy")
    assert "page-failed" not in html(book, "noisy")
    assert (book / "_build/html/search-pages.js").is_file()
    assert not (book / "_build/html/reports/book/good.err.log").exists()


@pytest.mark.slow
def test_a_page_that_ends_its_process_costs_no_other_page_its_labs(book, first):
    """It is the first that is tried in a process like the browser's, and ends that too."""
    good_is_read = re.search(r"reading sources\.\.\..*?book/good", first).start()
    assert first.index("book/dying: no cell runs in the browser") < good_is_read
    said = "Its code runs in Jupyter only: it ends the process that it runs in."
    assert said in html(book, "dying") and "lab-cells" not in html(book, "dying")
    assert "All cells can be run and edited here." in html(book, "good")
    assert "lab-cells" in html(book, "good")
    assert (book / "_build/html/_static/labs/package.js").is_file()


@pytest.mark.slow
def test_the_next_build_runs_the_pages_with_faults_again_and_only_those(book, first):
    """In between, the raising page is fixed, and the noisy one is quiet without any edit."""
    cache = get_cache(str(book / "_build/.jupyter_cache"))
    assert {Path(record.uri).stem for record in cache.list_cache_records()} == {"good", "late"}
    page = book / "book/raising.md"
    page.write_text(PAGES["raising"].replace('{}["lost at sea"]', "3"))
    (book / "book/quiet").touch()
    again = try_to_build(book, "-W")
    log = again.stdout + again.stderr
    assert again.returncode != 0  # a page that fails is an error with -W
    assert lines(log) == {line for line in LINES if "raising" not in line} | {STRANGE}
    executed = set(re.findall(r"book/(\w+): executed in", log))
    assert executed == {"raising", "noisy", "dying", "broken"}
    assert "page-failed" not in html(book, "raising") and "never seen" in html(book, "raising")
    assert "asked for" not in html(book, "noisy").split("<main")[1].split('class="cell_output')[1]
    assert not (book / "_build/html/reports/book/raising.err.log").exists()


def test_outputs_with_a_fault_from_an_older_cache_do_not_count(tmp_path):
    """A build that was stopped before it reported, or made by another version, left them there."""
    cell = nbformat.v4.new_code_cell("pass")
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="\n  \x1b[1mfirst\nno\n")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("a"), cell])
    (fault,) = faults.faults_of(notebook)
    assert (fault.kind, str(fault)) == (faults.WARNING, "cell 1: stderr: first")
    cell.metadata.tags = ["remove-stderr"]
    assert faults.faults_of(notebook) == []


def test_errors_come_before_warnings_and_expected_errors_do_not_count():
    cells = [nbformat.v4.new_code_cell("pass") for _ in range(3)]
    cells[0].outputs = [nbformat.v4.new_output("stream", name="stderr", text="noise")]
    for cell in cells[1:]:
        cell.outputs = [nbformat.v4.new_output("error", ename="E", evalue="why\nand more")]
    cells[1].metadata.tags = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"source_map": [4, 8, 15]})
    assert [str(fault) for fault in faults.faults_of(notebook)] == [
        "cell 3 (line 15): E: why",
        "cell 1 (line 4): stderr: noise",
    ]


@pytest.mark.slow
def test_a_cell_that_runs_out_of_time_has_an_error_of_its_own(tmp_path):
    cells = [nbformat.v4.new_code_cell(code) for code in ("1", "while True: pass")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    done = execution.run_page(notebook, str(tmp_path), 3, False)
    assert done.seconds > 3
    fault, _interrupted = faults.faults_of(done.notebook)
    assert str(fault).startswith("cell 2: CellTimeoutError: ")
