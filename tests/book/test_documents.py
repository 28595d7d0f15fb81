"""Every item of the source documents has a place in the book, in the documents' order."""

import re
import tomllib
from itertools import pairwise

import documents
import pytest
import yaml

from tests.book.support import ROOT

DOCUMENTS = documents.load_documents(ROOT)
PLACES = documents.places(ROOT)
ITEMS = {each.label(item): item for each in DOCUMENTS for item in each.items}
FIRST = DOCUMENTS[0]


def test_every_item_has_a_label_on_a_page_or_a_reason():
    missing = {label for label, item in ITEMS.items() if not item.left_out} - set(PLACES)
    assert missing == set()
    assert {label for label, item in ITEMS.items() if item.left_out}.isdisjoint(PLACES)


def test_every_label_names_an_item():
    assert set(PLACES) - set(ITEMS) == set()


def test_labels_on_one_heading_are_in_the_order_of_the_list():
    order = {label: number for number, label in enumerate(ITEMS)}
    seen: dict[tuple[str, str], list[int]] = {}
    for label, place in PLACES.items():
        if place.level < documents.NO_HEADING:
            seen.setdefault((place.docname, place.text), []).append(order[label])
    assert [heading[0] for heading, found in seen.items() if found != sorted(found)] == []


def test_a_label_that_occurs_twice_is_an_error(tmp_path):
    (tmp_path / "book").mkdir()
    for name in ("a", "b"):
        (tmp_path / "book" / f"{name}.md").write_text("(doc1-2)=\n# A\n")
    with pytest.raises(ValueError, match="doc1-2 is on book/a and on book/b"):
        documents.places(tmp_path)


def test_labels_in_code_are_none_and_a_section_ends_at_the_next_heading_of_its_level():
    page = "```text\n(doc1-1)=\n# No\n```\n(doc1-2)=\n## A\n### B\ntext\n## C\n(doc1-3)=\n- entry\n"
    found = dict(documents.labeled("page", page))
    assert list(found) == ["doc1-3", "doc1-2"]
    assert found["doc1-2"].text == "## A\n### B\ntext"
    assert found["doc1-3"] == documents.Place("page", documents.NO_HEADING, "")


def test_the_list_has_each_name_once_and_its_sections_in_order():
    for document in DOCUMENTS:
        names = [item.id for item in document.items]
        assert len(set(names)) == len(names), document.number
        sections = [each.number for each in document.items if each.kind == "section"]
        keys = [[int(part) for part in re.findall(r"\d+", number)] for number in sections if number]
        assert keys == sorted(keys), document.number
        for item in document.items:
            assert item.english and len(item.title) <= 40, item
            assert not re.search("[。；，]", item.title), item


def numbers_of(document: documents.Document, word: str) -> list[str]:
    """The numbers that items of a kind print, such as "formulas 15 to 17", one by one."""
    found = []
    printed = re.compile(rf"(?<!after ){word}s? ([\d.]+)(?: (?:and|to) ([\d.]+))?", re.IGNORECASE)
    for item in document.items:
        for match in printed.finditer(item.number):
            head, dot, first = match[1].rpartition(".")
            last = (match[2] or match[1]).rpartition(".")[2]
            found += [f"{head}{dot}{number}" for number in range(int(first), int(last) + 1)]
    return found


def test_no_numbered_formula_listing_table_or_figure_is_missing():
    expected = {
        (1, "formula"): [str(n) for n in range(1, 45)],
        (1, "listing"): [str(n) for n in range(1, 22)],
        (1, "question"): [str(n) for n in range(1, 6)],
        (1, "table"): ["1"],
        (3, "formula"): [f"11.{n}" for n in range(1, 14)],
        (3, "figure"): ["10.15", *(f"11.{n}" for n in range(1, 9))],
        (3, "table"): ["11.1", "11.2"],
        (4, "formula"): [str(n) for n in range(1, 13)],
    }
    assert {each: numbers_of(DOCUMENTS[each[0] - 1], each[1]) for each in expected} == expected


