"""Cells in the reader's browser: pages from disk, without a network, in Chromium."""

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from lab_trial import in_book, in_browser, merged

from tests.book.support import ROOT
from tests.chromium import Tab, low_contrast
from tests.pages.labs.python_page import page_cells, runnable

pytestmark = [pytest.mark.browser, pytest.mark.slow]
EXECUTED = ROOT / "_build" / "jupyter_execute"
FEWEST = 230  # cells that run in the browser
GROWTH = 20 * 2**20  # bytes in 30 runs; each run fills and frees 5 MB
SITE_BYTES = 20 * 2**20  # that labs may add to the site
DONE = """number => {
  const bar = document.querySelectorAll('.lab-bar')[number];
  const said = bar.querySelector('.lab-status').textContent;
  return !bar.classList.contains('running') && said && !said.startsWith('starting');
}"""


def run(page, *codes: str) -> list[list[dict]]:
    cells = [{"id": at, "name": f"cell {at}", "code": code} for at, code in enumerate(codes)]
    results = page.evaluate(
        "([cells, which]) => runCells(cells, which)", [cells, [*range(len(codes))]]
    )
    return [results[str(at)]["outputs"] for at in range(len(codes))]


def press(page, number: int, button: str = "Run") -> str:
    """Press a button of a cell, wait, and return the cell's status."""
    bar = page.locator(".lab-bar").nth(number)
    bar.get_by_role("button", name=button).click()
    page.wait_for_function(DONE, arg=number, timeout=120_000)
    return bar.locator(".lab-status").inner_text()


def test_cells_show_in_the_browser_what_the_book_shows(python, labs):
    different = {}
    ran = 0
    for path in sorted(labs.glob("book/**/*.html")):
        cells = page_cells(path)
        which = runnable(cells)
        if not which:
            continue
        ran += len(which)
        name = path.relative_to(labs).with_suffix("")
        notebook = nbformat.read(EXECUTED / f"{name}.ipynb", as_version=4)
        results = python.evaluate("([cells, which]) => runCells(cells, which)", [cells, which])
        for index in which:
            wanted = merged(map(in_book, notebook.cells[index].outputs))
            got = merged(map(in_browser, results[str(index)]["outputs"]))
            if got != wanted:
                different[f"{name}, cell {index}"] = (wanted, got)
    assert different == {}
    assert ran >= FEWEST


def test_labs_add_little_to_the_site(labs):
    scripts = {path.name: path.stat().st_size for path in (labs / "_static/labs").iterdir()}
    pages = [path.stat().st_size for path in (labs / "book/exercises").iterdir()]
    assert set(scripts) == {"labs.js", "kit.js", "python.js", "package.js"} and len(pages) == 8
    assert sum(scripts.values()) + sum(pages) < SITE_BYTES


def test_nothing_is_loaded_before_the_first_click(browser, labs):
    tab = Tab(browser)
    asked = []
    tab.page.on("request", lambda request: asked.append(Path(urlsplit(request.url).path).name))
    page = tab.open(labs / "book/metrics/bleu.html")
    assert "labs.js" in asked and {"kit.js", "python.js", "package.js"}.isdisjoint(asked)
    assert press(page, 2) == "done"
    assert {"kit.js", "python.js", "package.js"} <= set(asked)
    assert tab.problems == []


def test_a_page_without_labs_loads_nothing_of_them(browser, labs):
    tab = Tab(browser)
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.open(labs / "book/adapters/lora-rank.html")
    assert not [url for url in asked if "/labs/" in url]
    assert "runs in Jupyter only" in tab.page.locator(".reading-time").inner_text()


def test_edit_run_reset(browser, labs):
    """With the keyboard alone."""
    tab = Tab(browser)
    page = tab.open(labs / "book/metrics/bleu.html")
    cell = page.locator(".cell:has(> .lab-bar)").filter(has_text="effective_order=effective")
    before = cell.locator(":scope > .cell_output").inner_text()
    cell.get_by_role("button", name="Edit").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".cm-editor.cm-focused")
    page.keyboard.press("Control+End")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")  # out of the loop
    page.keyboard.type("print('mine', 6 * 7)")
    page.keyboard.press("Shift+Enter")
    output = cell.locator(".lab-output")
    output.get_by_text("mine 42").wait_for()
    assert output.inner_text().startswith(before.strip())
    assert cell.locator(":scope > .cell_output:not(.lab-output)").is_hidden()
    page.keyboard.press("Escape")  # then Tab leaves the editor
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Reset"
    page.keyboard.press("Enter")
    assert cell.locator(":scope > .cell_output").inner_text() == before
    assert "mine" not in cell.locator(".cm-content").inner_text()
    assert tab.problems == []


