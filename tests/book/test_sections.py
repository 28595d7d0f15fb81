"""Numbers of chapters and pages begin at 1, whatever headings a chapter has of its own."""

from types import SimpleNamespace

import sections
from docutils import nodes
from sphinx import addnodes
from sphinx.environment.collectors.toctree import TocTreeCollector


def entry(anchor: str, *inside: nodes.Node) -> nodes.list_item:
    """A page or heading in a table of contents, with what is below it."""
    link = nodes.reference("", anchor, anchorname=anchor, refuri="")
    below = [nodes.bullet_list("", *inside)] if inside else []
    return nodes.list_item("", addnodes.compact_paragraph("", "", link), *below)


def pages(*names: str) -> addnodes.toctree:
    return addnodes.toctree(entries=[(None, name) for name in names], numbered=2)


def test_a_chapters_headings_take_no_number_from_its_pages():
    chapter = entry("", entry("#one"), entry("#two"), pages("first", "second"))
    tocs = {"start": nodes.bullet_list("", entry("", pages("chapter")))}
    tocs["chapter"] = nodes.bullet_list("", chapter)
    tocs |= {name: nodes.bullet_list("", entry("", entry("#a"))) for name in ("first", "second")}
    env = SimpleNamespace(
        tocs=tocs,
        titles={name: nodes.title() for name in tocs},
        toc_secnumbers={},
        numbered_toctrees={"start"},
        get_doctree=lambda name: nodes.section("", pages("chapter")),
    )
    sections.pages_first(None, env)
    TocTreeCollector.assign_section_numbers(TocTreeCollector(), env)
    numbers = {name: found[""] for name, found in env.toc_secnumbers.items()}
    assert numbers == {"chapter": (1,), "first": (1, 1), "second": (1, 2)}


def test_pages_show_the_numbers_of_the_document_and_others_none(monkeypatch):
    numbers = {"book/a": ("8", "2"), "book/c": ("11",)}
    monkeypatch.setattr(sections.documents, "numbers", lambda root: numbers)
    names = ("book/a", "book/b", "book/c")
    env = SimpleNamespace(
        srcdir="",
        tocs={name: nodes.bullet_list("", entry("", entry("#x"))) for name in names},
        titles={name: nodes.title(secnumber=(5, 1)) for name in names},
        toc_secnumbers={"book/a": {"": (8, 7), "#x": (8, 7, 1)}, "book/b": {"": (8, 8)}},
    )
    app = SimpleNamespace(env=env)
    sections.as_in_the_document(app, env)
    links = {name: next(env.tocs[name].findall(nodes.reference)) for name in names}
    assert {name: link.get("secnumber") for name, link in links.items()} == {
        "book/a": ("8", "2"),
        "book/b": None,
        "book/c": ("11",),
    }
    assert [env.titles[name].get("secnumber") for name in names] == [("8", "2"), None, ("11",)]
    sections.forget_numbers(app, env)  # the next build starts as this one did
    assert not any("secnumber" in title for title in env.titles.values())
    page = nodes.document(None, None)
    page += nodes.section("", nodes.title(), nodes.section("", ids=["y", "z"]), ids=["title"])
    for name in names:
        sections.drop_numbers.__wrapped__(app, page, name)
    inside = {"#y": None, "#z": None}  # without these, Sphinx shows the page's number there
    assert env.toc_secnumbers == {
        "book/a": {"": ("8", "2"), "#x": None, **inside},
        "book/b": {"": None, **inside},
        "book/c": {"": ("11",), **inside},
    }
