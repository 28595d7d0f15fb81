"""Where the book treats each item of the source documents, in tables made from labels on the pages.

    ```{source-document} 1
    ```

is a table of document 1, from the list `appendix/documents.toml`: each item, the heading that
treats it, the code of the package there, and the questions that assignments ask. A page says that
a heading treats an item by a label in front of it, docN-ID:

    (doc1-8.2)=
    (doc2-3.2)=
    # BLEU: overlap of n-grams

`{document-chapters}` lists the chapters of document 1 with their pages. sections.py numbers the
pages by the same labels, so the book's numbers are those of document 1.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from codelinks import SHOWN, used_modules
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LIST = Path("book/appendix/documents.toml")
KINDS = {"part", "section", "passage", "formula", "listing", "algorithm"}
KINDS |= {"table", "figure", "case", "question", "exercise"}
LABEL = re.compile(r"^\((?P<label>doc\d-[\w.-]+)\)=$")
OTHER_LABEL = re.compile(r"^\([\w:./-]+\)=$")
NO_HEADING = 7  # deeper than any heading: a label in front of a paragraph or a list's entry
HEADING = re.compile(r"^(?P<marks>#{1,6}) (?P<title>.+?)\s*$")
FENCE = re.compile(r"^`{3,}")
ASSIGNMENT = re.compile(r"\[`([\w-]+)`\]\((?:\.\./)?exercises\.md\)")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """Something in a document. number: as printed there, or else where the item stands.

    title: the document's own, empty if it has none. questions: "assignment/question".
    left_out: why the book has no place for it.
    """

    id: str
    kind: str
    number: str
    title: str
    english: str
    questions: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(frozen=True)
class Document:
    """A source document: its number in the book, its title, and its items in their order."""

    number: int
    title: str
    english: str
    items: tuple[Item, ...]

    def label(self, item: Item) -> str:
        """The label of a heading that treats an item.

        >>> Document(1, "", "", ()).label(Item("8.2", "section", "8.2", "BLEU", "BLEU"))
        'doc1-8.2'
        """
        return f"doc{self.number}-{item.id}"


@dataclass(frozen=True)
class Place:
    """Where a label stands: its page, and the level of the heading behind it, 1 for the title.

    text: the source from this heading to the next; empty for a label in front of a paragraph.
    """

    docname: str
    level: int
    text: str


def load_documents(root: Path) -> tuple[Document, ...]:
    """The documents of the list. Raises ValueError for an item with an unknown kind."""
    found = []
    for entry in tomllib.loads((root / LIST).read_text("utf8"))["document"]:
        items = [Item(**{**i, "questions": tuple(i.get("questions", ()))}) for i in entry["items"]]
        if unknown := {item.kind for item in items} - KINDS:
            raise ValueError(f"{LIST.name} has the kinds {unknown}: use one of {sorted(KINDS)}")
        found.append(Document(entry["number"], entry["title"], entry["english"], tuple(items)))
    return tuple(found)


def labeled(docname: str, source: str) -> Iterator[tuple[str, Place]]:
    """Every label for an item on a page, with its place.

    >>> found = dict(labeled("a", "(doc1-2)=\\n# A\\n(doc1-q)=\\nWhy?\\n"))
    >>> found["doc1-2"].level, found["doc1-q"].level
    (1, 7)
    """
    lines = source.splitlines()
    fence = ""
    waiting = []
    headings: list[tuple[int, int, list[str]]] = []
    for at, line in enumerate(lines):
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found := FENCE.match(line):
            fence = found[0]
        elif found := LABEL.match(line):
            waiting.append(found["label"])
        elif found := HEADING.match(line):
            headings.append((at, len(found["marks"]), waiting))
            waiting = []
        elif waiting and line.strip() and not OTHER_LABEL.match(line):
            yield from ((label, Place(docname, NO_HEADING, "")) for label in waiting)
            waiting = []
    for index, (at, level, labels) in enumerate(headings):
        later = (start for start, other, _ in headings[index + 1 :] if other <= level)
        text = "\n".join(lines[at : next(later, len(lines))])
        yield from ((label, Place(docname, level, text)) for label in labels)


def places(root: Path) -> dict[str, Place]:
    """The place of every label in the book. Raises ValueError for a label that occurs twice."""
    found: dict[str, Place] = {}
    for file in sorted((root / "book").rglob("*.md")):
        docname = file.relative_to(root).with_suffix("").as_posix()
        for label, place in labeled(docname, file.read_text("utf8")):
            if label in found:
                raise ValueError(f"{label} is on {found[label].docname} and on {docname}")
            found[label] = place
    return found


def page_numbers(document: Document, found: dict[str, Place]) -> dict[str, tuple[str, ...]]:
    """Page → the number of the document's section that it treats.

    It is the section whose label stands in front of the page's title. If further sections of the
    same depth are inside the page, the number is a range, such as ("9", "1–9.2").
    """
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for item in document.items:
        place = found.get(document.label(item))
        if item.kind != "section" or place is None:
            continue
        if place.level == 1:
            first.setdefault(place.docname, item.number)
        begun = first.get(place.docname)
        if begun is not None and begun.count(".") == item.number.count("."):
            last[place.docname] = item.number
    numbers = {}
    for docname, number in first.items():
        shown = number if last[docname] == number else f"{number}–{last[docname]}"
        numbers[docname] = tuple(shown.split(".", number.count(".")))
    return numbers


def numbers(root: Path) -> dict[str, tuple[str, ...]]:
    """Page → its number, from document 1; empty for a book that has no list of documents."""
    if not (root / LIST).is_file():
        return {}
    return page_numbers(load_documents(root)[0], places(root))


def shown(_root: Path, text: str) -> list[str]:
    """The modules whose source a page's text shows."""
    return [path.replace("/", ".") for path in SHOWN.findall(text)]