def test_stop_ends_a_loop_and_keeps_the_names(browser, labs):
    """Also the page: it answers while the cell runs."""
    tab = Tab(browser)
    page = tab.open(labs / "book/metrics/bleu.html")
    assert press(page, 2) == "done"
    bar = page.locator(".lab-bar").nth(2)
    bar.get_by_role("button", name="Edit").click()
    page.wait_for_selector(".cm-editor.cm-focused")
    page.keyboard.press("Control+a")
    page.keyboard.type("while True: pass")
    bar.get_by_role("button", name="Run").click()
    bar.get_by_text("running…").wait_for()
    assert page.evaluate("1 + 1") == 2
    bar.get_by_role("button", name="Stop").click()
    page.wait_for_function(DONE, arg=2)
    assert bar.locator(".lab-status").inner_text() == "stopped"
    # It doesn't run again because another cell follows it.
    press(page, 3)
    assert "Without cell 4, which you stopped." in page.locator(".lab-note").inner_text()
    bar.get_by_role("button", name="Reset").click()
    assert page.evaluate("document.activeElement.textContent") == "Run"
    assert press(page, 3) == "done"  # it uses what cells before it define
    assert tab.problems == []


def test_a_loop_that_another_cell_needs_is_named_and_can_be_stopped(browser, labs):
    tab = Tab(browser)
    page = tab.open(labs / "book/metrics/bleu.html")
    loop, later = page.locator(".lab-bar").nth(2), page.locator(".lab-bar").nth(3)
    loop.get_by_role("button", name="Edit").click()
    page.wait_for_selector(".cm-editor.cm-focused")
    page.keyboard.press("Control+a")
    page.keyboard.type("while True: pass")
    later.get_by_role("button", name="Run").click()
    later.get_by_text("running cell 4 first…").wait_for(timeout=60_000)
    later.get_by_role("button", name="Stop").click()
    page.wait_for_function(DONE, arg=3)
    press(page, 3)
    assert "which you stopped" in page.locator(".lab-note").inner_text()
    assert tab.problems == []


def test_formulas_of_an_output_are_set(browser, labs):
    tab = Tab(browser)
    page = tab.open(labs / "book/metrics/bleu.html")
    cell = page.locator(".cell:not(:has(details)):has(.lab-bar):has(.text_latex)").first
    cell.get_by_role("button", name="Run").click()
    shown = cell.locator(".lab-output .text_latex").first
    shown.locator("mjx-container[display=true]").wait_for(timeout=60_000)
    assert "$" not in shown.inner_text() and "displaystyle" not in shown.inner_text()


def renderer_bytes() -> int:
    """The memory of the browser's processes that show pages, with their workers."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "--type=renderer" in " ".join(child.cmdline()):
                total += child.memory_info().rss
    assert total
    return total


@pytest.mark.exhaustive
def test_fifty_runs_take_no_more_memory(python):
    """Of Python's objects, and of the processes: the first ten runs fill what is kept for reuse."""
    measure = "import gc\ngc.collect()\nlen(gc.get_objects())"
    fill = "data = [str(n) * 50 for n in range(20_000)]\nprint(data[-1][:5])"
    objects = []
    memory = []
    for _ in range(50):
        *_, outputs = run(python, fill, "del data", measure)
        objects.append(int(outputs[0]["data"]["text/plain"]))
        memory.append(renderer_bytes())
    assert max(objects[10:]) - min(objects[10:]) < 500
    assert max(memory[40:]) - max(memory[10:20]) < GROWTH


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_cells_fit_the_page_and_can_be_read(browser, labs, width, scheme):
    page = Tab(browser, width=width, scheme=scheme).open(labs / "book/metrics/bleu.html")
    for number in (2, 3):
        page.locator(".lab-bar").nth(number).get_by_role("button", name="Edit").click()
        page.wait_for_selector(".cm-editor.cm-focused")
        assert press(page, number) == "done"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert low_contrast(page, ".lab-bar, .lab-output, .cm-editor, .lab-reason") == []
