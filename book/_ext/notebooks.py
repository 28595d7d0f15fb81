"""Every page that runs can be downloaded as an executed notebook, its numbers filled in.

myst-nb saves the executed notebook of each page, but its text still holds MyST: glued
values are names, shown source is a directive. Jupyter shows that as raw markup. Here the
text is turned into plain Markdown (glued values, shown source, admonitions, references,
pictures as attachments), the file is put beside the page's source, and the theme's
download menu offers it.

What plain Markdown has no word for (labels, tab sets, layout) is dropped, its text kept.
"""

from __future__ import annotations

import ast
import base64
import json
import mimetypes
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import costs
import nbformat
from execution import path_of
from faults import guarded
from sphinx.application import Sphinx

FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:.-]+)\}[ ]*(?P<argument>.*)$")
OPTION = re.compile(r"^:(?P<key>[\w-]+):[ ]*(?P<value>.*)$")
ROLE = re.compile(r"\{(?P<role>[\w:.-]+)\}`(?P<text>[^`]+)`")
ADMONITIONS = {
    "note",
    "tip",
    "warning",
    "important",
    "hint",
    "caution",
    "seealso",
    "admonition",
    "dropdown",
    "exercise",
    "solution",
    "prf:algorithm",
    "prf:definition",
    "card",
}


def glued_values(executed: Path) -> dict[str, str]:
    """The plain text of every value that a page glued, by name; myst-nb keeps them in a file."""
    file = executed.with_suffix(".glue.json")
    glued = json.loads(file.read_text("utf8")) if file.is_file() else {}
    values = {}
    for name, output in glued.items():
        texts = [text for mime, text in output["data"].items() if mime.endswith("text/plain")]
        values[name] = "".join(texts)
    return values


def fill_role(match: re.Match, values: dict[str, str]) -> str:
    """Plain Markdown for one MyST role."""
    role = match["role"]
    text = match["text"]
    if role in ("glue", "glue:", "glue:text", "glue:any"):
        name, _, spec = text.partition(":")
        if name not in values:  # myst-nb has warned: the page did not run to its end
            return f"({name})"
        plain = values[name]
        return format(ast.literal_eval(plain), spec) if spec else plain.strip("'\"")
    if role == "math":
        return f"${text}$"
    if role.startswith("cite"):
        return f"[{text}]"
    titled = re.fullmatch(r"(.+?)\s*<[^>]+>", text, re.DOTALL)
    return titled[1] if titled else text.lstrip("~/").rsplit("/", 1)[-1]


def shown_source(path: Path, options: Mapping[str, str]) -> str:
    """A fenced block with a file's source, as literalinclude shows it with these options.

    pyobject: one `Class.method` alone. start-at: a text in the first line that is shown.
    Raises LookupError if the file has no such object or line, OSError if there is no such file.
    """
    pyobject = options.get("pyobject")
    text = path.read_text("utf8")
    if pyobject:
        scope: Any = ast.parse(text)
        for part in pyobject.split("."):
            named = [node for node in scope.body if getattr(node, "name", None) == part]
            if not named:
                raise LookupError(f"{path.name} has no {pyobject}")
            scope = named[0]
        first = min([scope.lineno, *(d.lineno for d in scope.decorator_list)])
        text = "\n".join(text.splitlines()[first - 1 : scope.end_lineno])
    if start := options.get("start-at"):
        lines = text.splitlines()
        found = [number for number, line in enumerate(lines) if start in line]
        if not found:
            raise LookupError(f"{path.name} has no line with {start!r}")
        text = textwrap.dedent("\n".join(lines[found[0] :]))
    return f"```python\n{text.rstrip()}\n```"


def plain_block(name: str, argument: str, body: list[str], folder: Path, cell: Any) -> list[str]:
    """Plain Markdown for one MyST directive whose body is already plain."""
    options = {}
    while body and (option := OPTION.match(body[0])):
        options[option["key"]] = option["value"]
        body = body[1:]
    if name == "literalinclude":
        return [shown_source((folder / argument).resolve(), options)]
    if name in ("figure", "image"):
        path = (folder / argument).resolve()
        mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        data = base64.b64encode(path.read_bytes()).decode()
        cell.setdefault("attachments", {})[path.name] = {mime: data}
        return [f"![{options.get('alt', '')}](attachment:{path.name})", "", *body]
    if name == "math":
        return ["$$", *body, "$$"]
    if name in ADMONITIONS:
        title = argument or name.rpartition(":")[2].capitalize()
        return [f"> **{title}**", ">", *(f"> {line}".rstrip() for line in body)]
    if name in ("bibliography", "tableofcontents", "playground"):
        return []
    return [*([f"**{argument}**", ""] if argument else []), *body]


def plain_markdown(lines: list[str], folder: Path, cell: Any) -> list[str]:
    """Markdown lines with MyST's directives turned into plain Markdown, inside out."""
    done: list[str] = []
    at = 0
    while at < len(lines):
        start = FENCE.match(lines[at])
        if start is None:
            if not re.fullmatch(r"\([\w:./-]+\)=", lines[at]):
                done.append(lines[at])
            at += 1
            continue
        close = re.compile(rf"^{start['fence']}\s*$")
        end = next((i for i in range(at + 1, len(lines)) if close.match(lines[i])), len(lines))
        body = plain_markdown(lines[at + 1 : end], folder, cell)
        done += plain_block(start["name"], start["argument"], body, folder, cell)
        at = end + 1
    return done


def plain_notebook(executed: Path, page: Path) -> nbformat.NotebookNode:
    """The executed notebook of `page`, readable in plain Jupyter."""
    notebook = nbformat.read(executed, as_version=4)
    values = glued_values(executed)
    notebook.cells = [cell for cell in notebook.cells if not costs.is_measuring(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = "\n".join(plain_markdown(cell.source.splitlines(), page.parent, cell))
            text = re.sub(r"^\$\$ \([\w:-]+\)$", "$$", text, flags=re.MULTILINE)  # a label
            cell.source = ROLE.sub(lambda match: fill_role(match, values), text)
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": notebook.metadata.get("language_info", {"name": "python"}),
    }
    return notebook


@guarded
def offer_notebook(app: Sphinx, pagename: str, _template: str, context: dict, doctree: Any) -> None:
    """Write the page's notebook and name it where the theme's download menu looks."""
    executed = path_of(app, pagename)
    if doctree is None or not executed.is_file():
        return
    notebook = plain_notebook(executed, Path(app.env.doc2path(pagename)))
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return
    target = Path(app.outdir, "_sources", f"{pagename}.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook)
    target.write_text(text, "utf8")
    script = f"saveNotebook({json.dumps(target.name)}, {json.dumps(text)});\n"
    target.with_name(f"{target.name}.js").write_text(script, "utf8")
    context["ipynb_source"] = f"{pagename}.ipynb"


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", offer_notebook, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
