"""Rules that every page's source keeps: computed numbers, captions in words, images described."""

import re

import pytest
import rerun
import yaml

from .support import ROOT

PAGES = sorted((ROOT / "book").rglob("*.md"))
TYPED = re.compile(r"(?<![\w.])(?:\d+\.\d+|\d{1,3}(?:,\d{3})+|\d{4,})(?![\w])")
# Reviewed: names, versions and places in a document, which no cell could compute.
ALLOWED = re.compile(
    r"Python 3\.\d+|\(up to 3\.\d+\)|CC BY 4\.0|[Ss]ections? \d+\.\d+|\bpeft 0\.21\b"
)


def prose(text: str) -> str:
    """A page's text without header, code, mathematics, roles, citations, links' targets, quotes."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(
        r"^(`{3,})\{(?:code-cell|literalinclude|bibliography).*?^\1\s*$",
        "",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(r"^(`{3,})\w*\n.*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]+\$", "", text, flags=re.DOTALL)
    text = re.sub(r"(?:\{[\w:.-]+\})?`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    return re.sub(r"\"[^\"\n]{0,80}\"", "", ALLOWED.sub("", text))


def name(path):
    return path.relative_to(ROOT / "book").as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_result_is_typed_into_prose(page):
    assert TYPED.findall(prose(page.read_text())) == []


@pytest.mark.parametrize("number", ["3.14", "65,536", "4096", "0.39"])
def test_a_planted_number_is_found(number):
    assert TYPED.findall(prose(f"# Title\n\nThe loss was {number} then, see `1.5` and $2.5$.\n"))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_of_a_page_parses_and_downloads_nothing(page):
    code = rerun.page_code(page.read_text())
    compile(code, str(page), "exec")
    assert not re.search(r"^\s*[!%]\s*pip|https?://", code, re.MULTILINE)


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
    assert len(entries) >= 80
    for entry in entries:
        english, chinese, *definition = entry.split("\n")
        assert re.search(r"[\u4e00-\u9fff]", chinese) and english.isascii(), entry
        assert len(" ".join(definition)) > 20, entry