@cache
def used(root: Path, text: str) -> list[str]:
    """The modules that a page's text shows or imports; several items share a heading."""
    return used_modules(root, text)


def modules_at(root: Path, place: Place) -> list[str]:
    """The package's modules that the text under a heading shows, or else imports.

    For a page's title, or a heading without code, those of the whole page. Modules outside the
    folders, such as course_pkg.pages.slider, are tools and left out.
    """
    page = (root / f"{place.docname}.md").read_text("utf8")
    here = place.text if place.level > 1 else ""
    for text, find in ((here, shown), (here, used), (page, shown), (page, used)):
        names = find(root, text)
        if inner := [name for name in dict.fromkeys(names) if name.count(".") > 1]:
            return inner
    return []


def questions_at(root: Path, item: Item, place: Place | None) -> str:
    """Markdown for an item's questions; without any, a page's title has the page's assignments."""
    asked: dict[str, list[str]] = {}
    for question in item.questions:
        assignment, _, name = question.partition("/")
        asked.setdefault(assignment, []).append(name)
    if not asked and place is not None and place.level == 1:
        page = (root / f"{place.docname}.md").read_text("utf8")
        asked = {name: [] for name in ASSIGNMENT.findall(page)}
    links = {name: f"[`{name}`](/book/exercises.md)" for name in asked}
    return "; ".join(
        links[name] + (": " + ", ".join(names) if names else "") for name, names in asked.items()
    )


def item_text(item: Item) -> str:
    """Markdown for an item: number and title, and the title in English.

    >>> item_text(Item("8.2", "section", "8.2", "BLEU 分数", "BLEU"))
    '**8.2 BLEU 分数**: BLEU'
    >>> item_text(Item("formula-3", "formula", "Formula 3", "", "Cross-entropy"))
    'Formula 3: Cross-entropy'
    """
    name = " ".join(part for part in (item.number, item.title) if part)
    bold = f"**{name}**" if item.kind in ("part", "section") else name
    return bold if item.english == item.title else f"{bold}: {item.english}"


def page_title(root: Path, docname: str) -> str:
    """A page's title up to its colon; the first page's title is the book's."""
    if docname == "book/index":
        return "Start page"
    found = re.search(r"^# (.+?)\s*$", (root / f"{docname}.md").read_text("utf8"), re.MULTILINE)
    return found[1].split(": ")[0] if found else docname


def table(root: Path, document: Document, found: dict[str, Place]) -> list[str]:
    """A Markdown table of a document's items."""
    lines = ["| in the document | in the book | code | exercises |", "|:--|:--|:--|:--|"]
    for item in document.items:
        label = document.label(item)
        place = found.get(document.label(item))
        where = item.left_out
        code = ""
        if place is not None:
            page = f"[{page_title(root, place.docname)}](/{place.docname}.md): "
            text = item.english if place.level == NO_HEADING else ""
            where = ("" if place.level == 1 else page) + f"[{text}]({label})"
            names = [(name.partition(".")[2], name) for name in modules_at(root, place)]
            code = ", ".join(f"{{py:mod}}`{short} <{name}>`" for short, name in names)
        elif not where:
            logger.warning("no heading has the label %s", label, type="documents")
        cells = (item_text(item), where, code, questions_at(root, item, place))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def chapters(document: Document, found: dict[str, Place]) -> list[str]:
    """A Markdown list of a document's chapters, with their pages."""
    return [
        f"- {item.number} {item.title}: [](/{place.docname}.md)"
        for item in document.items
        if item.kind == "section" and "." not in item.number
        if (place := found.get(document.label(item))) is not None
    ]


class Documents(SphinxDirective):
    """What both directives share: read the list and the pages, and parse Markdown."""

    def show(self, number: int, style: str, lines_of) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / LIST))
        for file in (root / "book").rglob("*.md"):
            self.env.note_dependency(str(file))
        try:
            documents = {each.number: each for each in load_documents(root)}
            lines = lines_of(root, documents[number], places(root))
        except (KeyError, TypeError, ValueError) as error:
            raise self.error(str(error)) from error
        container = nodes.container(classes=[style])
        source = StringList(lines, self.get_source_info()[0])
        self.state.nested_parse(source, self.content_offset, container)
        return [container]


class SourceDocument(Documents):
    """The table of one document."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.show(int(self.arguments[0]), "source-document", table)


class DocumentChapters(Documents):
    """The chapters of document 1 and their pages."""

    def run(self) -> list[nodes.Node]:
        return self.show(1, "document-chapters", lambda _root, *found: chapters(*found))


def setup(app: Sphinx) -> dict:
    app.add_directive("source-document", SourceDocument)
    app.add_directive("document-chapters", DocumentChapters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
