"""Results are computed, never typed: any other number in the prose is on a reviewed list."""

import re
import tomllib
from functools import cache
from pathlib import Path

from tests.book.typed_numbers import pages, typed_numbers

ROOT = Path(__file__).parents[2]
ALLOWED = tomllib.loads((Path(__file__).parent / "allowed_numbers.toml").read_text())["allow"]


def is_allowed(typed):
    return any(
        typed.number in match[0]
        for row in ALLOWED
        for match in re.finditer(row["pattern"], typed.context)
    )


@cache
def typed_on(page):
    return typed_numbers(page.read_text(), page.relative_to(ROOT / "book").as_posix())


def test_no_number_in_prose_is_typed():
    typed = [number for page in pages(ROOT) for number in typed_on(page) if not is_allowed(number)]
    lines = [f"{t.page}:{t.line}: {t.number} in “…{t.context}…”" for t in typed]
    assert not typed, "glue these from a cell, or review and allow them:\n" + "\n".join(lines)


def test_every_entry_of_the_list_is_needed():
    contexts = [typed.context for page in pages(ROOT) for typed in typed_on(page)]
    for row in ALLOWED:
        assert row["why"]
        assert any(re.search(row["pattern"], text) for text in contexts), f"nothing needs {row}"


SHOWN = [
    "Perplexity fell to 12.5 in the end.",
    "| method | score |\n|---|---|\n| LoRA | 12.5 |",
    ":::{admonition} Saves 12.5 percent\nx\n:::",
    "::::{grid} 2\n:::{grid-item-card} A\nIt took 12.5 s.\n:::\n::::",
    "```{figure} a.png\n:alt: A curve that falls to 12.5\n\nIt falls.\n```",
    "```{code-cell} ipython3\n---\nmystnb:\n  figure:\n    caption: Down to 12.5.\n---\nx\n```",
]
OTHER = [
    "Rank 8 of 768 features, 3 layers, 100 steps.",
    "$r = 0.5$ and\n\n$$\nx = 4096\n$$ (eq)\n",
    "`lr=1e-3`, `0.5`, {glue:text}`loss:.2f`, {cite:p}`hu2022lora`",
    "```{code-cell} ipython3\nx = 4096.5\n```",
    "[text](https://example.org/2106.09685)",
]


def test_numbers_count_in_prose_and_not_in_code_mathematics_or_targets_of_links():
    found = {text: [typed.number for typed in typed_numbers(text)] for text in SHOWN + OTHER}
    assert found == {text: ["12.5"] for text in SHOWN} | {text: [] for text in OTHER}
