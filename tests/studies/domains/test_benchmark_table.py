"""The table of benchmarks: its data, its HTML, and what a reader can do with it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from course_pkg.studies.domains.benchmark_table import (
    CHECKED,
    COLUMNS,
    FILE,
    benchmark_table,
    load_benchmarks,
)
from tests.chromium import Tab, low_contrast

ROWS = load_benchmarks()


def test_every_row_says_whether_its_size_was_checked():
    assert {row.checked for row in ROWS} <= set(CHECKED)
    html = benchmark_table(ROWS)._repr_html_()
    assert html.count(">not checked</td>") == sum(row.checked == "" for row in ROWS) > 0


def test_the_html_is_well_formed_and_has_a_cell_for_every_value():
    hostile = replace(ROWS[0], name='<b onclick="x">', asks="a & b")
    html = benchmark_table([hostile, *ROWS[1:]])._repr_html_()
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert parser.count["td"] + parser.count["th"] == len(COLUMNS) * (len(ROWS) + 1)
    assert "<b onclick" not in html and "a &amp; b" in html
    assert not re.search(r"(?:src|href)=|https?:", html)  # works from disk, with no network


class Balanced(HTMLParser):
    """Counts start tags and keeps those that are open."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.count = {}

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "input":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_fault_in_the_file_is_named(tmp_path):
    for old, new, message in (
        ('metric = "accuracy"\n', "", "CommonsenseQA.*missing or unknown: metric"),
        ("items = 12247", 'items = "12247"', "items must be an integer"),
        ('name = "StrategyQA"', 'name = "CommonsenseQA"', "'CommonsenseQA' twice"),
        ('area = "knowledge"', 'area = " "', "area is empty"),
    ):
        path = tmp_path / "benchmarks.toml"
        path.write_text(FILE.read_text("utf-8").replace(old, new, 1), "utf-8")
        with pytest.raises(ValueError, match=message):
            load_benchmarks(path)


def test_no_rows_and_other_rows_are_refused():
    with pytest.raises(ValueError, match="rows is empty"):
        benchmark_table([])
    with pytest.raises(TypeError, match="rows must be Benchmarks"):
        benchmark_table([{"name": "GSM8K"}])


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the table in a tab of some width."""

    def open_table(width=1280, scheme="light"):
        colors = (
            "background:#fff;color:#222" if scheme == "light" else "background:#121212;color:#ddd"
        )
        file = tmp_path / "page.html"
        table = benchmark_table(ROWS)._repr_html_()
        head = '<meta name="viewport" content="width=device-width">'
        file.write_text(f'<html>{head}<body style="{colors}"><main>{table}</main></body></html>')
        tab = Tab(browser, width, scheme)
        return tab, tab.open(file)

    return open_table


def names(page):
    return [e.inner_text() for e in page.locator("tbody th").all() if e.is_visible()]


@pytest.mark.browser
def test_a_reader_sorts_and_filters(opened):
    tab, page = opened()
    page.get_by_role("button", name="Size", exact=True).click()
    heading = page.get_by_role("columnheader", name="Size", exact=True)
    assert heading.get_attribute("aria-sort") == "ascending"
    by_size = sorted((row for row in ROWS if row.items), key=lambda row: row.items)
    generated = ["Last letters", "Coin flip"]
    assert names(page) == [row.name for row in by_size] + generated
    page.get_by_role("button", name="Size", exact=True).click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert names(page)[0] == by_size[-1].name
    assert names(page)[-2:] == generated
    page.get_by_label("Show rows with").fill("MEDICINE judgment")
    assert set(names(page)) == {"LiveQA TREC-2017", "MedicationQA", "HealthSearchQA"}
    assert page.locator("output").inner_text() == f"3 of {len(ROWS)} benchmarks"
    page.get_by_label("Show rows with").fill("")
    assert len(names(page)) == len(ROWS)
    assert page.locator("[aria-sort]").count() == 1
    assert tab.problems == []


@pytest.mark.browser
def test_on_a_phone_the_rows_are_cards_that_fit(opened):
    for scheme in ("light", "dark"):
        tab, page = opened(390, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("tbody td").first.bounding_box()["width"] > 300
        assert low_contrast(page, "main") == []
        page.get_by_label("Show rows with").fill("isabelle")
        assert set(names(page)) == {"LISA", "miniF2F"}
        assert tab.problems == []
