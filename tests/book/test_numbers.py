"""Results are computed, never typed: every number in the prose that isn't is on a reviewed list."""

import re
import tomllib
from pathlib import Path

import pytest

from .typed_numbers import pages, typed_numbers

ROOT = Path(__file__).parents[2]
ALLOWED = tomllib.loads((Path(__file__).parent / "allowed_numbers.toml").read_text())["allow"]


def is_allowed(typed):
    return any(
        typed.number in match[0]
        for row in ALLOWED
        for match in re.finditer(row["pattern"], typed.context)
    )


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_number_in_prose_is_typed(page):
    name = page.relative_to(ROOT / "book").as_posix()
    typed = [t for t in typed_numbers(page.read_text(), name) if not is_allowed(t)]
    lines = [f"{t.page}:{t.line}: {t.number} in “…{t.context}…”" for t in typed]
    assert not typed, "glue these from a cell, or review and allow them:\n" + "\n".join(lines)


def test_the_list_allows_nothing_that_is_not_there():
    found = [
        typed
        for page in pages(ROOT)
        for typed in typed_numbers(page.read_text(), page.relative_to(ROOT / "book").as_posix())
    ]
    for row in ALLOWED:
        assert row["why"]
        assert any(re.search(row["pattern"], t.context) for t in found), f"nothing needs {row}"


PLANTED = [
    "Perplexity fell to 12.5 in the end.",
    "It has 65,536 parameters.",
    "It has 65536 parameters.",
    "| method | score |\n|---|---|\n| LoRA | 0.87 |",
    "- 3.5 times faster",
    "## Up to 2.5 times faster",
    ":::{admonition} Note\nIt took 12.5 s.\n:::",
    ":::{admonition} Saves 99.6 percent\nx\n:::",
    "::::{grid} 2\n:::{grid-item-card} A\nIt took 12.5 s.\n:::\n::::",
    "```{figure} a.png\n:alt: A curve that falls to 12.5\n\nIt falls.\n```",
    "```{figure} a.png\n:alt: A curve\n\nIt falls to 12.5.\n```",
    "```{code-cell} ipython3\n---\nmystnb:\n  figure:\n    caption: It falls to 12.5.\n---\nx\n```",
    "**Loss 12.5**, [a loss of 12.5](x.md)",
    "> quoted 12.5",
]


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_number_is_found(text):
    assert {re.sub(",", "", t.number) for t in typed_numbers(text)} & {
        "12.5", "65536", "0.87", "3.5", "2.5", "99.6"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "Rank 8 of 768 features, 3 layers, 100 steps.",
        "$r = 0.5$ and\n\n$$\nx = 4096\n$$ (eq)\n",
        "`lr=1e-3`, `0.5`, {glue:text}`loss:.2f`, {cite:p}`hu2022lora`",
        "```{code-cell} ipython3\nx = 4096.5\n```",
        "```python\nx = 4096.5\n```",
        "[text](https://example.org/2106.09685)",
        "```{literalinclude} x.py\n:lines: 1-1000\n```",
    ],
)
def test_what_is_no_typed_result_is_left_alone(text):
    assert typed_numbers(text) == []
