"""`make pdf` on a small book: what the PDF shows, and where its contents and links lead."""

import doctest
import re
from itertools import pairwise
from pathlib import Path

import book_pdf
import chromium
import pdf_front
import pdf_join
import pdf_print
import pytest
import yaml
from pypdf import PdfReader

from course_pkg.pages.slider import slider
from tests.book import small
from tests.book.support import build

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORDS = " ".join(f"word{n}" for n in range(1200))
LONG_LINE = " + ".join(f"name_{n}" for n in range(60))
SLIDER = slider({1: "<p>frame one</p>", 2: "<p>frame two</p>"}, "n", "Frames.", start=1)
FIRST = f"""# First page

## A section

To {{ref}}`the deep place <deep>`, [the start](index), [a source](../_sources/book/index.md),
[the web](https://example.org/).

```python
total = {LONG_LINE}
```

:::{{dropdown}} Folded
Behind the fold.
:::

```{{raw}} html
{SLIDER._repr_html_()}
```
"""
PAGES = {
    "index": "# Start\n\nA start, as the root.\n",
    "first": FIRST,
    "second": f"# Second & last\n\n{WORDS}\n\n(deep)=\n## A deep place\n\nThe end.\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The small book, built: a root, a chapter, and in a second part a chapter with a page."""
    folder = tmp_path_factory.mktemp("paper")
    small.write(folder, PAGES)
    section = {"file": "book/first", "sections": [{"file": "book/second"}]}
    toc = {"format": "jb-book", "root": "book/index"}
    toc["parts"] = [{"caption": "Part <I>", "chapters": [section]}]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc))
    build(folder)
    return folder


@pytest.fixture(scope="module")
def pdf(folder) -> PdfReader:
    try:
        book_pdf.make(folder)
    except chromium.NoBrowser as error:
        pytest.skip(str(error))
    return PdfReader(folder / book_pdf.OUT)


@pytest.fixture(scope="module")
def texts(pdf) -> list[str]:
    """The text of each sheet."""
    return [sheet.extract_text() for sheet in pdf.pages]


def sheet_of(texts: list[str], text: str) -> int:
    """The last sheet with a text: what the contents name comes later in full."""
    return max(n for n, found in enumerate(texts) if text in found)


def outline(pdf: PdfReader, items: list | None = None) -> list:
    """The bookmarks: each with the number of its sheet, lists for what is below."""
    return [
        outline(pdf, item)
        if isinstance(item, list)
        else (item.title, pdf.get_destination_page_number(item))
        for item in (pdf.outline if items is None else items)
    ]


def test_the_contents_have_the_numbers_that_the_sheets_have(pdf, texts):
    assert pdf.page_labels[:3] == ["i", "ii", "1"] and pdf.page_labels[-1] == str(
        len(pdf.pages) - 2
    )
    lines = re.findall(r"^(.+?)\s*\n?(\d+)$", texts[1], re.MULTILINE)
    titles = ["Start", "Part <I>", "First page", "Second & last"]
    assert [re.sub(r"^[\d.]+ ", "", title) for title, _ in lines] == titles
    for (title, number), expected in zip(lines, titles, strict=True):
        text = texts[pdf.page_labels.index(number)]
        assert text.lstrip(f"{number}\n").startswith(title), (title, expected, text[:80])
    numbers = [int(number) for _, number in lines]
    assert numbers[:3] == [1, 2, 3] and len(pdf.pages) - 2 > numbers[3] > 3
    footers = [text.split("\n") for text in texts[4:]]
    assert all(str(n) in lines[:2] + lines[-2:] for n, lines in enumerate(footers, 3))


def test_every_word_is_there_once_in_order_and_long_code_wraps(texts):
    found = [int(n) for n in re.findall(r"word(\d+)", " ".join(texts))]
    assert found == list(range(1200))
    code = texts[sheet_of(texts, "name_59")]
    assert LONG_LINE.replace(" ", "") in re.sub(r"\s", "", code)
    assert max(len(line) for line in code.split("\n") if "name_" in line) < 110
    assert "Behind the fold." in code
    assert "frame one" in code and "frame two" not in " ".join(texts)


def test_links_lead_to_sheets_or_the_web(pdf, texts):
    first = pdf.pages[sheet_of(texts, "name_59")]
    links = [annotation.get_object() for annotation in first["/Annots"]]
    web = [link["/A"]["/URI"] for link in links if "/A" in link]
    inside = [link["/Dest"] for link in links if "/Dest" in link]
    assert web == ["https://example.org/"]
    numbers = {sheet.indirect_reference.idnum: n for n, sheet in enumerate(pdf.pages)}
    assert {numbers[place[0].idnum] for place in inside} == {2, sheet_of(texts, "A deep place")}
    (deep,) = [place for place in inside if numbers[place[0].idnum] != 2]
    assert deep[1] == "/XYZ" and 0 < deep[3] < 842
    contents = [link.get_object()["/Dest"][0].idnum for link in pdf.pages[1]["/Annots"]]
    assert all(a < b for a, b in pairwise(dict.fromkeys(numbers[idnum] for idnum in contents)))


def test_the_outline_follows_the_book(pdf, texts):
    second = sheet_of(texts, "word0 ")
    found = str(outline(pdf))
    assert found == str(
        [
            ("Contents", 1),
            ("Start", 2),
            ("Part <I>", 3),
            [
                ("First page", 4),
                [
                    ("A section", 4),
                    ("Second & last", second),
                    [("A deep place", sheet_of(texts, "A deep place"))],
                ],
            ],
        ]
    )


def test_the_same_book_gives_the_same_file(pdf, folder):
    assert pdf.metadata == {"/Title": small_title(folder), "/Author": "The course's authors"}
    before = (folder / book_pdf.OUT).read_bytes()
    book_pdf.make(folder)
    assert (folder / book_pdf.OUT).read_bytes() == before


def small_title(folder: Path) -> str:
    return yaml.safe_load((folder / "_config.yml").read_text())["title"]


def test_what_is_missing_is_said_in_one_line(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(chromium.shutil, "which", lambda name: None)
    assert book_pdf.main() == 3
    assert re.fullmatch(
        r"Error: needs Chromium, .*apt-get install chromium.*\n", capsys.readouterr().err
    )
    monkeypatch.setattr(book_pdf, "entries", lambda toc: [book_pdf.Entry(1, "book/nowhere")])
    assert book_pdf.main() == 1
    assert re.fullmatch(r"Error: .*nowhere.html is not built: .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "module", [book_pdf, pdf_front, pdf_join, pdf_print], ids=lambda m: m.__name__
)
def test_the_examples_in_the_programs_are_true(module):
    tried = doctest.testmod(module)
    assert tried.attempted and not tried.failed
