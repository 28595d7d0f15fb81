"""The navigation of pages outside the table of contents is made once for each folder depth."""

from types import SimpleNamespace

import navigation


def shown(app: SimpleNamespace, page: str, made: list[str], doctree: object = None) -> str:
    """The navigation of a page; `made` takes the names of pages for which Sphinx made one."""

    def toctree(**options) -> str:
        made.append(page)
        return f"{'../' * page.count('/')}index.html {sorted(options.items())}"

    context = {"toctree": toctree}
    navigation.share(app, page, "page.html", context, doctree)
    return context["toctree"](collapse=False, maxdepth=4)


def test_pages_of_one_depth_share_what_sphinx_made_and_others_do_not():
    app = SimpleNamespace(env=SimpleNamespace(all_docs={"book/a", "book/b"}))
    navigation.prepare(app)
    pages = ["_modules/p/x", "_modules/p/y", "_modules/p/q/z", "search", "genindex"]
    made: list[str] = []
    for page in pages:
        assert shown(app, page, made) == shown(app, page, [], doctree=object())
    assert made == ["_modules/p/x", "_modules/p/q/z", "search"]


def test_a_page_of_the_book_has_its_own():
    app = SimpleNamespace(env=SimpleNamespace(all_docs={"book/a", "book/b"}))
    navigation.prepare(app)
    made: list[str] = []
    for page in ("book/a", "book/b"):
        shown(app, page, made, doctree=object())
    assert made == ["book/a", "book/b"]
