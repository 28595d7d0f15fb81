"""Pages open from disk in Chromium with no network: no error, mathematics set, nothing too wide."""

import re
from pathlib import Path

import pytest
import yaml

from tests.chromium import Tab, low_contrast

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WIDTHS = (1280, 390)


def pages(site):
    """All pages but the one at the top, which only leads on to another; of sources, three."""
    found = set(site.rglob("*.html")) - set(site.glob("_static/**/*")) - {site / "index.html"}
    sources = sorted(site.glob("_modules/**/*.html"))
    return sorted(found - set(sources[3:]))


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


def test_search_finds_a_word_and_shows_the_page_without_a_server(browser, site):
    tab = Tab(browser)
    page = tab.open(site / "search.html", "?q=perplexity")
    results = page.locator("#search-results li a")
    results.first.wait_for()
    target = page.evaluate("document.querySelector('#search-results li a').href")
    results.first.click()
    page.wait_for_url(lambda url: url.split("#")[0].split("?")[0] == target.split("#")[0])
    assert "perplexity" in page.locator("main").inner_text().lower()
    assert tab.problems == []


def test_the_search_field_of_a_page_leads_to_the_results(browser, site):
    tab = Tab(browser)
    page = tab.open(site / "book/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("perplexity")
    page.keyboard.press("Enter")
    page.locator("#search-results li a").first.wait_for()
    assert tab.problems == []


def in_order(site):
    """The pages in the order of the table of contents, which the builder wrote into the site."""
    toc = yaml.safe_load((site.parents[1] / "_toc.yml").read_text())
    names = [toc["root"], *re.findall(r"'file': '([^']+)'", str(toc))]
    return [site / f"{name}.html" for name in names]


def test_next_leads_through_every_page_and_previous_back(browser, site):
    expected = in_order(site)
    tab = Tab(browser)
    for direction, order in (("right-next", expected), ("left-prev", expected[::-1])):
        page = tab.open(order[0])
        for path in order[1:]:
            page.locator(f".prev-next-area a.{direction}").click()
            page.wait_for_url(f"**/{path.name}")
            assert Path(page.url.removeprefix("file://")) == path.resolve()
        assert page.locator(f".prev-next-area a.{direction}").count() == 0
    assert tab.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_follows_the_system_and_its_button(browser, site, scheme):
    page = Tab(browser, scheme=scheme).open(site / "book" / "index.html")
    body = "getComputedStyle(document.body).backgroundColor"
    bright = f"{body}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) > 384"
    assert page.evaluate(bright) is (scheme == "light")
    seen = set()
    for _ in range(3):  # auto, light, dark
        page.locator("button.theme-switch-button:visible").first.click()
        seen.add(page.evaluate(body))
    assert len(seen) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser, site, scheme):
    """WCAG's contrast for running text, 4.5 to 1, in both modes."""
    pages = [path for path in in_order(site) if path.is_file()]
    tabs = {path.name: Tab(browser, scheme=scheme).open(path) for path in pages}
    low = {name: low_contrast(page) for name, page in tabs.items()}
    assert {name: texts for name, texts in low.items() if texts} == {}


def test_a_quiz_answers_and_sets_its_mathematics(browser, small_book):
    tab = Tab(browser)
    page = tab.open(small_book / "_build/html/book/sample.html")
    page.wait_for_selector(".Quiz mjx-container")
    page.locator(".MCButton", has_text="2").first.click()
    page.wait_for_selector(".Feedback:has-text('Yes.')")
    assert tab.problems == []


def test_the_start_page_leads_to_the_book(browser, site):
    page = Tab(browser).page
    page.goto(f"file://{(site / 'index.html').resolve()}")
    page.wait_for_url("**/book/index.html")
