"""Formulas as plain text, for excerpts of the search; the examples in all local extensions."""

import doctest
import importlib
import re

import formulas

from tests.book.support import EXTENSIONS, ROOT

INLINE = re.compile(r"(?<![$\\`])\$([^$\n]{3,120})\$(?!\$)")


PLAIN = {
    r"\Delta W = \frac{\alpha}{r}BA": "ΔW = α/r BA",
    r"\alpha / \sqrt r": "α/√r",
    r"\log_2 n": "log_2 n",
    r"\lVert A x \rVert^2": "‖A x‖^2",
    r"Q K^\top / \sqrt{d}": "Q Kᵀ/√d",
    r"\lceil n / b \rceil": "⌈n/b⌉",
    r"W \in \mathbb{R}^{d \times k}": "W ∈ R^(d × k)",
}


def test_a_formula_is_a_line_of_plain_text():
    assert {tex: formulas.plain(tex) for tex in PLAIN} == PLAIN


def test_no_formula_of_a_sentence_in_the_book_keeps_the_name_of_a_fraction_or_letter():
    names = re.compile(r"frac|sqrt|lVert|mathbb|operatorname|\\|(alpha|beta|Delta|sigma)(?![a-z])")
    found = 0
    for page in (ROOT / "book").rglob("*.md"):
        for tex in INLINE.findall(page.read_text("utf8")):
            if "\\" in tex:
                found += 1
                assert not names.search(formulas.plain(tex)), (page.name, tex)
    assert found > 100  # the search for them works


def test_the_examples_in_all_extensions_hold():
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    names = sorted(path.stem for path in EXTENSIONS.glob("*.py"))
    modules = {name: importlib.import_module(name) for name in names}
    failed = {name: doctest.testmod(each, optionflags=options) for name, each in modules.items()}
    assert [name for name, result in failed.items() if result.failed] == []
