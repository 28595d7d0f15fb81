"""Navigation is made from titles, and once for the pages of a depth that no contents list."""

from types import SimpleNamespace

import navigation
from docutils import nodes
from sphinx import addnodes


def shown(app: SimpleNamespace, page: str, made: list[str], doctree: object = None) -> str:
    """The navigation of a page; `made` takes the names of pages for which Sphinx made one."""

    def toctree(**options) -> str:
        made.append(page)
        return f"{'../' * page.count('/')}index.html {sorted(options.items())}"

    context = {"toctree": toctree}
    navigation.share(app, page, "page.html", context, doctree)
    return context["toctree"](collapse=False, maxdepth=4)


def test_pages_of_one_depth_share_what_sphinx_made_and_pages_of_the_book_do_not():
    app = SimpleNamespace(env=SimpleNamespace(all_docs={"book/a", "book/b"}, tocs={}))
    navigation.prepare(app)
    pages = ["_modules/p/x", "_modules/p/y", "book/exercises/e", "book/exercises/f"]
    pages += ["_modules/p/q/z", "search", "genindex"]
    made: list[str] = []
    for page in pages:
        assert shown(app, page, made) == shown(app, page, [], doctree=object()), page
    for page in ("book/a", "book/b"):
        shown(app, page, made, doctree=object())
    first = ["_modules/p/x", "book/exercises/e", "_modules/p/q/z", "search"]
    assert made == [*first, "book/a", "book/b"]


def test_titles_keep_the_pages_below_and_no_heading():
    link = nodes.reference("", "Title", anchorname="", refuri="a")
    below = addnodes.toctree(entries=[(None, "b")])
    heading = nodes.list_item("", addnodes.compact_paragraph("", "", nodes.Text("Heading")))
    title = addnodes.compact_paragraph("", "", link)
    contents = nodes.bullet_list(
        "", nodes.list_item("", title, nodes.bullet_list("", heading, below))
    )
    kept = navigation.titles(contents)
    assert "Heading" not in kept.astext() and "Title" in kept.astext()
    assert len(list(kept.findall(addnodes.toctree))) == 1
    assert "Heading" in contents.astext()


def test_the_whole_table_of_contents_is_back_after_use():
    whole = {"book/a": nodes.bullet_list("", nodes.list_item("", nodes.paragraph("", "A")))}
    app = SimpleNamespace(env=SimpleNamespace(all_docs={"book/a"}, tocs=whole))
    navigation.prepare(app)
    seen = []
    context = {"toctree": lambda **options: seen.append(app.env.tocs)}
    navigation.share(app, "book/a", "page.html", context, object())
    context["toctree"](titles_only=True)
    context["toctree"](titles_only=False)
    assert seen[0] is app.course_titles and seen[1] is whole and app.env.tocs is whole
