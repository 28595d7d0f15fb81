"""How long a page takes to read, by what it shows; shown under a page's title.

180 words of prose or 12 lines of shown code take a minute. Titles, tables, captions and the parts
of formulas between spaces are words. Not counted is what a first reading passes over: input that
is hidden or folded, admonitions with `:class: dropdown` or `toggle`, comments, outputs, quizzes.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from faults import guarded
from notebooks import FENCE, OPTION, shown_source
from sphinx.application import Sphinx

WORDS_PER_MINUTE = 180
LINES_PER_MINUTE = 12
LONGEST = 25  # minutes that one sitting allows
ROOT = Path(__file__).resolve().parents[2]
LOOKED_UP = re.compile(
    r"book/(?:index|api/.*|appendix/(?:glossary|notation|bibliography|errata|documents))"
)
SKIPPED = {"bibliography", "eval-rst", "glue:any", "glue:figure", "tableofcontents", "contents"}
HIDDEN = re.compile(r"\b(?:hide|remove)-(?:input|cell)\b")
FOLDED = re.compile(r"\b(?:dropdown|toggle)\b")
PLAIN_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<name>[\w+-]*)\s*$")
MARKUP = re.compile(r"\{[\w:.-]+\}(?=`)|\]\([^)\s]*\)|^\([\w:./-]+\)=$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->|^%.*?$", re.DOTALL | re.MULTILINE)


def is_read_through(docname: str) -> bool:
    """Whether a page is read from start to end, not looked things up in."""
    return not LOOKED_UP.fullmatch(docname)


def words(text: str) -> int:
    """Words of Markdown: what has a letter or digit, without links' targets and roles' names.

    >>> words("The [loss](a/b.md) is $x = 2$, see {cite:p}`hu2022lora`.")
    7
    """
    return len(re.findall(r"\S*\w\S*", MARKUP.sub("", text)))


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def split_options(body: list[str]) -> tuple[str, list[str]]:
    """A directive's options, as text, and its content."""
    if body and body[0].strip() == "---":
        end = body.index("---", 1)
        return "\n".join(body[1:end]), body[end + 1 :]
    count = next((i for i, line in enumerate(body) if not OPTION.match(line)), len(body))
    return "\n".join(body[:count]), body[count:]


def block_size(name: str, argument: str, body: list[str], folder: Path) -> tuple[int, int]:
    """Words and lines of code that a directive shows."""
    options, content = split_options(body)
    if name in SKIPPED or name == "dropdown" or HIDDEN.search(options):
        return 0, 0
    if name == "code-cell":
        return 0, code_lines("\n".join(content))
    if name == "literalinclude":
        given = dict(match.groups() for line in body if (match := OPTION.match(line)))
        try:
            source = shown_source((folder / argument).resolve(), given)
        except (OSError, LookupError, SyntaxError):
            return 0, 0  # Sphinx names the page, and says what is missing
        return 0, max(0, code_lines(source) - 2)  # without the fences
    if FOLDED.search("".join(re.findall(r"^:?class:.*", options, re.MULTILINE))):
        return 0, 0
    prose, code = size(content, folder)
    return words(argument if name != "figure" else "") + prose, code


def size(lines: list[str], folder: Path) -> tuple[int, int]:
    """Words and lines of code that MyST Markdown shows; a directive may hold others."""
    prose = 0
    code = 0
    at = 0
    text = []
    while at < len(lines):
        start = FENCE.match(lines[at]) or PLAIN_FENCE.match(lines[at])
        if start is None:
            text.append(lines[at])
            at += 1
            continue
        close = re.compile(rf"^{start['fence']}\s*$")
        end = next((i for i in range(at + 1, len(lines)) if close.match(lines[i])), len(lines))
        body = lines[at + 1 : end]
        if start.re is PLAIN_FENCE:
            code += code_lines("\n".join(body))
        else:
            more = block_size(start["name"], start["argument"].strip(), body, folder)
            prose, code = prose + more[0], code + more[1]
        at = end + 1
    return prose + words("\n".join(text)), code


def minutes(text: str, folder: Path = ROOT / "book" / "metrics") -> float:
    """Minutes that it takes to read a page's source.

    folder: the page's, which the files that it shows are relative to; any chapter's will do.

    >>> minutes("# A title\\n" + "word " * 178 + "\\n```python\\n" + "x = 1\\n" * 6 + "```\\n")
    1.5
    """
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    prose, code = size(COMMENT.sub("", text).splitlines(), folder)
    return prose / WORDS_PER_MINUTE + code / LINES_PER_MINUTE


def in_words(taken: float) -> str:
    """A sentence for a page, or for several: from an hour on, in half hours.

    >>> in_words(17.6), in_words(0.2)
    ('Reading time: about 18 minutes.', 'Reading time: about 1 minute.')
    >>> in_words(62), in_words(149)
    ('Reading time: about 1 hour.', 'Reading time: about 2½ hours.')
    """
    halves = round(taken / 30)
    if halves >= 2:
        hours = f"{halves // 2}{'½' * (halves % 2)} hour{'s' * (halves > 2)}"
        return f"Reading time: about {hours}."
    whole = max(1, round(taken))
    return f"Reading time: about {whole} minute{'s' * (whole > 1)}."


@guarded
def add_line(app: Sphinx, doctree: nodes.document) -> None:
    """Put the sentence under the page's title."""
    docname = app.env.docname
    source = Path(app.env.doc2path(docname))
    title = doctree.next_node(nodes.title)
    if not is_read_through(docname) or title is None or source.suffix != ".md":
        return
    line = nodes.paragraph(classes=["reading-time"])
    line += nodes.Text(in_words(minutes(source.read_text("utf8"), source.parent)))
    title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", add_line)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
