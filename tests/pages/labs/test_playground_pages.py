"""Playgrounds in their pages: from disk, without a network, in Chromium."""

import re
from urllib.parse import urlencode

import pytest

from course_pkg.pages.labs.playgrounds import MODULES, playground
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
    "ring": "acceleration/parallelism",
}
# A field of each, a value for it, and a text that the view then has.
TYPED = {
    "bleu": ("hypothesis", "the cat is on the mat", "6 of 6"),
    "rouge": ("hypothesis", "nothing", "0"),
    "perplexity": ("given", "0.5 0.5", "As uncertain as a choice among 2 "),
    "tokenizer": ("text", "a-b", "a-b"),
    "blocks": ("commands", "new z 100", "too few blocks"),
    "scheduler": ("lines", "0 1 1", "to the last: 1.00 s"),
    "pass-at-k": ("correct", "10", "1.0000"),
    "quantization": ("row", "1 100", "100"),
    "automaton": ("text", "x", "may not write it"),
    "ring": ("done", "6", "Every rank has all sums"),
}
PHONE = 390  # pixels
# A view of this pattern takes seconds, then says that it is too much work.
SLOW = r"(\w{1,40}.?){40}"
# A view may take window.longest ms, where that is set; window.begun counts views.
LIMIT = """(() => {
  const real = window.setTimeout;
  window.begun = 0;
  window.setTimeout = (f, wait, ...more) => {
    if (wait !== 10000) return real(f, wait, ...more);
    window.begun += 1;
    return real(f, window.longest ?? wait, ...more);
  };
})()"""
# window.seen: of each view of perplexity that is shown, the number of choices.
WATCH = """view => {
  window.seen = [];
  new MutationObserver(() => {
    const found = /choice among (\\d+) /.exec(view.textContent);
    if (found) window.seen.push(found[1]);
  }).observe(view, { childList: true });
}"""
LONG_CELL = """import time
end = time.time() + 8
print("begins")
while time.time() < end: pass
print("ends")"""
HOSTILE = "<img src=x onerror=\"document.title='run'\">\\(\\href{javascript:1}{x}\\)"


def opened(browser, labs, name: str, query: str = "", script: str = "", **options):
    """A tab with the page of a playground, and the playground in it. script: runs before it."""
    tab = Tab(browser, **options)
    tab.page.add_init_script(script)
    page = tab.open(labs / f"book/{PAGES[name]}.html", query)
    return tab, page.locator(f"#play-{name}")


def updated(panel) -> None:
    panel.locator(".lab-status").filter(has_text="updated").wait_for(timeout=60_000)


def test_a_book_without_labs_has_the_look_of_a_view():
    assert ".lab-chip" in (ROOT / "book/_static/labs.css").read_text("utf-8")


def test_every_playground_has_its_page():
    assert set(PAGES) == set(TYPED) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_what_is_typed_is_shown_fits_a_phone_and_what_is_linked_stays_text(browser, labs, name):
    """The first view is visited with its whole page, see test_browser.py."""
    tab, panel = opened(browser, labs, name, width=PHONE, scheme="dark")
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    typed, value, shown = TYPED[name]
    before = panel.locator(".lab-view").inner_text()
    assert not [url for url in asked if "kit.js" in url]
    panel.locator(f"[name={typed}]").fill(value)
    updated(panel)
    after = panel.locator(".lab-view").inner_text()
    assert shown in after and after != before
    for control in panel.locator("input, select, textarea").all():
        assert panel.locator(f"label[for='{control.get_attribute('id')}']").count() == 1
    box = panel.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE
    assert low_contrast(tab.page, f"#play-{name}") == []
    panel.get_by_role("button", name="Reset").click()
    assert panel.locator(".lab-view").inner_text() == before
    assert tab.problems == []
    # What a link brings stays text; it is computed after a click.
    fields = [field for field in playground(name).fields if field.kind in ("text", "lines")]
    query = urlencode({field.name: HOSTILE for field in fields} or {typed: value})
    tab.page.evaluate("hash => { location.hash = hash }", f"#play-{name}?{query}")
    panel.get_by_role("button", name="Show").click()
    updated(panel)
    assert panel.locator("img, a, script").count() == 0
    assert tab.page.title() != "run" and tab.problems == []


