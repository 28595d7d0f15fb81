"""Playgrounds in a page: a form, and what the course's package computes from it.

    ```{playground} bleu
    ```

The page comes with the form and the view of its default values, made here by the function that
later runs in the browser. Without labs, the page has the view alone.
"""

from __future__ import annotations

import inspect
from html import escape
from typing import Any, ClassVar

from docutils import nodes
from faults import guarded
from lab_pages import add_files
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from course_pkg.pages.labs.playgrounds import playground
from course_pkg.pages.labs.playgrounds.playground import Field, Playground


def control(shown: Playground, field: Field) -> str:
    """A labeled control of the form."""
    name = f'id="play-{shown.name}-{field.name}" name="{field.name}"'
    value = escape(field.default)
    if field.kind == "choice":
        options = "".join(
            f"<option{' selected' if option == field.default else ''}>{escape(option)}</option>"
            for option in field.options
        )
        inner = f"<select {name}>{options}</select>"
    elif field.kind == "integer":
        limits = f'min="{field.low}" max="{field.high}"'
        inner = f'<input type="number" {name} {limits} value="{value}" required>'
    elif field.kind == "lines":
        rows = max(2, field.default.count("\n") + 1)
        limits = f'rows="{rows}" maxlength="{field.most}" spellcheck="false"'
        inner = f"<textarea {name} {limits}>{value}</textarea>"
    else:
        limits = f'maxlength="{field.most}" spellcheck="false" autocomplete="off"'
        inner = f'<input type="text" {name} {limits} value="{value}">'
    within = f" ({field.low} to {field.high})" if field.kind == "integer" else ""
    text = escape(field.label + within)
    label = f'<label for="play-{shown.name}-{field.name}">{text}</label>'
    return f'<div class="lab-field lab-field-{field.kind}">{label}{inner}</div>'


def as_html(shown: Playground, form: bool) -> str:
    """The playground as the page comes with it."""
    controls = "".join(control(shown, field) for field in shown.fields) if form else ""
    return (
        f'<div class="lab-playground" id="play-{shown.name}" data-playground="{shown.name}">'
        f'<p class="lab-title">{escape(shown.title)}</p>'
        + (f'<form class="lab-form" autocomplete="off">{controls}</form>' if form else "")
        + f'<div class="lab-view mathjax_ignore">{shown.default_view()}</div></div>'
    )


class PlaygroundDirective(SphinxDirective):
    """A playground, by its name."""

    required_arguments = 1
    option_spec: ClassVar[dict] = {}

    def run(self) -> list[nodes.Node]:
        """The form and the view, as raw HTML; other formats have nothing of it."""
        try:
            shown = playground(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from None
        for source in (__file__, inspect.getfile(shown.view)):
            self.env.note_dependency(source)  # the page is read again when they change
        html = as_html(shown, self.config.labs_built)
        return [nodes.raw("", html, format="html", playground=shown.name)]


@guarded
def add_scripts(app: Sphinx, pagename: str, _template: str, context: dict, doctree: Any) -> None:
    """Give a page with a playground the one script that loads the rest."""
    if doctree is None:
        return
    if any("playground" in node for node in doctree.findall(nodes.raw)):
        add_files(app)


def setup(app: Sphinx) -> dict:
    app.add_directive("playground", PlaygroundDirective)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
