"""The whole book as one PDF, printed by the browser from the built site: _build/course.pdf.

    python tools/book_pdf.py            # in the repository's folder, after `make book`

The exit code is 1, with one line that says why, if a page is not built, and 3 if there is no
browser.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chromium
import yaml
from pdf_front import STYLE, contents, part_page, title_page
from pdf_join import Joined
from pdf_print import Printed, Printer

OUT = Path("_build") / "course.pdf"
NO_FONT = (
    "note: this machine has no font for Chinese, which prints as boxes "
    "(sudo apt-get install fonts-noto-cjk)"
)


@dataclass(frozen=True)
class Entry:
    """A line of the table of contents: a part (level 0), a chapter (1) or a page in it (2)."""

    level: int
    page: str  # its file, without a suffix; a part, which has a sheet of its own, has none
    caption: str = ""  # of a part


def entries(toc: dict) -> Iterator[Entry]:
    """The lines of _toc.yml, in order.

    >>> toc = {"root": "start", "parts": [{"caption": "One", "chapters": [{"file": "a"}]}]}
    >>> [(entry.level, entry.page) for entry in entries(toc)]
    [(1, 'start'), (0, 'part-1'), (1, 'a')]
    """
    yield Entry(1, toc["root"])
    for number, part in enumerate(toc.get("parts", [toc]), 1):
        if "caption" in part:
            yield Entry(0, f"part-{number}", part["caption"])
        for chapter in part["chapters"]:
            yield Entry(1, chapter["file"])
            for section in chapter.get("sections", ()):
                yield Entry(2, section["file"])


def print_all(printer: Printer, lines: list[Entry], site: Path) -> list[Printed]:
    """Print the parts' sheets and the pages; each starts with the number after the last one's."""
    printed: list[Printed] = []
    number = 1
    chapter = ""
    for line in lines:
        file = site / f"{line.page}.html"
        if line.caption:
            sheet = printer.print_text(
                part_page(line.caption), STYLE, site / f"{lines[0].page}.html"
            )
            part = Printed(file, sheet.pdf, number, [(line.caption, "")])
        else:
            part = printer.print(file, number, chapter if line.level == 2 else "")
        if line.level == 1:
            chapter = part.headings[0][0]
        printed.append(part)
        number += len(part.pdf.pages)
        print(f"{number - 1:5} sheets, {line.page}", flush=True)
    return printed


def add_bookmarks(book: Joined, lines: list[Entry], printed: list[Printed], front: int) -> None:
    """One bookmark for each part, page and second heading, each below what it belongs to."""
    above: list = [None, None, None]
    book.bookmark("Contents", (1, None))
    for line, part in zip(lines, printed, strict=True):
        (title, _), *sections = part.headings
        place = (front + part.first - 1, None)
        mark = book.bookmark(title, place, above[line.level - 1] if line.level else None)
        above[line.level :] = [mark] * (3 - line.level)
        for heading, name in sections:
            book.bookmark(heading, book.places.get((part.file, name), place), mark)


def make(root: Path) -> str:
    """Print the book of a repository; return a line about the result."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    lines = list(entries(yaml.safe_load((root / "_toc.yml").read_text("utf8"))))
    site = (root / "_build" / "html").resolve()
    files = [site / f"{line.page}.html" for line in lines]
    built = [file for line, file in zip(lines, files, strict=True) if not line.caption]
    if missing := [str(file) for file in built if not file.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is not built: run `make book` first")
    with chromium.running() as browser:
        printer = Printer(browser, files)
        printed = print_all(printer, lines, site)
        levels = [line.level for line in lines]
        text = title_page(config["title"], config["author"]) + contents(levels, printed)
        front = printer.print_text(text, STYLE, files[0])
        no_chinese = printer.lacks_chinese()
    book = Joined([Printed(site / "contents", front.pdf, 0), *printed])
    add_bookmarks(book, lines, printed, len(front.pdf.pages))
    book.save(root / OUT, len(front.pdf.pages), config["title"], config["author"])
    for name in sorted(set(book.lost)):
        print(f"note: no place in print for the link to {name}: it leads to the page's start")
    if no_chinese:
        print(NO_FONT)
    return f"{len(book.sheets)} pages in {OUT}"


def main() -> int:
    try:
        print(make(Path.cwd()))
    except (FileNotFoundError, chromium.NoBrowser) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 3 if isinstance(error, chromium.NoBrowser) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
