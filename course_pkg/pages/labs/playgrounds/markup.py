"""Pieces of HTML for views. What is given as text is escaped here, and nowhere else."""

from collections.abc import Iterable, Sequence
from html import escape

SIGNS = {"match": "✓ ", "clipped": "✂ ", "none": ""}


class Safe(str):
    """HTML that was made here; every other text is escaped."""

    __slots__ = ()


def as_html(value: object) -> str:
    """The HTML of a piece, or of a text."""
    return str(value) if isinstance(value, Safe) else escape(str(value))


def element(tag: str, *inside: object, **attributes: object) -> Safe:
    """An element. A trailing underscore in an attribute's name is dropped.

    Example:

        >>> print(element("p", "1 < 2", class_="note"))
        <p class="note">1 &lt; 2</p>
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
    )
    return Safe(f"<{tag}{written}>{''.join(map(as_html, inside))}</{tag}>")


def joined(parts: Iterable[object], between: str = "") -> Safe:
    """The pieces one after the other."""
    return Safe(escape(between).join(map(as_html, parts)))


def paragraph(text: object, class_: str = "") -> Safe:
    """A paragraph."""
    return element("p", text, **({"class_": class_} if class_ else {}))


def chip(text: object, kind: str) -> Safe:
    """A word or n-gram in a box. kind: "match", "clipped" or "none", shown by a sign and a look."""
    return element("span", f"{SIGNS[kind]}{text}", class_=f"lab-chip lab-{kind}")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "") -> Safe:
    """A table whose rows begin with a heading of their own."""
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell_text) for cell_text in row[1:]),
        )
        for row in rows
    ]
    named = [element("caption", caption)] if caption else []
    inside = element(
        "table", *named, element("thead", top), element("tbody", *body), class_="table"
    )
    return element("div", inside, class_="lab-table", tabindex=0, role="group", aria_label="table")


def formula(latex: str) -> Safe:
    """A formula of its own line, for MathJax. latex: made by a view, never what a reader typed."""
    return element("div", rf"\[{latex}\]", class_="math lab-formula")


def scientific(value: float, digits: int = 4) -> str:
    """A number for a formula: LaTeX, with a power of ten where `number` has an exponent.

    Example:

        >>> scientific(8.944), scientific(1e-7)
        ('8.944', '1 \\\\cdot 10^{-7}')
    """
    mantissa, _, exponent = number(value, digits).partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits."""
    return f"{value + 0.0:.{digits}g}"  # no "-0"
