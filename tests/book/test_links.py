"""Code and book name each other: every public name its page, every page the modules it uses."""

import ast
import re
from pathlib import Path

import api
import codelinks
import pytest
import rerun

from .support import HEADER, ROOT

PACKAGE = ROOT / "course_pkg"
PAGES = sorted((ROOT / "book").rglob("*.md"))
CHAPTERS = re.compile(r"\bChapters?:\s*(.*?)(?:\.\s|\.?\s*\Z|\n\s*\n)", re.DOTALL)


def chapters(text: str) -> list[str]:
    """The pages that a text names after `Chapter:`, with whatever else stands there."""
    return [page.strip() for found in CHAPTERS.findall(text) for page in found.split(",")]


def test_every_module_says_its_page_once():
    odd = {
        str(path.relative_to(ROOT)): len(found)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py") and "checks" not in path.parts
        if len(found := chapters(ast.get_docstring(ast.parse(path.read_text("utf8"))) or "")) != 1
    }
    assert odd == {}, "end the module's docstring with `Chapter: folder/page.`"


def all_docstrings(path: Path) -> list[str]:
    """Every docstring of a file: of the module, and of classes, functions and methods."""
    kinds = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [
        node for node in ast.walk(ast.parse(path.read_text("utf8"))) if isinstance(node, kinds)
    ]
    return [ast.get_docstring(node) or "" for node in found]


def is_page(name: str) -> bool:
    """Whether the book has the page, or a chapter of that name."""
    return any((ROOT / "book" / f"{name}{end}").is_file() for end in (".md", "/index.md"))


def test_every_page_that_is_named_exists():
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for docstring in all_docstrings(path)
        for page in chapters(docstring)
        if not is_page(page)
    ]
    assert missing == [], "name a page that is in the book"


@pytest.mark.parametrize(
    ("docstring", "named"),
    [
        ("One line. Chapter: setup.", ["setup"]),
        ("Source: x, section 3. Chapter: a/b, c/d-e.\n\n>>> 1\n1", ["a/b", "c/d-e"]),
        ("Chapter: a/b.\nMore.", ["a/b"]),
        ("Chapters: a/b,\n    c/d.", ["a/b", "c/d"]),
        ("Chapter: the one on LoRA.", ["the one on LoRA"]),
        ("Read the chapter on setup.", []),
    ],
)
def test_what_counts_as_naming_a_page(docstring, named):
    assert chapters(docstring) == named


def test_every_module_is_described_on_a_page():
    described = set()
    for page in (ROOT / "book" / "api").glob("*.md"):
        text = page.read_text("utf8")
        for names, without in re.findall(r"\.\. package:: (.+)\n(?:\s+:without: (.+)\n)?", text):
            for name in names.split():
                described |= set(api.public_modules(ROOT, name, set(without.split())))
    every = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if path.stem not in ("__init__", "__main__") and "checks" not in path.parts
    }
    assert described == every


def test_every_page_with_code_ends_with_links_to_the_modules_it_uses(site):
    """As built: each module's name leads to the place on an API page where it is described."""
    root = site.parents[1]
    linked = 0
    for source in sorted((root / "book").rglob("*.md")):
        html = site / source.relative_to(root).with_suffix(".html")
        wanted = codelinks.used_modules(root, source.read_text("utf8"))
        if not wanted:
            continue
        line = re.search(r'<p class="code-used">(.*?)</p>', html.read_text("utf8"), re.DOTALL)
        assert line, f"{html}: no line with the modules {wanted}"
        links = dict(re.findall(r'href="([^"]+)" title="([\w.]+)"', line[1]))
        assert sorted(links.values()) == wanted
        for target in links:
            page, _, anchor = target.partition("#")
            described = ((html.parent / page) if page else html).resolve().read_text("utf8")
            assert f'id="{anchor}"' in described
        linked += 1
    assert linked


def test_names_in_descriptions_lead_back_to_the_page(small_book):
    text = (small_book / "_build/html/book/api.html").read_text("utf8")
    described = text.split('id="course_pkg.sums.Total"')[1].split('id="course_pkg.sums.joined"')[0]
    assert re.search(r'Chapter: <a [^>]*href="sample.html"', described)
    assert "nowhere/planned" in described  # a page that is not there is named, not linked
    assert re.search(r'href="\.\./_modules/course_pkg/sums\.html#[^"]+"', described)  # its source


def test_plain_docstrings_become_names_lists_and_blocks(small_book):
    text = (small_book / "_build/html/book/api.html").read_text("utf8")
    plain = re.sub(r"</?span[^>]*>", "", text)
    assert re.search(r"<li><p><code[^>]*>parts</code>: the numbers, \(n,\) of them", plain)
    assert re.search(r"a factor \* on the <code[^>]*>sum_of_parts</code>", plain)
    assert re.search(r"<p>Raises <code[^>]*>ValueError</code> if there are none.</p>", plain)
    assert re.search(r"<pre>\s*total = x_1 \+ x_2", plain)
    assert re.search(r"highlight-pycon.*?Total\(\(1,.*?2\)\)\.mean", plain, re.DOTALL)


def test_imports_and_shown_sources_count_as_used():
    text = HEADER + (
        "```{literalinclude} ../../course_pkg/adapters/lora.py\n:pyobject: LoRALinear\n```\n"
        "```{code-cell} ipython3\nfrom course_pkg.lm import load\nimport torch, course_pkg\n"
        "from course_pkg.adapters.accounting import lora_parameters\n```\n"
    )
    assert codelinks.used_modules(ROOT, text) == [
        "course_pkg.adapters.accounting",
        "course_pkg.adapters.lora",
        "course_pkg.lm.load",
    ]


def test_the_pages_of_the_book_use_the_package():
    assert any(rerun.page_code(p.read_text()) and codelinks.used_modules(ROOT, p.read_text())
               for p in PAGES)  # fmt: skip
