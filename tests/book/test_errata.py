"""The errata: permanent numbers, an index by document and section, a cell for each entry."""

import re

import errata
import pytest

from tests.book.support import ROOT

FOLDER = ROOT / "book" / "appendix"
PAGES = sorted(FOLDER.glob("errata-*.md"))
INDEX = (FOLDER / "errata.md").read_text("utf8")
LABEL = re.compile(r"^\(erratum-(\d+)\)=$", re.MULTILINE)
TEXT = """
(erratum-57)=
### 57. A penalty
*Document 1, section 8.2 (case 1); section 10, question
4; Document 3, section 11.3.1, part 3.*

Text.
"""


def test_an_entry_is_read_and_its_label_and_heading_must_have_the_same_number():
    places = ((1, "section 8.2"), (1, "section 10, question 4"), (3, "section 11.3.1, part 3"))
    assert errata.entries(TEXT) == [errata.Entry(57, "A penalty", places)]
    with pytest.raises(ValueError, match="erratum-57 labels number 58"):
        errata.entries(TEXT.replace("### 57", "### 58"))


def test_every_entry_says_where_shows_or_cites_it_and_has_only_markers_of_the_index():
    explained = re.findall(r"^- \*\*(\w+)\*\*:", INDEX, re.MULTILINE)
    shown = re.compile(r"```\{code-cell\}|\{cite:[pt]\}|\]\(https://")
    assert PAGES
    for page in PAGES:
        text = page.read_text("utf8")
        entries = errata.entries(text)
        assert [entry.number for entry in entries] == list(map(int, LABEL.findall(text))), page
        parts = LABEL.split(text)[2::2]
        assert [part[:60] for part in parts if not shown.search(part)] == [], page
        assert {entry.places[0][0] for entry in entries} == {int(page.stem.split("-")[1])}, page
        for entry in entries:
            markers = re.findall(r"\(([a-z, ]+)\)$", entry.title)
            assert set(markers) <= set(explained), f"{entry.number}. {entry.title}"


def test_each_number_is_either_in_use_once_or_withdrawn():
    used = [n for page in PAGES for n in map(int, LABEL.findall(page.read_text("utf8")))]
    withdrawn = list(map(int, LABEL.findall(INDEX)))
    assert sorted(used + withdrawn) == list(range(1, max(used) + 1))


def test_the_index_is_in_order_of_sections_and_names_each_section_once():
    sections = [(2, "section 10, question 2"), (1, "section 8.2"), (3, "section 8.2")]
    listed = [errata.Entry(number, "", ((1, section),)) for number, section in sections]
    assert errata.table(1, listed)[2:] == [
        "| 8.2 | [](erratum-1) |",
        "|  | [](erratum-3) |",
        "| 10, question 2 | [](erratum-2) |",
    ]
    assert errata.table(2, listed) == []
