"""Frames and the control that moves between them."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from course_pkg.pages.slider import slider
from tests.chromium import Tab


def figures():
    drawn = {}
    for slope in (1, 2, 3):
        figure, axes = plt.subplots()
        axes.plot([0, 1], [0, slope])
        drawn[slope] = figure
    return drawn


def test_figures_become_svg_and_are_closed():
    before = plt.get_fignums()
    shown = slider(figures(), "slope", "A line.", start=2)
    assert plt.get_fignums() == before
    assert all(frame.startswith("<svg") and "<metadata" not in frame for frame in shown.frames)
    assert shown._repr_html_().count('class="frame mathjax_process shown"') == 1


def test_what_cannot_be_shown_is_refused_with_the_reason():
    for frames, alt, start, problem in (
        ("a", "Letters.", None, "ValueError: .* given 1"),
        (range(21), "Numbers.", None, "ValueError: .* given 21"),
        ("ab", "Letters.", "c", "ValueError: start='c'"),
        ("ab", " ", None, "ValueError: alt is empty"),
        ((1, 2), "Numbers.", None, "TypeError: .* given int"),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            slider(dict(zip(frames, frames, strict=True)), "n", alt, start)
        assert re.match(problem, f"{caught.typename}: {caught.value}")


@pytest.fixture
def opened(browser, tmp_path: Path):
    def open_slider(*arguments, **options):
        file = tmp_path / "page.html"
        file.write_text(f"<main>{slider(*arguments, **options)._repr_html_()}</main>")
        tab = Tab(browser)
        return tab, tab.open(file)

    return open_slider


@pytest.mark.browser
def test_the_reader_moves_through_the_frames(opened):
    tab, page = opened({"<low>": "low", "high & dry": "high"}, "level", "Words.")

    def visible():
        return [e.inner_text() for e in page.locator(".frame").all() if e.is_visible()]

    assert (visible(), page.locator("output").inner_text()) == (["low"], "<low>")
    page.get_by_label("next").click()
    assert (visible(), page.locator("output").inner_text()) == (["high"], "high & dry")
    page.locator("input").press("ArrowLeft")
    assert visible() == ["low"]
    page.get_by_label("previous").click()  # already at the start
    assert (visible(), tab.problems) == (["low"], [])


@pytest.mark.browser
def test_a_line_is_drawn_in_every_frame(opened):
    """The frames' equal clip paths have one id; hiding the first frame must not hide the others."""
    with plt.rc_context({"svg.hashsalt": "course"}):  # as in the book: equal paths, equal ids
        _, page = opened(figures(), "slope", "A line.", start=3)
    shown = page.locator(".frame.shown svg")
    whole = shown.screenshot()
    shown.evaluate("e => e.querySelector('[clip-path]').remove()")
    assert shown.screenshot() != whole
