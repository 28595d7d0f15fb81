"""The list of contents on the start page."""

import contents
import yaml

from tests.book.support import ROOT

TOC = {
    "parts": [
        {"caption": "One", "chapters": [{"file": "book/a", "sections": [{"file": "book/b"}]}]},
        {"caption": "Two", "chapters": [{"file": "book/api/c", "sections": [{"file": "x"}]}]},
    ]
}


def test_the_list_has_parts_pages_what_they_are_for_and_reading_times(tmp_path):
    (tmp_path / "book/api").mkdir(parents=True)
    goals = ":::{tip} Goals\n:class: goals\n- add [two](b.md)\n  numbers;\n- more.\n:::\n"
    (tmp_path / "book/a.md").write_text(f"# A\n\n{goals}{'word ' * 360}\n")
    (tmp_path / "book/b.md").write_text("# B\n")
    header = "---\nmyst:\n  html_meta:\n    description: All names.\n---\n"
    (tmp_path / "book/api/c.md").write_text(f"{header}# C\n\n{goals}")
    assert list(contents.lines(tmp_path, TOC)) == [
        (None, "\n**One**\n"),
        ("book/a", "- [](/book/a.md): Add two numbers. *2 min*"),
        ("book/b", "  - [](/book/b.md) *1 min*"),
        (None, "\n**Two**\n"),
        ("book/api/c", "- [](/book/api/c.md): All names."),
    ]


def test_every_page_in_the_list_says_what_it_is_for():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    listed = [page for page, _ in contents.lines(ROOT, toc) if page]
    sources = {page: (ROOT / f"{page}.md").read_text("utf8") for page in listed}
    silent = [page for page, source in sources.items() if not contents.purpose(source)]
    assert silent == [], "begin with goals, or put a description into the header"
    assert len(listed) > 20
