"""The book's extensions, on a small book that is built once and then edited."""

import json
import re
from pathlib import Path

import costs
import faults
import figures
import nbclient
import nbformat
import pytest
import searching
import translatable
from babel.messages.pofile import read_po

from tests.book import small
from tests.book.support import ROOT, build, run, try_to_build
from tests.book.visits import WIDTHS, problems
from tests.chromium import Tab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The small book, built."""
    folder = tmp_path_factory.mktemp("small")
    small.write(folder)
    assert executed(build(folder, "-W")) == {"sample", "direct", "chained", "data", "other"}
    return folder


def executed(log: str) -> set[str]:
    """Names of the pages that a build ran."""
    return set(re.findall(r"book/(\w+): executed in", log))


def read(log: str) -> set[str]:
    """Names of the pages that a build read at all."""
    return set(re.findall(r"reading sources\.\.\..*?book/(\w+)", log))


def html(folder: Path, page: str) -> str:
    return (folder / f"_build/html/book/{page}.html").read_text("utf8")


def download(folder: Path) -> nbformat.NotebookNode:
    """The notebook that the sample page offers."""
    return nbformat.read(folder / "_build/html/_sources/book/sample.ipynb", 4)


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return "".join(output.get("text", "") for output in outputs)


# ---------------------------------------------------------------- pages, links, descriptions


@pytest.mark.browser
def test_pages_open_without_a_fault_and_a_quiz_answers(browser, folder):
    site = folder / "_build/html/book"
    assert problems(browser, site / "sample.html", site / "api.html") == {}
    tab = Tab(browser)
    page = tab.open(site / "sample.html")
    page.wait_for_selector(".Quiz mjx-container")
    page.locator(".MCButton", has_text="2").first.click()
    page.wait_for_selector(".Feedback:has-text('Yes.')")
    assert tab.problems == []


@pytest.mark.browser
def test_a_quiz_waits_for_mathematics_that_loads_late(browser, folder):
    """The quiz's script looks for MathJax half a second after it runs."""
    tab = Tab(browser)
    errors = []
    tab.page.on("pageerror", lambda error: errors.append(str(error)))
    tab.page.route("**/mathjax/**", lambda route: route.abort())
    with tab.page.expect_console_message(lambda message: "After sleep" in message.text):
        tab.open(folder / "_build/html/book/sample.html")
    tab.page.evaluate("1")  # by now, an error has been handed over
    assert errors == []


@pytest.mark.browser
def test_download_notebook_saves_the_file_from_disk(browser, folder, tmp_path):
    tab = Tab(browser, WIDTHS[-1])
    page = tab.open(folder / "_build/html/book/sample.html")
    page.locator(".dropdown-download-buttons > button").click()
    with page.expect_download() as waiting:
        page.locator("a.btn-download-notebook-button").click()
    assert waiting.value.suggested_filename == "sample.ipynb"
    waiting.value.save_as(tmp_path / "sample.ipynb")
    assert nbformat.read(tmp_path / "sample.ipynb", 4) == download(folder)
    assert page.url.endswith("/sample.html") and tab.problems == []


