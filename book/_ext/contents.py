"""A list of the book's pages on a page, made from `_toc.yml`: titles, what each is for, how long.

    ```{course-contents}
    ```

With names of pages in it, one on each line, it lists those alone, in this order, and the time that
all of them take.

What a page is for is the description in its header (`myst: html_meta: description:`), or else the
first of its goals (`:class: goals`). Sections of a chapter that is looked up, such as the package,
are left to that chapter's own page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import documents
import yaml
from docutils import nodes
from docutils.statemachine import StringList
from reading import in_words, minutes
from searching import is_looked_up
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DESCRIPTION = re.compile(r"\A---\n.*?^    description: (.+?)$.*?^---$", re.MULTILINE | re.DOTALL)
GOAL = re.compile(r"^:class: goals\n+- (.*?)(?=\n- |\n:::)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\{[^}]*\})|\s*\{cite:\w\}`[^`]*`")


def purpose(source: str) -> str:
    """What a page is for, in a sentence of Markdown without links; empty if it says nothing.

    >>> purpose("# A\\n:::{tip} Goals\\n:class: goals\\n- [sum](a.md)\\n  numbers;\\n- b.\\n:::\\n")
    'Sum numbers.'
    >>> purpose("---\\nmyst:\\n  html_meta:\\n    description: What it is.\\n---\\n# A\\n")
    'What it is.'
    >>> purpose("# A\\n\\nText.\\n")
    ''
    """
    found = DESCRIPTION.search(source) or GOAL.search(source)
    text = " ".join(LINK.sub(r"\1", found[1]).split()).rstrip(";.") if found else ""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def entry(root: Path, docname: str, indent: str, numbers: dict[str, tuple[str, ...]]) -> str:
    """The list item of a page, with the number that it has, if any."""
    file = root / f"{docname}.md"
    source = file.read_text("utf8")
    about = purpose(source)
    number = f"{'.'.join(numbers[docname])} " if docname in numbers else ""
    item = f"{indent}- {number}[](/{docname}.md)" + (f": {about}" if about else "")
    if not is_looked_up(docname):
        item += f" *{max(1, round(minutes(source, file.parent)))} min*"
    return item


def lines(root: Path, toc: dict) -> Iterator[tuple[str | None, str]]:
    """Each page's name and list item, and each part's caption with None."""
    numbers = documents.numbers(root)
    for part in toc.get("parts", [toc]):
        if "caption" in part:
            yield None, f"\n**{part['caption']}**\n"
        for chapter in part["chapters"]:
            sections = chapter.get("sections", ()) if not is_looked_up(chapter["file"]) else ()
            yield chapter["file"], entry(root, chapter["file"], "", numbers)
            for section in sections:
                yield section["file"], entry(root, section["file"], "  ", numbers)


def chosen(root: Path, names: list[str]) -> Iterator[tuple[str | None, str]]:
    """Each named page (from book/) and its list item; then None and the time of all."""
    numbers = documents.numbers(root)
    total = 0.0
    for name in names:
        docname = f"book/{name}"
        yield docname, entry(root, docname, "", numbers)
        if not is_looked_up(docname):
            file = root / f"{docname}.md"
            total += minutes(file.read_text("utf8"), file.parent)
    yield None, f"\n{in_words(total)}\n"


class CourseContents(SphinxDirective):
    """The list, read again when a page changes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        text = []
        try:
            if self.content:
                items = list(chosen(root, [line.strip() for line in self.content]))
            else:
                items = list(lines(root, yaml.safe_load((root / "_toc.yml").read_text("utf8"))))
        except FileNotFoundError as error:
            where = "this list" if self.content else "_toc.yml"
            raise self.error(f"{where} names {error.filename}, which is not there") from error
        for docname, line in items:
            if docname:
                self.env.note_dependency(str(root / f"{docname}.md"))
            text += line.split("\n")
        content = nodes.container(classes=["course-contents"])
        self.state.nested_parse(StringList(text, self.get_source_info()[0]), 0, content)
        return [content]


def setup(app: Sphinx) -> dict:
    app.add_directive("course-contents", CourseContents)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
