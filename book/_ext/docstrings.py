"""Plain docstrings as reStructuredText: names in code font, parameters as a list, links to pages.

A docstring of the package is plain text: a line of what it computes; lines that begin with a
parameter's name and a colon; `Raises …`; `Source: …`; `Chapter: adapters/lora.`; indented
formulas; doctests. Nothing in it needs to be written for Sphinx.
"""

from __future__ import annotations

import inspect
import re

PAGE = re.compile(r"[\w-]+(?:/[\w-]+)?")
CHAPTER = re.compile(rf"\bChapters?:\s+({PAGE.pattern}(?:,\s+{PAGE.pattern})*)")
# In backticks or quotes; calls, dotted and underscored names; $VARIABLES; exceptions.
CODE = re.compile(
    r"`(?P<quoted>[^`]+)`"
    r"|(?P<string>\"[^\"\s]*\")"
    r"|(?P<name>\$[A-Z_]+|\b[A-Za-z]\w*(?:\.[A-Za-z_]\w+)+(?:\(\))?"
    r"|\b[A-Za-z]\w*_\w+(?:\(\))?|\b[A-Za-z]\w+\(\)|\b[A-Z]\w*(?:Error|Exception|Config)\b)"
)
SPECIAL = re.compile(r"([\\`*_|])")
NEW_SENTENCE = re.compile(r"(?:Raises|Returns|Sources?|Chapters?|Yields)\b")


def code_font(text: str, names: set[str]) -> str:
    """One line of plain text as reStructuredText, its names in code font.

    names: what else counts as a name where a colon follows it, such as parameters.
    """
    done = []
    at = 0
    own = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    found = re.compile(rf"{CODE.pattern}|\b(?P<own>{own})(?=:\s)" if names else CODE.pattern)
    for match in found.finditer(text):
        name = next(part for part in match.groups() if part)
        plain = re.fullmatch(r"[a-z]\.[a-z]\.?", name)  # "e.g." is no name
        done += [SPECIAL.sub(r"\\\1", text[at : match.start()])]
        done += [match[0] if plain else f"\\ ``{name}``\\ "]
        at = match.end()
    return "".join(done) + SPECIAL.sub(r"\\\1", text[at:])


def chapter_links(text: str, pages: set[str]) -> tuple[str, list[str]]:
    """The text with `Chapter: a/b` cut down to marks, and what takes the marks' places."""
    links: list[str] = []

    def mark(match: re.Match) -> str:
        linked = []
        for page in re.split(r",\s+", match[1]):
            known = f"book/{page}" in pages
            linked.append(f":doc:`/book/{page}`" if known else page)
        links.append(f"Chapter: {', '.join(linked)}")
        return f"\0{len(links) - 1}\0"

    return CHAPTER.sub(mark, text), links


def paragraph(lines: list[str], names: set[str], pages: set[str]) -> list[str]:
    """One plain paragraph: sentences that begin with a parameter's name become a list."""
    text, links = chapter_links("\n".join(lines), pages)
    items: list[str] = []
    for line in text.splitlines():
        starts = line.partition(":")[0] in names and ":" in line
        ended = not items or items[-1].rstrip().endswith((".", ":", ")"))
        if starts:
            items.append(f"- {line}")
        elif items and not (ended and (NEW_SENTENCE.match(line) or line.startswith("\0"))):
            items[-1] += f" {line}"
        else:
            items.append(line)
    done = []
    for item in items:
        if item.startswith("- ") and (end := re.search(r" (\0.*)", item)):  # not a parameter's
            items.insert(items.index(item) + 1, end[1])
            item = item[: end.start()]
        bullet = "- " if item.startswith("- ") else ""
        item = code_font(item.removeprefix("- "), names)
        item = re.sub(r"\0(\d+)\0", lambda match: links[int(match[1])], item)
        done += [bullet + item, ""]
    return done


def as_rst(docstring: str, names: set[str], pages: set[str]) -> list[str]:
    """A plain docstring as lines of reStructuredText."""
    done: list[str] = []
    for block in filter(None, re.split(r"\n\s*\n", inspect.cleandoc(docstring))):
        lines = block.splitlines()
        if lines[0].startswith(">>>"):
            done += [".. code-block:: pycon", "", *(f"   {line}" for line in lines), ""]
        elif all(line.startswith("    ") for line in lines):
            done += [".. code-block:: text", "", *(line[1:] for line in lines), ""]
        elif lines[0].startswith("- "):
            marks = ("- " if line.startswith("- ") else "  " for line in lines)
            texts = (code_font(line.removeprefix("- ").strip(), names) for line in lines)
            done += [mark + text for mark, text in zip(marks, texts, strict=True)] + [""]
        else:
            done += paragraph(lines, names, pages)
    return done
