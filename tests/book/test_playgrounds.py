"""Playgrounds in their pages: from disk, without a network, in Chromium."""

from urllib.parse import urlencode

import pytest

from course_pkg.labs.playgrounds import NAMES, playground
from tests.book.support import ROOT
from tests.chromium import Tab, low_contrast

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PAGES = {
    "bleu": "metrics/bleu",
    "rouge": "metrics/rouge",
    "perplexity": "metrics/perplexity",
    "tokenizer": "metrics/bleu-comparing",
    "blocks": "acceleration/paged-attention",
    "scheduler": "serving/scheduling",
    "pass-at-k": "evaluation/code-benchmarks",
    "quantization": "adapters/qlora",
    "automaton": "evaluation/constrained-output",
}
# A field of each, a value for it, and a text that the view then has.
TYPED = {
    "bleu": ("hypothesis", "the cat is on the mat", "6 of 6"),
    "rouge": ("hypothesis", "nothing", "0"),
    "perplexity": ("given", "0.5 0.5", "As uncertain as a choice among 2 "),
    "tokenizer": ("text", "a-b", "a-b"),
    "blocks": ("commands", "new z 100", "are lacking"),
    "scheduler": ("lines", "0 1 1", "to the last: 1.00 s"),
    "pass-at-k": ("correct", "10", "1.0000"),
    "quantization": ("row", "1 100", "100"),
    "automaton": ("text", "x", "may not write it"),
}
HOSTILE = "<img src=x onerror=\"document.title='run'\">\\(\\href{javascript:1}{x}\\)"


def opened(browser, labs, name: str, query: str = "", **options):
    """A tab with the page of a playground, and the playground in it."""
    tab = Tab(browser, **options)
    page = tab.open(labs / f"book/{PAGES[name]}.html", query)
    return tab, page.locator(f"#play-{name}")


def updated(found) -> None:
    """Wait until the view is that of what was typed."""
    found.locator(".lab-status").filter(has_text="updated").wait_for(timeout=60_000)


def test_a_book_without_labs_has_the_look_of_a_view():
    assert ".lab-chip" in (ROOT / "book/_static/labs.css").read_text("utf-8")


def test_every_playground_has_its_page():
    assert set(PAGES) == set(TYPED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_typed_is_shown_and_what_is_linked_stays_text(browser, labs, name):
    tab, found = opened(browser, labs, name)
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    typed, value, shown = TYPED[name]
    before = found.locator(".lab-view").inner_text()
    assert not [url for url in asked if "kit.js" in url]
    found.locator(f"[name={typed}]").fill(value)
    updated(found)
    after = found.locator(".lab-view").inner_text()
    assert shown in after and after != before
    found.get_by_role("button", name="Reset").click()
    assert found.locator(".lab-view").inner_text() == before
    assert tab.problems == []
    # What a link brings stays text; it is computed after a click.
    fields = [field for field in playground(name).fields if field.kind in ("text", "lines")]
    query = urlencode({field.name: HOSTILE for field in fields} or {typed: value})
    tab.page.goto("about:blank")
    page = tab.open(labs / f"book/{PAGES[name]}.html", f"#play-{name}?{query}")
    found = page.locator(f"#play-{name}")
    found.get_by_role("button", name="Show").click()
    updated(found)
    assert found.locator("img, a, script").count() == 0
    assert page.title() != "run" and tab.problems == []


def test_the_latest_of_many_changes_is_shown(browser, labs):
    tab, found = opened(browser, labs, "perplexity")
    field = found.locator("[name=given]")
    for size in range(2, 12):
        field.fill(f"1/{size}")
        tab.page.wait_for_timeout(60 * (size % 4))
    found.get_by_text("As uncertain as a choice among 11 ").wait_for(timeout=60_000)
    tab.page.wait_for_timeout(800)
    assert "among 11 " in found.locator(".lab-view").inner_text()


def test_a_link_has_the_state_and_waits_for_a_click(browser, labs):
    _, found = opened(browser, labs, "bleu")
    found.locator("[name=hypothesis]").fill("a & b = c? #d %41 %")
    found.locator("[name=order]").fill("2")
    updated(found)
    link = found.page.url
    tab = Tab(browser)
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.goto(link)
    other = tab.page.locator("#play-bleu")
    other.get_by_role("button", name="Show").wait_for()
    assert other.locator("[name=hypothesis]").input_value() == "a & b = c? #d %41 %"
    assert other.locator("[name=order]").input_value() == "2"
    assert not [url for url in asked if "kit.js" in url]
    other.get_by_role("button", name="Show").click()
    updated(other)
    assert other.locator(".lab-view").inner_text() == found.locator(".lab-view").inner_text()


def test_with_the_keyboard_alone(browser, labs):
    tab, found = opened(browser, labs, "pass-at-k")
    found.locator("[name=samples]").focus()
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.type("20")
    updated(found)
    order = []
    for _ in range(4):
        tab.page.keyboard.press("Tab")
        order.append(
            tab.page.evaluate("document.activeElement.name || document.activeElement.textContent")
        )
    assert order == ["correct", "k", "Reset", "Copy link"]
    for control in found.locator("input, select, textarea").all():
        assert found.locator(f"label[for='{control.get_attribute('id')}']").count() == 1


@pytest.mark.parametrize("name", NAMES)
def test_playgrounds_fit_a_phone_and_can_be_read(browser, labs, name):
    width, scheme = 390, "dark" if len(name) % 2 else "light"
    tab, found = opened(browser, labs, name, width=width, scheme=scheme)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    box = found.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert low_contrast(tab.page, f"#play-{name}") == []
