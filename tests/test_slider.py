"""Frames and the control that moves between them."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from course_pkg.slider import slider

from .chromium import Tab, running


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


@pytest.mark.parametrize(
    ("frames", "extra", "wanted"),
    [
        ({1: "a"}, {}, "given 1"),
        ({n: "a" for n in range(21)}, {}, "given 21"),
        ({1: "a", 2: "b"}, {"start": 3}, "start=3"),
        ({1: "a", 2: "b"}, {"alt": " "}, "alt is empty"),
    ],
)
def test_bad_frames_are_named(frames, extra, wanted):
    with pytest.raises(ValueError, match=wanted):
        slider(frames, "n", **{"alt": "Something.", **extra})


def test_a_frame_that_cannot_be_shown_is_refused():
    with pytest.raises(TypeError, match="given int"):
        slider({1: 1, 2: 2}, "n", "Numbers.")


@pytest.mark.browser
def test_the_reader_moves_through_the_frames(tmp_path: Path):
    file = tmp_path / "page.html"
    frames = {"<low>": "low", "high & dry": "high"}
    file.write_text(f"<main>{slider(frames, 'level', 'Words.')._repr_html_()}</main>")
    with running() as browser:
        tab = Tab(browser)
        page = tab.open(file)

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
def test_a_line_is_drawn_in_every_frame(tmp_path: Path):
    """The frames' equal clip paths have one id; hiding the first frame must not hide the others."""
    file = tmp_path / "page.html"
    with plt.rc_context({"svg.hashsalt": "course"}):  # as in the book: equal paths, equal ids
        file.write_text(slider(figures(), "slope", "A line.", start=3)._repr_html_())
    with running() as browser:
        page = Tab(browser).open(file)
        shown = page.locator(".frame.shown svg")
        whole = shown.screenshot()
        shown.evaluate("e => e.querySelector('[clip-path]').remove()")
        assert shown.screenshot() != whole
