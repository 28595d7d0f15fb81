"""What a page takes is measured when it runs, shown on it, and within the budget."""

import json
import re

import costs
import nbformat
import pytest
import rerun

from .support import ROOT, build

CORES, GFLOPS = 2, 100  # what the budgets are for: a laptop's float32 speed, on so many cores
PAGE, BOOK = 60, 25 * 60  # seconds
OWN = {"book/adapters/lora": 4 * 60}  # pages with a budget of their own
SITE = ROOT / "_build" / "html"


def over_budget(page: str, cost: dict) -> list[str]:
    """Complaints about one page.

    Time that it stood waiting for a processor is not its own, so a build on a loaded machine is
    judged by what the page would have taken there alone; on a machine that was slower than a
    laptop, by what it would have taken on one. Processor seconds bound the rest: a page may not
    need more cores than a laptop has.
    """
    budget = OWN.get(page, PAGE)
    alone, used = on_a_laptop(cost)
    said = (
        f"{page}: {cost['seconds']:.0f} s when it was built ({cost['waited_seconds']:.0f} s of "
        f"them waiting for a processor, {cost['cpu_seconds']:.0f} CPU seconds, {cost['cores']} "
        f"cores, {cost['gflops']:.0f} GFLOPS); the budget is {budget} s on {CORES} cores of "
        f"{GFLOPS} GFLOPS. If other programs ran, build it again without them; else make the "
        "page's work smaller, or a recorded experiment"
    )
    return [said] if alone > budget or used > CORES * budget else []


def on_a_laptop(cost: dict) -> tuple[float, float]:
    """Seconds, and seconds of processors, on a machine of at least a laptop's speed."""
    speed = min(1.0, cost["gflops"] / GFLOPS)
    return speed * (cost["seconds"] - cost["waited_seconds"]), speed * cost["cpu_seconds"]


def spent(**changes) -> dict:
    usual = {"seconds": 50, "waited_seconds": 0, "cpu_seconds": 80, "cores": 2, "gflops": 110}
    return usual | changes


@pytest.mark.parametrize(
    ("page", "cost", "over"),
    [
        ("book/setup", spent(), False),
        ("book/setup", spent(seconds=61), True),
        ("book/setup", spent(seconds=100, waited_seconds=45), False),  # a loaded machine
        ("book/setup", spent(seconds=40, cpu_seconds=130, cores=8), True),  # more than two cores
        ("book/setup", spent(seconds=80, cpu_seconds=140, gflops=70), False),  # a slow machine
        ("book/setup", spent(seconds=90, gflops=70), True),
        ("book/setup", spent(seconds=40, cpu_seconds=190, gflops=70), True),
        ("book/setup", spent(seconds=61, gflops=300), True),  # a fast one: no more time for that
        ("book/adapters/lora", spent(seconds=230, cpu_seconds=400), False),
        ("book/adapters/lora", spent(seconds=250, cpu_seconds=400), True),
    ],
)
def test_the_budget_judges_what_a_page_took_itself(page, cost, over):
    assert bool(over_budget(page, cost)) is over


@pytest.fixture(scope="module")
def record():
    """The figures of the built book."""
    if not (SITE / costs.RECORD).is_file():
        pytest.skip("the book is not built here (make book)")
    return json.loads((SITE / costs.RECORD).read_text())


def test_every_page_keeps_its_budget(record):
    assert [line for page, cost in record.items() for line in over_budget(page, cost)] == []


def test_the_book_keeps_its_budget(record):
    alone = sum(on_a_laptop(cost)[0] for cost in record.values())
    assert alone <= BOOK, f"the pages take {alone / 60:.0f} minutes in all, {BOOK / 60:.0f} allowed"


def test_every_page_that_runs_shows_what_it_took(site):
    root = site.parents[1]
    figures = json.loads((site / costs.RECORD).read_text())
    assert figures
    for source in (root / "book").rglob("*.md"):
        page = source.relative_to(root).with_suffix("")
        html = site / f"{page}.html"
        if not html.is_file():  # written after the site was built
            continue
        runs = bool(rerun.page_code(source.read_text("utf8")))
        assert (page.as_posix() in figures) is runs
        line = re.search(r'</h1>\s*<p class="page-cost">(.*?)</p>', html.read_text(), re.DOTALL)
        assert bool(line) is runs, html
        if runs:
            assert costs.in_words(figures[page.as_posix()]) in line[1]


@pytest.mark.slow
def test_a_page_from_the_cache_shows_the_run_that_made_it(small_book):
    """A build of everything anew, with nothing to run, changes no figure."""
    record = small_book / "_build/html" / costs.RECORD
    before = json.loads(record.read_text())
    assert 0 < before["book/sample"]["seconds"] < 600
    assert 5e7 < before["book/sample"]["bytes"] < 1e10
    assert 1 < before["book/sample"]["gflops"] < 1e5
    page = small_book / "book/sample.md"
    page.write_text(page.read_text() + "\nOne more sentence.\n")
    log = build(small_book)
    assert "Executing notebook" not in log and "Using cached notebook" in log
    assert json.loads(record.read_text()) == before


def test_the_measuring_cell_is_not_in_the_download(small_book):
    executed = nbformat.read(small_book / "_build/jupyter_execute/book/sample.ipynb", 4)
    offered = nbformat.read(small_book / "_build/html/_sources/book/sample.ipynb", 4)
    assert costs.cost_of(executed) is not None and costs.cost_of(offered) is None
    assert not any("_page_cost" in cell.source for cell in offered.cells)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"seconds": 8.4, "bytes": 318e6}, "8 s, 318 MB of memory, 2 CPU cores, no GPU"),
        ({"seconds": 160, "bytes": 2.34e9}, "2 min 40 s, 2.3 GB of memory, 2 CPU cores, no GPU"),
        ({"cores": 1, "gpu": "an H200", "gpu_bytes": 3e9},
         "1 s, 1 MB of memory, 1 CPU core, 3.0 GB of an H200"),
    ],
)  # fmt: skip
def test_the_figures_in_words(cost, words):
    whole = {"seconds": 1, "bytes": 1e6, "cores": 2, "gpu": "", "gpu_bytes": 0} | cost
    assert costs.in_words(whole) == words
