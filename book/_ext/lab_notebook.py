"""A released exercise notebook as HTML: what its cells are to a reader, and how a page shows them.

The page is whole without a script: tasks as text, formulas for MathJax, code in the theme's colors.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from docutils.nodes import make_id
from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_pkg.grading.questions.question import Question
from course_pkg.pages.labs.assignments import libraries

QUESTION = re.compile(r"""\bcheck\(\s*["']([\w-]+)/([\w/-]+)["']""")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
PART = re.compile(r"^\*\*(\d+[a-z])\*\*", re.MULTILINE)  # **1a** at the start of a task
NUMBER = re.compile(r"^\d+[a-z]?\b")
IN_JUPYTER = re.compile(r"^\*\*In Jupyter\.\*\* .*?(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
SCROLLS = '<div class="pst-scrollable-table-container"><table class="table">\n'


@dataclass(frozen=True)
class ExerciseCell:
    """A cell of a released notebook.

    kind: "text" to read, "prose" to write, "given" or "check" code that is run as it is, "answer"
    code to write. label: the task that it belongs to. question: what a check cell asks, without
    the assignment. points: of a check, or of prose that a person grades. missing: packages that the
    cell needs and a browser lacks. follows: earlier questions whose answers a check also judges by.
    """

    id: str
    kind: str
    source: str
    label: str = ""
    question: str = ""
    points: float = 0
    missing: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()


def exercise_cells(
    notebook: dict[str, Any], able: tuple[str, ...], questions: Mapping[str, Question]
) -> list[ExerciseCell]:
    """The cells of a released notebook. able: the names of questions that a browser can check."""
    found = []
    label = ""
    by_person = 0.0
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        given = cell["metadata"].get("nbgrader", {})
        question = match[2] if (match := QUESTION.search(source)) else ""
        if cell["cell_type"] == "markdown" and given:
            label, by_person = label_of(source, label), given.get("points", 0)
            found.append(ExerciseCell(cell["id"], "text", IN_JUPYTER.sub("", source)))
            continue
        if cell["cell_type"] == "markdown":
            found.append(ExerciseCell(cell["id"], "prose", source, label, points=by_person))
            continue
        kind = "given" if given.get("locked") else "answer"
        if given.get("grade") and question:
            kind = "check"
        packages = tuple(sorted(libraries(source) - {"course_pkg"})) if kind == "given" else ()
        if kind == "check" and question not in able:
            packages = ("Jupyter",)
        task = label if given.get("grade") or given.get("solution") else ""
        points = given.get("points", 0)
        follows = questions[question].follows if kind == "check" else ()
        row = ExerciseCell(cell["id"], kind, source, task, question, points, packages, follows)
        found.append(row)
    return found


def label_of(source: str, before: str) -> str:
    """What the list of points calls a task: its heading, with the number of its part.

    before: the label of the task before it, whose heading holds for it too.

    >>> label_of("## 1 Counts\\n\\n**1a** How many?", "")
    '1a Counts'
    >>> label_of("**1b** And now?", "1a Counts")
    '1b Counts'
    """
    source = FENCED.sub("", source)
    if headings := HEADING.findall(source):
        before = re.sub(r"[`*]", "", headings[-1])
    part = PART.search(source)
    return f"{part[1]} {NUMBER.sub('', before).strip()}" if part else before


def renderer(link_from_page: Callable[[str], str]) -> MarkdownIt:
    """Markdown to HTML; formulas as MathJax finds them, headings with anchors.

    link_from_page: gives the target of a link in the notebook as it is from the page.
    """
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    math = {"inline": r"<span class='math notranslate nohighlight'>\({}\)</span>"}
    math["block"] = r"<div class='math notranslate nohighlight'>\[{}\]</div>"

    def formula(text: str, options: dict) -> str:
        if not options["display_mode"]:
            return math["inline"].replace("{}", html.escape(text))
        return "".join(math["block"].replace("{}", html.escape(part)) for part in lines_of(text))

    dollarmath_plugin(markdown, renderer=formula, allow_space=True, double_inline=True)
    amsmath_plugin(markdown, renderer=lambda text: math["block"].replace("{}", html.escape(text)))

    def link(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        token = tokens[at]
        token.attrSet("href", link_from_page(token.attrGet("href")))
        token.attrSet("class", "reference")
        return self.renderToken(tokens, at, options, env)

    def code(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        return colored(tokens[at].content) if tokens[at].info else block(tokens[at].content)

    def table(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        return SCROLLS

    def end_of_table(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        return "</table></div>\n"

    def heading(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        tokens[at].attrSet("id", make_id(tokens[at + 1].content))
        return self.renderToken(tokens, at, options, env)

    def end_of_heading(self: Any, tokens: list, at: int, options: Any, env: Any) -> str:
        place = f'href="#{make_id(tokens[at - 1].content)}" title="Link to this heading"'
        return f'<a class="headerlink" {place}>#</a>{self.renderToken(tokens, at, options, env)}'

    markdown.add_render_rule("link_open", link)
    markdown.add_render_rule("table_open", table)
    markdown.add_render_rule("table_close", end_of_table)
    markdown.add_render_rule("heading_open", heading)
    markdown.add_render_rule("heading_close", end_of_heading)
    markdown.add_render_rule("fence", code)
    return markdown


def lines_of(formula: str) -> list[str]:
    r"""A displayed formula, cut at the wide spaces between its parts, so that it fits a phone.

    >>> lines_of(r"a = \frac{1 \quad 2}{3}, \qquad b = 4")
    ['a = \\frac{1 \\quad 2}{3},', 'b = 4']
    """
    parts = []
    at = 0
    depth = 0
    for found in re.finditer(r"\\begin\b|\\end\b|\\q?quad\b|\\?[{}]", formula):
        sign = found[0]
        depth += (sign in ("{", r"\begin")) - (sign in ("}", r"\end"))
        if sign.endswith("quad") and depth == 0:
            parts.append(formula[at : found.start()])
            at = found.end()
    return [part.strip() for part in (*parts, formula[at:])]


def colored(code: str) -> str:
    """Python code as the book's pages show it."""
    inner = highlight(code, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return (
        '<div class="highlight-ipython3 notranslate"><div class="highlight">'
        f"<pre><span></span>{inner}</pre></div></div>"
    )


def block(text: str) -> str:
    return f'<div class="highlight"><pre>{html.escape(text)}</pre></div>'


def cell_html(cell: ExerciseCell, markdown: MarkdownIt) -> str:
    """One cell as HTML that reads well without a script."""
    name = f'id="lab-cell-{html.escape(cell.id)}"'
    if cell.kind == "text":
        return f'<div class="lab-text">{markdown.render(cell.source)}</div>'
    if cell.kind == "prose":
        return (
            f'<div class="cell lab-prose" {name}><label>Your answer, for a person to grade'
            f'<textarea rows="6">{html.escape(cell.source)}</textarea></label></div>'
        )
    return (
        f'<div class="cell docutils container lab-{cell.kind}" {name}>'
        f'<div class="cell_input docutils container">{colored(cell.source)}</div></div>'
    )


def title_of(cells: list[ExerciseCell]) -> str:
    """The heading of the first cell."""
    return next(iter(re.findall(r"^# (.+)$", cells[0].source, re.MULTILINE)), "Exercise")


def contents(cells: list[ExerciseCell]) -> str:
    """The headings of an exercise, as the theme's list for the side bar."""
    rows = []
    for cell in cells:
        text = FENCED.sub("", cell.source) if cell.kind == "text" else ""
        for title in re.findall(r"^## (.+)$", text, re.MULTILINE):
            shown = html.escape(re.sub(r"[`*]", "", title))
            rows.append(
                f'<li><a class="reference internal" href="#{make_id(title)}">{shown}</a></li>'
            )
    top = f'<a class="reference internal" href="#">{html.escape(title_of(cells))}</a>'
    return f"<ul><li>{top}<ul>{''.join(rows)}</ul></li></ul>"
