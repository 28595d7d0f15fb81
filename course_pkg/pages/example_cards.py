"""Texts side by side on a page, such as a model's answers before and after."""

from collections.abc import Mapping
from html import escape

BOX = "border:1px solid #8888;border-radius:6px;padding:.4rem .7rem;text-align:left"
GRID = "display:grid;gap:.6rem;margin-bottom:1.2rem"


def example_cards(texts: Mapping[str, str], width: str = "13rem") -> str:
    """HTML of a card for each text, under its name; on a narrow screen the cards are stacked.

    >>> example_cards({"before": "a < b"}).count("a &lt; b")
    1
    """
    cards = []
    for name, text in texts.items():
        lines = escape(text.strip()).replace("\n", "<br>")
        cards.append(f'<div style="{BOX}"><strong>{escape(name)}</strong><br>{lines}</div>')
    columns = f"grid-template-columns:repeat(auto-fit,minmax(min({width},100%),1fr))"
    return f'<div style="{GRID};{columns}">{" ".join(cards)}</div>'


def whole_sentences(text: str) -> str:
    """The text up to its last full sentence, or all of it if it has none.

    >>> whole_sentences("It rains. The sea is rou")
    'It rains.'
    """
    end = max(text.rfind(mark) for mark in ".!?")
    return text[: end + 1] if end >= 0 else text
