"""The index of the errata, made from the entries themselves, so that it can't go stale.

    ```{errata-index} 1
    ```

lists the entries about one document by section. An entry is a heading with a number, a label in
front of it, and a line in italics that says which documents and sections it is about:

    (erratum-57)=
    ### 57. Case 1: a penalty that rewards
    *Document 1, section 8.2 (case 1); Document 3, section 11.3.1, part 3.*

The part in parentheses is for readers of the entry, and doesn't appear in the index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ENTRY = re.compile(
    r"^\(erratum-(?P<label>\d+)\)=\n### (?P<number>\d+)\. (?P<title>.+)\n\*(?P<where>[^*]+)\.\*$",
    re.MULTILINE,
)
DOCUMENT = re.compile(r"Document (\d), ")


@dataclass(frozen=True)
class Entry:
    """An erratum: its number, its heading, and pairs of document and section."""

    number: int
    title: str
    places: tuple[tuple[int, str], ...]


def places(where: str) -> tuple[tuple[int, str], ...]:
    """The documents and sections that a line in italics names.

    >>> places("Document 1, section 8.2 (case 1); section 10, question 4; Document 4, section 3.1")
    ((1, 'section 8.2'), (1, 'section 10, question 4'), (4, 'section 3.1'))
    """
    found = []
    document = 0
    for part in re.sub(r" \([^)]*\)", "", " ".join(where.split())).split("; "):
        if named := DOCUMENT.match(part):
            document = int(named[1])
        found.append((document, DOCUMENT.sub("", part)))
    return tuple(found)


def entries(text: str) -> list[Entry]:
    """The errata on a page. Raises ValueError where label and heading have different numbers."""
    found = []
    for match in ENTRY.finditer(text):
        if match["label"] != match["number"]:
            raise ValueError(f"erratum-{match['label']} labels number {match['number']}")
        found.append(Entry(int(match["number"]), match["title"], places(match["where"])))
    return found


def in_order(section: str) -> list[int]:
    """A key that sorts "section 8.2" before "section 10, question 4".

    >>> in_order("section 10, question 4")
    [10, 4]
    """
    return [int(number) for number in re.findall(r"\d+", section)]


def table(document: int, listed: list[Entry]) -> list[str]:
    """A Markdown table of the entries about a document, by section; empty if there are none.

    >>> table(3, [Entry(78, "Sets", ((3, "section 11"),)), Entry(5, "Bias", ((1, "section 2"),))])
    ['| section | entry |', '|:--|:--|', '| 11 | [](erratum-78) |']
    """
    rows = sorted(
        (in_order(section), section, entry.number)
        for entry in listed
        for named, section in entry.places
        if named == document
    )
    lines = ["| section | entry |", "|:--|:--|"] if rows else []
    last = ""
    for _key, section, number in rows:
        shown = section.removeprefix("section ") if section != last else ""
        lines.append(f"| {shown} | [](erratum-{number}) |")
        last = section
    return lines


class ErrataIndex(SphinxDirective):
    """A table of the entries about one document: section, and links with the entries' titles."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        here = Path(self.env.doc2path(self.env.docname))
        listed = []
        for page in sorted(here.parent.glob("errata-*.md")):
            self.env.note_dependency(str(page))
            try:
                listed += entries(page.read_text("utf8"))
            except ValueError as error:
                raise self.error(f"{page.name}: {error}") from error
        lines = table(int(self.arguments[0]), listed)
        if not lines:
            raise self.error(f"no entry is about document {self.arguments[0]}")
        container = nodes.container(classes=["errata-index"])
        self.state.nested_parse(StringList(lines, str(here)), self.content_offset, container)
        return [container]


def setup(app: Sphinx) -> dict:
    app.add_directive("errata-index", ErrataIndex)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
