"""Reading time: what counts, and that no page takes more than one sitting."""

import pytest
import reading

from tests.book.support import ROOT

PROSE = "word " * 180 + "\n"
LINES = "x = 1\n" * 12
LESSONS = sorted(
    path
    for path in (ROOT / "book").rglob("*.md")
    if reading.is_read_through(path.relative_to(ROOT).with_suffix("").as_posix())
)


COUNTED = [
    (PROSE, 1),
    (f"---\nkernelspec: python3\n---\n{PROSE}", 1),
    (f"```{{code-cell}} ipython3\n{LINES}```\n", 1),
    (f"```{{code-cell}} ipython3\n---\nmystnb:\n  a: b\n---\n{LINES}\n```\n", 1),
    (f"```{{code-cell}} ipython3\n:tags: [hide-input]\n{LINES}```\n", 0),
    (f"```{{code-cell}} ipython3\n---\ntags: [remove-cell]\n---\n{LINES}```\n", 0),
    (f"```bash\n{LINES}```\n", 1),
    (f":::{{note}}\n{PROSE}```\n{LINES}```\n:::\n", 2),
    (f":::{{admonition}} Aside\n:class: dropdown\n{PROSE}:::\n", 0),
    (f":::{{admonition}} Aside\n:class: tip toggle\n{PROSE}:::\n", 0),
    (f"::::{{admonition}} G\n:class: goals\n:::{{dropdown}} More\n{PROSE}:::\n::::", 1 / 180),
    (f"```{{figure}} a.svg\n:alt: {PROSE}\n{PROSE}```\n", 1),
    ("| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 89, 1),
    ("(label)=\n<!-- a comment\n of two lines -->\n$$\nx = y^2 + 1\n$$\n", 3 / 180),
    ("{cite:t}`key` [two words](a.md#anchor) {glue:text}`x:.2f`", 4 / 180),
]


def test_what_counts():
    assert [reading.minutes(text) for text, _ in COUNTED] == pytest.approx(
        [minutes for _, minutes in COUNTED]
    )


def test_shown_source_counts(tmp_path):
    (tmp_path / "a.py").write_text("import b\n\n\nclass A:\n    def f(self):\n        return b\n")
    whole = reading.minutes("```{literalinclude} a.py\n```\n", tmp_path)
    part = reading.minutes("```{literalinclude} a.py\n:pyobject: A.f\n```\n", tmp_path)
    last = reading.minutes(
        "```{literalinclude} a.py\n:pyobject: A\n:start-at: return\n```\n", tmp_path
    )
    assert (whole, part, last) == pytest.approx((4 / 12, 2 / 12, 1 / 12))


def test_a_page_fits_one_sitting():
    taken = {page.stem: reading.minutes(page.read_text("utf8"), page.parent) for page in LESSONS}
    long = {name: minutes for name, minutes in taken.items() if minutes > reading.LONGEST}
    assert long == {}, "move what a first reading doesn't need to a folded aside"
