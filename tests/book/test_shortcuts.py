"""Shortcuts change no page: figures have the same numbers in an outline of a page."""

from types import SimpleNamespace

import shortcuts
from docutils import nodes


def test_an_outline_keeps_figures_with_their_captions_and_drops_text():
    caption = nodes.caption("", "", nodes.Text("What it "), nodes.emphasis("", "shows"))
    figure = nodes.figure("", nodes.image(uri="a.svg"), caption, ids=["fig-a"])
    text = nodes.paragraph("", "", nodes.Text("Long "), nodes.strong("", "text"))
    title = nodes.title("", "", nodes.Text("A "), nodes.literal("", "title"))
    page = nodes.section("", title, text, nodes.admonition("", figure))
    before = [type(node) for node in page.findall(nodes.Element)]
    kept = [type(node) for node in shortcuts.outline(page).findall(nodes.Element)]
    before.remove(nodes.strong)
    assert kept == before and text.children == []
    assert caption.astext() == "What it shows" and title.astext() == "A title"


def test_what_another_process_noted_of_its_own_pages_is_taken_over():
    here, other = SimpleNamespace(x={"a": 1, "b": 2}), SimpleNamespace(x={"a": 0, "b": 3, "c": 4})
    shortcuts.merge_from("x")(None, here, {"b", "c", "d"}, other)
    assert here.x == {"a": 1, "b": 3, "c": 4}
