"""Pages open from disk in Chromium with no network: no error, mathematics set, nothing too wide."""

import pytest

from tests.chromium import Tab

from .visits import problems

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SOURCES = 3  # pages of highlighted source that are visited; all are made by one template


def pages(site):
    """All pages but the one at the top, which only leads on to another."""
    sources = sorted(site.glob("_modules/**/*.html"))
    left_out = {site / "index.html", *site.glob("_static/**/*"), *sources[SOURCES:]}
    return sorted(set(site.rglob("*.html")) - left_out)


def test_every_page_opens_without_a_fault(browser, site):
    found = {str(path.relative_to(site)): problems(browser, path) for path in pages(site)}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_search_finds_a_word_and_shows_the_page_without_a_server(browser, site):
    tab = Tab(browser)
    page = tab.open(site / "book/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("perplexity")
    page.keyboard.press("Enter")
    results = page.locator("#search-results li a")
    results.first.wait_for()
    target = page.evaluate("document.querySelector('#search-results li a').href")
    results.first.click()
    page.wait_for_url(lambda url: url.split("#")[0].split("?")[0] == target.split("#")[0])
    assert "perplexity" in page.locator("main").inner_text().lower()
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


def test_the_start_page_leads_to_the_book(browser, site):
    page = Tab(browser).page
    page.goto(f"file://{(site / 'index.html').resolve()}")
    page.wait_for_url("**/book/index.html")
