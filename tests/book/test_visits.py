"""A visit finds what a phone can't show."""

import pytest

from tests.book.visits import problems

PAGE = """<!DOCTYPE html><html lang="en"><title>A page</title>
<style>body {{ margin: 0 }} mjx-container, svg {{ display: block; overflow: hidden }}
  svg {{ max-width: 100% }}</style>
<main><div class="math"><mjx-container display="true">
  <svg width="{formula}" height="20"></svg> a = b</mjx-container></div>
<svg class="figure-svg" role="img" aria-label="A drawing" width="780" viewBox="0 0 {drawing} 9">
  <text style="font-size: 12px">a</text></svg>
<svg class="figure-svg" role="img" aria-label="A plot" width="300" viewBox="0 0 300 9">
  <g transform="translate(1 2) scale({letters} -{letters})"></g></svg></main></html>"""


@pytest.mark.browser
@pytest.mark.slow
def test_wide_formulas_and_small_letters_are_found(browser, tmp_path):
    wrong, good = tmp_path / "wrong.html", tmp_path / "good.html"
    wrong.write_text(PAGE.format(formula=600, drawing=780, letters=0.07))
    good.write_text(PAGE.format(formula=400, drawing=500, letters=0.11))
    faults = [
        "formula too wide for a phone: a = b",
        "text of 6.0 pixels on a phone: A drawing",
        "text of 7.0 pixels on a phone: A plot",
    ]
    assert problems(browser, wrong, good) == {wrong: faults}
