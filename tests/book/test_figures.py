"""Figures: every chapter page has at least two, and letters in them have the page's color."""

import re

import figures
import pytest
from matplotlib.colors import to_hex

from tests.book.support import CELL, ROOT

GRAY = re.compile(
    r"#([3-9a-c])\1\1\b|#([3-9a-c][0-9a-f])\2\2\b|\b(?:dim|dark|light)?gr[ae]y\b", re.IGNORECASE
)
PICTURE = re.compile(r"^\s+(?:figure|image):\s*$|\bslider\(|plt\.show\(\)", re.MULTILINE)
CHAPTERS = sorted(
    page
    for page in (ROOT / "book").glob("*/*.md")
    if page.parent.name not in ("api", "appendix") and page.stem != "index"
)


def count(text: str) -> int:
    """Figures of a page's source: drawings, and cells that show a plot or a slider."""
    drawings = re.findall(r"^`{3,}\{figure\}", text, re.MULTILINE)
    return len(drawings) + sum(bool(PICTURE.search(cell)) for cell in CELL.findall(text))


def test_drawings_plots_and_sliders_are_figures():
    cell = "```{{code-cell}} ipython3\n{}\n```\n"
    plot = cell.format("---\nmystnb:\n  figure:\n    name: a\n---\nplt.plot(x)\nplt.show()")
    choice = cell.format("slider(frames, 'n', 'A line.')")
    assert count("```{figure} a.svg\n```\n" + plot + cell.format("print(1)") + choice) == 3


def test_a_page_has_two_figures():
    assert [page.stem for page in CHAPTERS if count(page.read_text("utf8")) < 2] == []


def test_gray_becomes_the_ink_of_the_page_and_colors_stay():
    svg = '<svg><path style="stroke: #767676; fill: #2f7ebc"/><text fill="#808080">a</text></svg>'
    assert figures.with_page_ink(svg) == (
        '<svg><path style="stroke: currentColor; fill: #2f7ebc"/>'
        '<text fill="currentColor">a</text></svg>'
    )


def test_a_drawing_has_the_ink_of_the_page():
    drawings = {path.stem: path for path in (ROOT / "book/_static/figures").glob("*.svg")}
    inked = {name: figures.with_page_ink(path.read_text("utf8")) for name, path in drawings.items()}
    assert inked and [name for name, svg in inked.items() if GRAY.search(svg)] == []


def test_plots_use_only_grays_that_become_the_ink_of_the_page():
    for page in CHAPTERS:
        for cell in filter(PICTURE.search, CELL.findall(page.read_text("utf8"))):
            for gray in re.findall(r"""["'](0\.\d\d?)["']""", cell):
                assert figures.INK.fullmatch(to_hex(gray)), f"{page.name}: {gray}"


@pytest.mark.slow
def test_no_figure_of_the_site_has_gray_ink_or_lacks_a_description(site):
    for path in sorted(site.glob("book/**/*.html")):
        for svg in re.findall(r"<svg\b.*?</svg>", path.read_text("utf8"), re.DOTALL):
            assert not GRAY.search(svg), path
            assert "figure-svg" not in svg or re.search(r'aria-label="[^"]{20,}"', svg), path
