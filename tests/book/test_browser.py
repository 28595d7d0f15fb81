"""Pages open from disk in Chromium with no network: no error, mathematics set, nothing too wide."""

from pathlib import Path

import pytest
import searching

from tests.book.visits import problems
from tests.chromium import Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SOURCES = 3  # pages of highlighted source that are visited; all are made by one template


def pages(site):
    """All pages but the one at the top, which only leads on to another."""
    sources = sorted(site.glob("_modules/**/*.html"))
    left_out = {site / "index.html", *site.glob("_static/**/*"), *sources[SOURCES:]}
    return sorted(set(site.rglob("*.html")) - left_out)


@pytest.mark.timeout(3600)  # it opens about 300 pages
def test_every_page_opens_without_a_fault(browser, site):
    assert problems(browser, *pages(site)) == {}


def test_search_leads_to_the_section_without_a_server(browser, site):
    tab = Tab(browser)
    page = tab.open(site / "book/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("brevity penalty")
    page.keyboard.press("Enter")
    section = page.locator("#search-results li a.found-part").first
    section.wait_for()
    target = section.evaluate("link => link.href")
    assert "/book/metrics/bleu.html#" in target
    section.click()
    page.wait_for_url(target)
    assert tab.problems == []


def test_search_shows_excerpts_chapters_first_and_forgives_a_typo(browser, site):
    tab = Tab(browser)
    for query in ("perplexity", "perplxity", "preplexity"):
        page = tab.open(site / "search.html", f"?q={query}")
        links = page.locator("#search-results a.found-page")
        pages = [Path(link.get_attribute("href")).with_suffix("") for link in links.all()]
        assert "perplexity" in links.first.inner_text().lower(), query
        ranks = [searching.rank(page.as_posix()) for page in pages]
        assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}, query
        excerpt = page.locator("#search-results p.context:has(mark)").first.inner_text()
        assert 40 < len(excerpt) < 300 and "perplexit" in excerpt.lower(), query
        status = page.locator("#search-results [role=status]").inner_text()
        assert ("Shown instead: “perplexity”" in status) == (query != "perplexity")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_links_have_one_color_and_a_line_below_their_underscores(browser, site, scheme):
    """In text, tables and code. Letters with a descender end about 0.2 em below the baseline."""
    seen = set()
    for name in ("adapters/peft", "appendix/errata"):
        page = Tab(browser, scheme=scheme).open(site / f"book/{name}.html")
        links = "article a.reference:not(.headerlink), article a.reference code"
        found = page.locator(links).evaluate_all(
            "all => all.map(e => [getComputedStyle(e).color, !!e.closest('table'), e.tagName,"
            " parseFloat(getComputedStyle(e).textUnderlineOffset)"
            " >= 0.2 * parseFloat(getComputedStyle(e).fontSize)])"
        )
        seen |= {tuple(link) for link in found}
    assert len({color for color, *_ in seen}) == 1
    kinds = {(table, tag) for _, table, tag, _ in seen}
    assert kinds >= {(True, "A"), (False, "A"), (False, "CODE")}
    assert all(below for *_, below in seen)
