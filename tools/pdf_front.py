"""Sheets of the PDF that the site doesn't have: title, contents, and one for each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pdf_print import Printed

STYLE = """
.title { break-after: page; padding-top: 62mm; text-align: center; }
.title h1 { font-size: 30pt; line-height: 1.2; text-wrap: balance; margin: 0 0 14mm; }
.title .author { font-size: 14pt; }
.title .note { margin: 60mm auto 0; max-width: 110mm; font-size: 9.5pt; color: #4a5260; }
.contents { font-size: 10.5pt; }
.contents h2 { font-size: 20pt; margin: 0 0 8mm; }
.contents a { display: flex; align-items: baseline; gap: 4pt; break-inside: avoid; }
.contents a { color: inherit; text-decoration: none; }
.contents a i { flex: 1; min-width: 8mm; border-bottom: 1pt dotted #888; }
.contents a b { font-weight: inherit; min-width: 8mm; text-align: right; }
.contents a span { max-width: 132mm; }
.contents .level-0 { font-weight: 700; font-size: 12.5pt; margin: 7mm 0 2mm; break-after: avoid; }
.contents .level-1 { font-weight: 700; margin-top: 2.2mm; }
.contents .level-1:has(+ .level-2) { break-after: avoid; }
.contents .level-2 { padding-left: 6mm; }
.part { padding-top: 80mm; text-align: center; font-size: 26pt; font-weight: 700; }
.part { text-wrap: balance; }
"""
NOTE = (
    "Printed from the course’s site. Code that only draws a figure or a table is folded there and "
    "left out here; sliders show their first frame."
)


def title_page(title: str, author: str) -> str:
    """The title page as HTML."""
    return (
        f'<div class="title"><h1>{escape(title)}</h1><p class="author">{escape(author)}</p>'
        f'<p class="note">{NOTE}</p></div>'
    )


def part_page(caption: str) -> str:
    """A part's own sheet as HTML.

    >>> part_page("Begin & end")
    '<div class="part">Begin &amp; end</div>'
    """
    return f'<div class="part">{escape(caption)}</div>'


def contents(levels: Iterable[int], printed: Sequence[Printed]) -> str:
    """The table of contents as HTML: a link with a number for each part (level 0) and page."""
    rows = "".join(
        f'<a class="level-{level}" href="{part.file.as_uri()}">'
        f"<span>{escape(part.headings[0][0])}</span><i></i><b>{part.first}</b></a>"
        for level, part in zip(levels, printed, strict=True)
    )
    return f'<div class="contents"><h2>Contents</h2>{rows}</div>'
