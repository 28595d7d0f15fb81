"""Finds results that were typed: numbers in a page's prose that no cell computed.

A decimal, or an integer of 1,000 or more, counts; so do the captions and alternative texts that
code cells carry. What stands in math, code, citations, links' targets or roles does not.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.mdit_to_docutils.base import DocutilsRenderer
from myst_parser.parsers.mdit import create_md_parser

NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d{4,})(?![\w])")
PROSE_DIRECTIVES = re.compile(
    r"^\{(?:admonition|note|tip|warning|important|seealso|figure|margin|sidebar|dropdown|details|"
    r"grid[\w-]*|card|tab-[\w-]+|prf:[\w-]+|exercise|solution|glossary|epigraph|list-table|table|"
    r"topic|hint|caution|attention|danger|error|quote|rubric|centered)\}"
)
MATH = {"math_inline", "math_inline_double", "math_block", "math_block_label", "amsmath"}
SKIPPED = MATH | {"code_inline", "code_block", "myst_role", "html_inline", "html_block"}
EXTENSIONS = {"dollarmath", "colon_fence", "deflist", "amsmath", "attrs_inline"}


@dataclass(frozen=True)
class TypedNumber:
    """A number in prose: the page, the line it stands near, the number, and its sentence."""

    page: str
    line: int
    number: str
    context: str


def typed_numbers(text: str, page: str = "", first_line: int = 0) -> list[TypedNumber]:
    """Every typed number in the prose of a MyST page."""
    parser = create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), DocutilsRenderer)
    found = []
    for token in parser.parse(text):
        line = first_line + (token.map[0] if token.map else 0)
        if token.type == "inline":
            found += _numbers(_prose(token), page, line)
        elif token.type in ("fence", "colon_fence"):
            found += _in_fence(token, page, line)
    return found


def _in_fence(token: Token, page: str, line: int) -> list[TypedNumber]:
    info = token.info.strip()
    if info.startswith("{code-cell}"):
        return _numbers(" ".join(_captions(token.content)), page, line)
    if PROSE_DIRECTIVES.match(info):
        options = re.match(r"(?:\s*:[\w-]+:.*\n)*", token.content)
        alt = re.findall(r"^:alt:\s*(.*)$", options[0], re.MULTILINE)
        title = info.partition("}")[2] if "figure" not in info else ""
        body = token.content[options.end() :]
        found = _numbers(" ".join([title, *alt]), page, line)
        return found + typed_numbers(body, page, line + options[0].count("\n") + 1)
    return []


def _captions(cell: str) -> list[str]:
    """The caption and the alternative text in a code cell's options."""
    header = re.match(r"---\n(.*?)^---\n", cell, re.DOTALL | re.MULTILINE)
    options = (yaml.safe_load(header[1]) or {}).get("mystnb", {}) if header else {}
    image = options.get("image", {})
    figure = options.get("figure", {})
    return [str(image.get("alt", "")), str(figure.get("caption", ""))]


def _prose(token: Token) -> str:
    parts = []
    for child in token.children or []:
        if child.type in SKIPPED:
            parts.append(" x ")
        elif child.type == "image":
            parts.append(str(child.content))
        else:
            parts.append(child.content if child.type == "text" else " ")
    return "".join(parts)


def _numbers(prose: str, page: str, line: int) -> list[TypedNumber]:
    return [
        TypedNumber(page, line + 1, match[0], prose[max(0, match.start() - 30) : match.end() + 20])
        for match in NUMBER.finditer(prose)
        if float(match[0].replace(",", "")) >= 1000 or "." in match[0]
    ]


def pages(root: Path) -> list[Path]:
    """Every page of the book below `root`, and no generated one."""
    return sorted(path for path in (root / "book").rglob("*.md") if "_" not in path.parts[-2][:1])