def test_pictures_are_part_of_the_page_in_its_ink(folder):
    """A drawing, a plot and each frame of a slider; the notebook to download has them too."""
    sample = html(folder, "sample")
    assert "<img" not in sample.split("<main")[1].split("</main>")[0]
    tags = re.findall(r'<svg role="img" aria-label="([^"]*)"', sample)
    assert tags == ["A line that rises.", "Boxes and arrows."]
    frames = re.findall(r'class="frame[^>]*aria-label="([^"]*)"[^>]*>\s*<svg', sample)
    assert frames == ["A line to n. n: 1", "A line to n. n: 2"]
    drawings = re.findall(r"<svg\b.*?</svg>", sample, re.DOTALL)
    assert all("currentColor" in svg and not figures.INK.search(svg) for svg in drawings)
    outputs = [output for cell in download(folder).cells for output in cell.get("outputs", ())]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    assert "image/svg+xml" in kinds
    shown = "".join(str(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert shown.count("<svg") == 2
    assert any("chapters.svg" in cell.get("attachments", {}) for cell in download(folder).cells)


def test_the_list_of_contents_links_every_page_with_its_time(folder):
    page = html(folder, "sample")
    head = re.search(r'</h1>\s*<p class="reading-time">(.*?)</p>', page)
    assert re.fullmatch(r"Reading time: about \d+ minutes?\.", head[1])
    cost = page.index('<p class="page-cost">Measured when')
    assert cost > page.index("A drawing.")  # at the foot
    listed = html(folder, "index").split('class="course-contents')[1].split("</article>")[0]
    pages = set(re.findall(r'href="(\w+)\.html"><span class="std std-doc">', listed))
    assert pages == set(small.PAGES) - {"index"}
    assert re.search(r"A sample of everything</span></a> <em>\d min</em>", listed)


def test_labels_number_a_page_lead_to_it_and_stay_out_of_its_notebook_and_texts(folder):
    sample = html(folder, "sample")
    start = html(folder, "index")
    assert '<h1><span class="section-number">2.1. </span>A sample of everything' in sample
    assert '<h1><span class="section-number">' not in html(folder, "direct")
    for name in ("doc1-2-1", "doc1-formula-1"):
        assert f'id="{name}"' in sample and f'href="sample.html#{name}"' in start
    navigation = html(folder, "direct").split('<nav class="bd-links')[1].split("</nav>")[0]
    assert '<a class="reference internal" href="sample.html">2.1. A sample' in navigation
    assert "2.1 <a" in start and "None." in start  # the list of contents; what was left out
    cells = "".join(cell.source for cell in download(folder).cells)
    assert "# A sample of everything" in cells and "doc1-" not in cells


def test_search_has_each_section_term_and_object_with_its_text(folder):
    script = (folder / "_build/html" / searching.SCRIPT).read_text("utf8")
    pages = json.loads(script.removeprefix(searching.START).removesuffix(searching.END))
    parts = {page["url"]: {part[0]: part[1:] for part in page["parts"]} for page in pages}
    sample = parts["book/sample.html"]
    title, text, code = sample[""]
    assert title == "A sample of everything" and "the answer 42.00 of the word hello" in text
    assert "Reading time" not in text and "A note, with" in text and "def twice" in code
    assert "Inline a^2 + b^2 = c^2, and" in text
    assert "course_pkg.sums" in code and "plt.plot" not in code  # the cell that draws is folded
    assert sample["term-perplexity"] == ["perplexity", "A measure of surprise.", ""]
    title, text, _ = parts["book/api.html"]["course_pkg.sums.Total"]
    assert title == "Total" and "A sum with its parts." in text and "The sum over" not in text


def test_descriptions_lead_to_the_pages_that_use_a_module_and_to_its_source(folder):
    described = html(folder, "api").split('id="sums"')[1].split('id="course_pkg.sums.joined"')[0]
    assert re.search(r'On <a [^>]*href="sample.html"', described)
    assert re.search(r'href="\.\./_modules/course_pkg/sums\.html#[^"]+"', described)


def test_google_docstrings_become_lists_and_blocks(folder):
    plain = re.sub(r"</?(span|strong)[^>]*>", "", html(folder, "api"))
    assert re.search(r"The numbers, \(n,\) of them", plain)
    assert re.search(r"A factor on the <code[^>]*>sum_of_parts</code>", plain)
    assert re.search(r"Raises.*?ValueError.*?There are no parts", plain, re.DOTALL)
    assert re.search(r"class=\"doctest highlight.*?Total\(\(1,.*?2\)\)\.mean", plain, re.DOTALL)


# ---------------------------------------------------------------- the notebook to download


def test_the_page_offers_a_plain_notebook_with_its_values(folder):
    assert 'href="../_sources/book/sample.ipynb"' in html(folder, "sample")
    notebook = download(folder)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "the answer 42.00 of the word hello" in text
    assert "def twice(x):" in text and "> **Note**" in text and "See eq-sample" in text
    assert "(eq-sample)" not in text
    assert "{" not in text.replace(r"\mathcal{", "").split("$$")[0] and "(here)=" not in text
    assert "total 1.5" in printed(notebook)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    assert notebook.metadata.kernelspec == kernel


def test_the_notebook_runs_in_an_empty_folder(folder, tmp_path, monkeypatch):
    notebook = download(folder)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    monkeypatch.setenv("PYTHONPATH", str(folder))  # as an editable install would find the package
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    assert "total 1.5" in printed(notebook)
    assert list(tmp_path.iterdir()) == []


def test_the_cost_is_measured_in_a_cell_that_the_download_lacks(folder):
    notebook = nbformat.read(folder / "_build/jupyter_execute/book/sample.ipynb", 4)
    cost = costs.cost_of(notebook)
    assert 0 < cost["cpu_seconds"] < 600 and 5e7 < cost["bytes"] < 1e10 and cost["gflops"] > 0
    assert costs.cost_of(download(folder)) is None
    assert not any("_page_cost" in cell.source for cell in download(folder).cells)


# ---------------------------------------------------------------- translation, edits


def test_every_page_is_extracted_for_translation_and_none_is_run(folder):
    done = run(folder, str(ROOT / "tools" / "translatable.py"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert not executed(done.stdout + done.stderr)
    template = folder / "_build/gettext/book/sample.pot"
    with template.open("rb") as file:
        messages = {message.id for message in read_po(file)}
    assert "A sample of everything" in messages
    assert any("and the answer {glue:text}`answer:.2f`" in message for message in messages)
    assert not any(
        re.search("doc1-|_page_cost|Measured when|Reading time", text) for text in messages
    )

    template.write_text(template.read_text().replace("A sample of everything", "Another title"))
    (folder / "_build/gettext/book/api.pot").unlink()
    lacking = [line.split(":")[0] for line in translatable.problems(folder)]
    assert lacking == ["book/sample", "book/api"]


def test_a_new_module_is_listed_and_after_an_interrupted_build_every_page_is_whole(folder):
    (folder / "course_pkg/three.py").write_text('"""Three, a new module."""\n')
    whole = html(folder, "direct")
    (folder / "_build/html/book/direct.html").write_text(whole[:100])
    (folder / "_build/html" / faults.FINISHED).unlink()
    log = build(folder, "-W")
    assert "api" in read(log) and not executed(log)
    assert "Three, a new module." in html(folder, "api")
    assert html(folder, "direct").endswith(whole[-100:])
    assert (folder / "_build/html" / faults.FINISHED).is_file()


def test_an_edit_runs_the_pages_concerned_and_no_others(folder):
    """Four builds: nothing; code, data and prose; code as before, a page without code; an error.

    The last one has labs, which change every page and run none.
    """
    log = build(folder, "-W")
    assert executed(log) == read(log) == set()
    assert not re.search(r"writing output.*book/", log)

    record = folder / "_build/html" / costs.RECORD
    before = json.loads(record.read_text())
    (folder / "course_pkg/one.py").write_text("ONE = 7\n")
    (folder / "course_pkg/data/words.txt").write_text("second")
    other = folder / "book/other.md"
    other.write_text(small.PAGES["other"] + "\nOne more sentence.\n")
    log = build(folder, "-W")
    assert executed(log) == {"direct", "chained", "data"}
    # api shows docstrings; index lists the pages and what each is for
    assert read(log) == {"direct", "chained", "data", "other", "api", "index"}
    assert "one is 7" in html(folder, "direct")
    assert "chain is 70" in html(folder, "chained")
    assert "data is second" in html(folder, "data")
    assert "two is 2" in html(folder, "other") and "One more sentence." in html(folder, "other")
    # A page from the cache shows what the run that made its outputs took.
    assert json.loads(record.read_text())["book/other"] == before["book/other"]

    (folder / "course_pkg/one.py").write_text("ONE = 1\n")  # its outputs are still in the cache
    (folder / "book/data.md").write_text("# Data\n\nNothing runs here any more.\n")
    log = build(folder, "-W")
    assert (executed(log), read(log)) == (set(), {"direct", "chained", "api", "data", "index"})
    assert "one is 1" in html(folder, "direct")
    assert "Measured when" not in html(folder, "data")
    assert "book/data" not in json.loads(record.read_text())

    other.write_text(small.page("Other", 'raise KeyError("lost at sea")'))
    said = "Its code runs in Jupyter only: it needs course_pkg."  # only that of the course is there
    assert "Its code runs" not in html(folder, "direct")
    small.put_labs(folder)
    failed = try_to_build(folder, "-W")
    assert failed.returncode != 0
    log = failed.stdout + failed.stderr
    assert (executed(log), read(log)) == ({"other"}, set(small.PAGES))
    assert said in html(folder, "direct")
    report = folder / "_build/html/reports/book/other.err.log"
    assert "PAGE FAILED book/other: cell 1 (line 12): KeyError" in failed.stderr
    assert 'raise KeyError("lost at sea")' in report.read_text()
