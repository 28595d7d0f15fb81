"""Rules that every page's source keeps: its code parses, its images are described."""

import re

import pytest
import rerun
import yaml

from tests.book.support import ROOT

WIDEST = 90  # columns of code that a page of 1280 pixels shows without scrolling sideways
PAGES = sorted((ROOT / "book").rglob("*.md"))


def name(path):
    return path.relative_to(ROOT / "book").as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_of_a_page_parses_and_downloads_nothing(page):
    code = rerun.page_code(page.read_text())
    compile(code, str(page), "exec")
    assert not re.search(r"^\s*[!%]\s*pip|https?://", code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_that_is_shown_fits_into_the_page(page):
    cells = re.findall(r"^```\{code-cell\}.*?^```\s*$", page.read_text(), re.MULTILINE | re.DOTALL)
    shown = [cell for cell in cells if not re.search(r"(hide|remove)-(input|cell)", cell)]
    wide = [line for cell in shown for line in cell.splitlines() if len(line) > WIDEST]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_figure_has_alt_text(page):
    text = page.read_text()
    for figure in re.findall(r"^`{3,}\{figure\}.*?^`{3,}\s*$", text, re.MULTILINE | re.DOTALL):
        assert re.search(r"^:alt: .{20,}", figure, re.MULTILINE), figure
    for cell in re.findall(r"^```\{code-cell\}.*?^```\s*$", text, re.MULTILINE | re.DOTALL):
        if "plt.show()" in cell:
            assert re.search(r"^\s+alt: .{20,}", cell, re.MULTILINE), cell


def test_every_page_is_in_the_table_of_contents_and_exists():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = {toc["root"], *re.findall(r"'file': '([^']+)'", str(toc))}
    assert listed == {f"book/{name(page).removesuffix('.md')}" for page in PAGES}


def test_glossary_has_both_names_and_a_definition_for_each_term():
    text = (ROOT / "book/appendix/glossary.md").read_text()
    entries = text.split("```{glossary}\n")[1].split("\n```")[0].split("\n\n")
    for entry in entries:
        english, chinese, *definition = entry.split("\n")
        assert re.search(r"[\u4e00-\u9fff]", chinese) and english.isascii(), entry
        assert len(" ".join(definition)) > 20, entry
