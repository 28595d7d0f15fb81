"""Formulas in nbgrader's feedback pages and in formgrader, without a network."""

import pytest
from nbformat.v4 import new_markdown_cell
from nbgrader.converters import GenerateFeedback
from offline import loaded_urls
from traitlets.config import Config

from course_pkg.grading.classroom.feedback import mathjax
from course_pkg.grading.classroom.feedback.mathjax import use_local_mathjax
from course_pkg.grading.questions.display import NO_TEX
from tests.chromium import Tab, running
from tests.grading.classroom.test_outputs import exported

CELLS = [
    r"inline $x^2$ and \\(y_1\\), a price of \\$5",
    r"$$\text{BP} = \begin{cases} 1 & c \ge r \\ e^{1 - r/c} & c < r \end{cases}$$",
    rf"<div class='{NO_TEX}'>$left as it is$</div>",
    r"$\href{javascript:window.hacked=1}{link}$ $\require{html}$ $\unicode{x41}$",
]


def page(template: str) -> str:
    config = Config()
    use_local_mathjax(config)
    if template == "feedback":
        config = GenerateFeedback(config=config).config
    else:  # formgrader's own settings come before those of the course
        config.HTMLExporter.template_name = "formgrade"
    return exported(config, map(new_markdown_cell, CELLS))


@pytest.mark.parametrize("template", ["feedback", "formgrade"])
def test_the_pages_load_nothing_from_another_host(template):
    text = page(template)
    assert loaded_urls(text) == [] and "DecompressionStream" in text


def test_without_the_package_the_page_says_so(monkeypatch):
    monkeypatch.setattr(mathjax, "_packed", lambda: "")
    assert "sphinx-mathjax-offline is not installed" in mathjax.local_mathjax()


def test_formulas_are_typeset_offline_and_can_not_run_anything(tmp_path):
    (tmp_path / "page.html").write_text(page("feedback"))
    with running() as browser:
        tab = Tab(browser)
        shown = tab.open(tmp_path / "page.html")
        shown.wait_for_selector("mjx-container svg")
        assert shown.locator("mjx-container").count() == 6
        assert shown.locator("mjx-container a").count() == 0
        text = shown.inner_text("body")
        assert "$left as it is$" in text and "a price of $5" in text
        assert tab.problems == []
