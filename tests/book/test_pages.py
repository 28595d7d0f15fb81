"""Rules that every page's source keeps: its code parses, its images are described."""

import re

import rerun
import yaml

from tests.book.support import CELL, ROOT
from tests.repository import PROJECT, imported, required

WIDEST = 90  # columns of code that a page of 1280 pixels shows without scrolling sideways
PAGES = sorted((ROOT / "book").rglob("*.md"))


def name(path):
    return path.relative_to(ROOT / "book").as_posix()


def test_code_of_a_page_parses_downloads_nothing_and_fits_into_the_page():
    faults = []
    for page in PAGES:
        text = page.read_text()
        code = rerun.page_code(text)
        compile(code, str(page), "exec")
        if found := re.search(r"^\s*[!%]\s*pip|https?://", code, re.MULTILINE):
            faults.append((name(page), found[0]))
        for cell in CELL.findall(text):
            if not re.search(r"(hide|remove)-(input|cell)", cell):
                faults += [(name(page), line) for line in cell.splitlines() if len(line) > WIDEST]
    assert faults == []


def test_the_extra_book_brings_what_the_pages_import():
    brought = required([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["book"]])
    missing = {
        module: name(page)
        for page in PAGES
        for module, owners in imported(rerun.page_code(page.read_text())).items()
        if not owners & brought
    }
    assert missing == {}


def test_every_figure_has_alt_text():
    silent = []
    for page in PAGES:
        text = page.read_text()
        figures = re.findall(r"^`{3,}\{figure\}.*?^`{3,}\s*$", text, re.MULTILINE | re.DOTALL)
        figures += [cell for cell in CELL.findall(text) if "plt.show()" in cell]
        alt = re.compile(r"^(:|\s+)alt: .{20,}", re.MULTILINE)
        silent += [(name(page), figure) for figure in figures if not alt.search(figure)]
    assert silent == []


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
