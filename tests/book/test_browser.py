"""Pages open from disk in Chromium with no network: no error, mathematics set, nothing too wide."""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDTHS = (1280, 390)


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield program
        program.close()


class Tab:
    """A page of a browser that writes down what goes wrong."""

    def __init__(self, browser, width=1280, scheme="light"):
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, offline=True, color_scheme=scheme)
        self.page = self.context.new_page()
        self.problems = []
        self.page.on("console", lambda m: m.type == "error" and self.problems.append(m.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda request: self.problems.append(request.url))
        self.page.on("request", self._local)

    def _local(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"asks for {request.url}")

    def open(self, path: Path, query: str = ""):
        self.page.goto(f"file://{path.resolve()}{query}")
        self.page.wait_for_load_state("load")
        self.page.evaluate("() => window.MathJax?.startup?.promise")
        return self.page


def pages(site):
    """All pages but the one at the top, which only leads on to another."""
    found = set(site.rglob("*.html")) - set(site.glob("_static/**/*")) - {site / "index.html"}
    return sorted(found)


def check(browser, path, width, scheme):
    tab = Tab(browser, width, scheme)
    page = tab.open(path)
    problems = tab.problems
    if page.evaluate("document.documentElement.scrollWidth") > width:
        problems.append(f"wider than {width} pixels")
    unset = "[...document.querySelectorAll('.math')].filter(e => !e.querySelector('mjx-container'))"
    problems += page.evaluate(f"{unset}.map(e => 'not typeset: ' + e.textContent)")
    problems += page.evaluate(
        "[...document.querySelectorAll('mjx-merror')].map(e => 'TeX: ' + e.textContent)"
    )
    problems += page.evaluate(
        "[...document.querySelectorAll('main img')].filter(e => !e.alt)"
        ".map(e => 'no alt: ' + e.src)"
    )
    problems += page.evaluate(
        "[...document.images].filter(e => e.complete && !e.naturalWidth).map(e => 'no ' + e.src)"
    )
    tab.context.close()
    return problems


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_opens_without_a_fault(browser, site, width):
    scheme = "dark" if width == WIDTHS[1] else "light"
    found = {path.name: check(browser, path, width, scheme) for path in pages(site)}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_search_finds_a_word_without_a_server(browser, site):
    tab = Tab(browser)
    page = tab.open(site / "search.html", "?q=perplexity")
    page.wait_for_selector("#search-results li a", timeout=10_000)
    assert tab.problems == []


def test_dark_and_light_can_be_chosen(browser, site):
    page = Tab(browser).open(site / "book" / "index.html")
    colours = []
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]


def test_a_quiz_answers_and_sets_its_mathematics(browser, small_book):
    tab = Tab(browser)
    page = tab.open(small_book / "_build/html/book/sample.html")
    page.wait_for_selector(".Quiz mjx-container", timeout=5_000)
    page.locator(".MCButton", has_text="2").first.click()
    page.wait_for_selector(".Feedback:has-text('Yes.')", timeout=2_000)
    assert tab.problems == []


def test_the_start_page_leads_to_the_book(browser, site):
    page = Tab(browser).page
    page.goto(f"file://{(site / 'index.html').resolve()}")
    page.wait_for_url("**/book/index.html", timeout=10_000)