def test_the_latest_of_many_changes_is_shown(browser, labs):
    """Some come before Python has started, some while an earlier one is computed."""
    tab, panel = opened(browser, labs, "perplexity")
    panel.locator(".lab-view").evaluate(WATCH)
    field = panel.locator("[name=given]")
    for size in range(2, 13):
        field.fill(f"1/{size}")
        if size % 4 == 0:  # until this one is begun, or shown already
            panel.locator(".lab-status").filter(has_text=re.compile(".")).wait_for()
    panel.get_by_text("As uncertain as a choice among 12 ").wait_for(timeout=60_000)
    updated(panel)
    seen = [int(number) for number in tab.page.evaluate("window.seen")]
    assert seen[-1] == 12 and seen == sorted(seen)


def test_a_link_with_any_text_is_read_back_and_waits_for_a_click(browser, labs):
    tab, panel = opened(browser, labs, "tokenizer", "#play-tokenizer?text=%")
    field = panel.locator("[name=text]")
    assert field.input_value() == "%" and tab.problems == []
    text = "100%25 of %41, a+b ? ä #x"
    field.fill(text)
    updated(panel)
    asked = []
    other = Tab(browser)
    other.page.on("request", lambda request: asked.append(request.url))
    other.page.goto(tab.page.evaluate("location.href"))
    linked = other.page.locator("#play-tokenizer")
    show = linked.get_by_role("button", name="Show")
    show.wait_for()
    assert linked.locator("[name=text]").input_value() == text
    assert not [url for url in asked if "kit.js" in url]
    show.click()
    updated(linked)
    assert linked.locator(".lab-view").inner_text() == panel.locator(".lab-view").inner_text()
    # In an open page too: another link replaces all values, and the view waits for a click.
    before = panel.locator(".lab-view").inner_text()
    tab.page.evaluate("location.hash = '#play-tokenizer?text=other'")
    panel.get_by_text("This link has its own values").wait_for()
    assert field.input_value() == "other" and panel.locator(".lab-view").inner_text() != before
    assert "other" not in panel.locator(".lab-view").inner_text()
    assert panel.evaluate("each => each.getBoundingClientRect().top") < 400
    panel.get_by_role("button", name="Reset").click()
    assert panel.get_by_role("button", name="Show").is_hidden()
    assert "?" not in tab.page.evaluate("location.href")


def test_a_view_that_takes_too_long_is_stopped(browser, labs):
    tab, panel = opened(browser, labs, "automaton", script=LIMIT)
    pattern = panel.locator("[name=pattern]")
    tab.page.evaluate("() => { window.longest = 300 }")
    pattern.fill(SLOW)
    panel.get_by_text("That took too long").wait_for(timeout=60_000)
    tab.page.evaluate("() => { window.longest = null }")
    pattern.fill("ab|cd")
    updated(panel)
    assert "has 4 states" in panel.locator(".lab-view").inner_text()
    # What is typed meanwhile is computed, although the one before it had to be stopped.
    tab.page.evaluate("() => { window.longest = 1000 }")
    pattern.fill(SLOW)
    tab.page.wait_for_function("() => window.begun === 3")
    tab.page.evaluate("() => { window.longest = null }")
    pattern.fill("abcd")
    panel.get_by_text("has 5 states").wait_for(timeout=60_000)
    assert tab.problems == []


def test_a_playground_waits_for_a_cell_and_does_not_stop_it(browser, labs):
    tab, panel = opened(browser, labs, "bleu", script=LIMIT)
    tab.page.evaluate("() => { window.longest = 4000 }")
    cell = tab.page.locator(".cell:has(> .lab-bar)").first
    cell.get_by_role("button", name="Edit").click()
    tab.page.wait_for_selector(".cm-editor.cm-focused")
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.insert_text(LONG_CELL)
    tab.page.keyboard.press("Shift+Enter")
    cell.locator(".lab-output").get_by_text("begins").wait_for(timeout=60_000)
    panel.locator("[name=hypothesis]").fill("the cat is on the mat")
    panel.get_by_text("waiting for a cell").wait_for()
    updated(panel)
    assert "6 of 6" in panel.locator(".lab-view").inner_text()
    assert cell.locator(".lab-output").inner_text().split() == ["begins", "ends"]
    assert cell.locator(".lab-status").inner_text() == "done"
