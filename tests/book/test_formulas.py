"""Formulas as plain text, for excerpts of the search; the examples in all local extensions."""

import doctest
import importlib
import re

import formulas
import pytest

from tests.book.support import EXTENSIONS, ROOT

INLINE = re.compile(r"(?<![$\\`])\$([^$\n]{3,120})\$(?!\$)")


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\Delta W = \frac{\alpha}{r}BA", "ΔW = α/r BA"),
        (r"\alpha / \sqrt r", "α/√r"),
        (r"\log_2 n", "log_2 n"),
        (r"\lVert A x \rVert^2", "‖A x‖^2"),
        (r"Q K^\top / \sqrt{d}", "Q Kᵀ/√d"),
        (r"\lceil n / b \rceil", "⌈n/b⌉"),
        (r"W \in \mathbb{R}^{d \times k}", "W ∈ R^(d × k)"),
    ],
)
def test_a_formula_is_a_line_of_plain_text(tex, text):
    assert formulas.plain(tex) == text


def test_no_formula_of_a_sentence_in_the_book_keeps_the_name_of_a_fraction_or_letter():
    names = re.compile(r"frac|sqrt|lVert|mathbb|operatorname|\\|(alpha|beta|Delta|sigma)(?![a-z])")
    found = 0
    for page in (ROOT / "book").rglob("*.md"):
        for tex in INLINE.findall(page.read_text("utf8")):
            if "\\" in tex:
                found += 1
                assert not names.search(formulas.plain(tex)), (page.name, tex)
    assert found > 100  # the search for them works


@pytest.mark.parametrize("name", sorted(path.stem for path in EXTENSIONS.glob("*.py")))
def test_the_examples_in_an_extension_hold(name):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=options).failed == 0