def test_every_question_that_the_list_names_exists():
    folder = ROOT / "course_pkg/grading/assignments"
    asked = {question for item in ITEMS.values() for question in item.questions}
    for assignment in sorted({question.partition("/")[0] for question in asked}):
        text = (folder / assignment.replace("-", "_") / "questions.toml").read_text("utf8")
        named = {f"{assignment}/{name}" for name in tomllib.loads(text)["question"]}
        assert {q for q in asked if q.startswith(f"{assignment}/")} <= named
    assert len(asked) > 40


def test_every_chapter_has_the_number_of_document_1_and_pages_follow_in_order():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    numbers = documents.numbers(ROOT)
    counted = [c["file"] for part in toc["parts"] if "numbered" in part for c in part["chapters"]]
    assert [numbers[file] for file in counted][:9] == [(str(n),) for n in range(1, 10)]
    assert numbers["book/exercises"] == ("11",)
    assert numbers["book/metrics/bleu"] == ("8", "2")
    pages = re.findall(r"'file': '([^']+)'", str(toc))
    shown = [".".join(numbers[page]) for page in pages if page in numbers]
    keys = [[int(part) for part in number.split("–")[0].split(".")] for number in shown]
    assert all(before < after for before, after in pairwise(keys))
    chapters = {page: number[0] for page, number in numbers.items() if len(number) == 1}
    for page, number in numbers.items():
        folder = f"{page.rpartition('/')[0]}/index"
        assert number[0] == chapters.get(page, chapters.get(folder)), page


def test_a_chapter_has_the_title_of_document_1_in_translation():
    for item in FIRST.items:
        if item.kind == "section" and "." not in item.number and FIRST.label(item) in PLACES:
            place = PLACES[FIRST.label(item)]
            assert place.text.partition("\n")[0] == f"# {item.english}"


def test_a_page_that_holds_several_sections_has_a_range():
    items = [documents.Item(n, "section", n, "", n) for n in ("9", "9.1", "9.2", "9.3")]
    page = "(doc1-9.1)=\n# One\n(doc1-9.2)=\n## Two\n"
    found = dict(documents.labeled("a", page)) | dict(documents.labeled("b", "(doc1-9)=\n# B\n"))
    numbers = documents.page_numbers(documents.Document(1, "", "", tuple(items)), found)
    assert numbers == {"a": ("9", "1–9.2"), "b": ("9",)}


def test_the_page_shows_every_document_and_the_introduction_names_them():
    page = (ROOT / "book/appendix/documents.md").read_text("utf8")
    introduction = (ROOT / "book/introduction.md").read_text("utf8")
    for document in DOCUMENTS:
        assert f"```{{source-document}} {document.number}\n" in page
        assert document.title in page and document.title in introduction


def test_the_readme_leads_to_every_chapter_of_document_1():
    text = (ROOT / "README.md").read_text("utf8")
    listed = re.findall(r"(\d+) \[[^\]]+\]\((book/[^)]+)\.md\)", text)
    expected = [
        (item.number, PLACES[label].docname)
        for item in FIRST.items
        if item.kind == "section" and "." not in item.number
        if (label := FIRST.label(item)) in PLACES
    ]
    assert listed == expected


def test_a_row_has_the_heading_the_code_and_the_questions():
    item = documents.Item(
        "formula-28", "formula", "Formula 28", "简短惩罚", "The penalty", ("bleu/brevity-penalty",)
    )
    document = documents.Document(1, "", "", (item,))
    place = {"doc1-formula-28": PLACES["doc1-listing-16"]}
    [row] = documents.table(ROOT, document, place)[2:]
    assert row.startswith("| Formula 28 简短惩罚: The penalty | [BLEU](/book/metrics/bleu.md): []")
    assert "<course_pkg.metrics.bleu>" in row or "<course_pkg.metrics." in row
    assert row.endswith("| [`bleu`](/book/exercises.md): brevity-penalty |")
    left_out = documents.Item("x", "passage", "x", "", "X", (), "an advertisement")
    row = documents.table(ROOT, documents.Document(1, "", "", (left_out,)), {})[2]
    assert row == "| x: X | an advertisement |  |  |"
