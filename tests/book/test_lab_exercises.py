"""Exercises in the reader's browser: their pages, and what a student does there, from disk."""

import json
import re

import nbformat
import pytest
from lab_exercises import exercise_cells, exercise_page, renderer, site_link

from course_pkg.grading.contract import registry
from course_pkg.labs import ASSIGNMENTS
from tests.book.support import ROOT
from tests.chromium import Tab, low_contrast

IN_BROWSER = [pytest.mark.browser, pytest.mark.slow]
ANSWER = """def closest_length(length, lengths):
    return min(lengths, key=lambda n: (abs(n - length), n))"""
WRONG = "def closest_length(length, lengths):\n    return max(lengths)"
ANSWER_ID, CHECK_ID = "c27cc1d1", "955620af"
PLACES = {"answer": f"#lab-cell-{ANSWER_ID}", "check": f"#lab-cell-{CHECK_ID}"}


def released(name: str) -> str:
    return (ROOT / "exercises" / name / f"{name}.ipynb").read_text("utf-8")


def page_data(body: str) -> dict:
    found = re.search(
        r'<script type="application/json" class="lab-exercise">(.*)</script>', body, re.S
    )
    return json.loads(found[1])


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_every_cell_of_the_notebook_is_on_the_page(name):
    notebook = json.loads(released(name))
    page = exercise_page(name, released(name), ASSIGNMENTS[name])
    data = page_data(page["body"])
    assert data["notebook"] == notebook
    cells = exercise_cells(notebook, ASSIGNMENTS[name])
    assert len(cells) == len(notebook["cells"])
    for cell in cells:
        assert (f'id="lab-cell-{cell.id}"' in page["body"]) is (cell.kind != "text")
    asked = {cell.question for cell in cells if cell.kind == "check"}
    assert asked == set(registry.load(name).questions)
    able = {cell.question for cell in cells if cell.kind == "check" and not cell.missing}
    assert able == set(ASSIGNMENTS[name])


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_no_text_of_a_solution_is_on_the_page(name):
    page = exercise_page(name, released(name), ASSIGNMENTS[name])["body"]
    notebook = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4)
    secret = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.S)
    solutions = [text.strip() for cell in notebook.cells for text in secret.findall(cell.source)]
    assert solutions
    lines = {line.strip() for text in solutions for line in text.splitlines() if len(line) > 40}
    data = json.dumps(page_data(page)["cells"])
    assert [line for line in lines if json.dumps(line)[1:-1] in data] == []


def test_links_lead_to_the_pages_of_the_book():
    assert site_link("../../book/setup.md", "bleu") == "../setup.html"
    assert site_link("#here", "bleu") == "#here"
    for name in ASSIGNMENTS:
        for target in re.findall(r"\]\((\.\./[^)#\s]+)", released(name)):
            page = ROOT / "book/exercises" / site_link(target, name)
            assert page.with_suffix(".md").resolve().is_file(), (name, target)


def test_formulas_stay_as_they_are_for_mathjax():
    shown = renderer("bleu").render("With $p_1 < 1$:\n\n$$\nx_{1} \\& y\n$$\n")
    assert r"\(p_1 &lt; 1\)" in shown and r"\[" in shown and r"x_{1} \&amp; y" in shown


def write(page, code: str) -> None:
    """Type code in place of what is in the answer's cell."""
    cell = page.locator(PLACES["answer"])
    if cell.get_by_role("button", name="Edit").is_visible():
        cell.get_by_role("button", name="Edit").click()
    editor = cell.locator(".cm-content")
    editor.wait_for()
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(code)


def ask(page, place: str = "check") -> str:
    """Press the first button of a cell, wait for its end, and return the text of its output."""
    cell = page.locator(PLACES[place])
    cell.locator(".lab-button").first.click()
    status = cell.locator(".lab-status")
    done = re.compile("^(done|ended|stopped|did not)")
    status.filter(has_text=done).wait_for(timeout=60_000)
    return cell.locator(".lab-output").inner_text()


def sum_of(page) -> str:
    return page.locator(".lab-sum").inner_text()


class TestPage:
    pytestmark = IN_BROWSER

    def test_a_student_solves_a_question(self, browser, labs):
        tab = Tab(browser)
        page = tab.open(labs / "book/exercises/bleu.html")
        assert sum_of(page).startswith("0 of ")
        write(page, WRONG)
        assert "0 of 2 points" in ask(page)
        write(page, ANSWER)
        assert "2 of 2 points" in ask(page)
        assert sum_of(page).startswith("2 of ")
        assert tab.problems == []

    def test_progress_is_kept_and_can_be_moved(self, browser, labs, tmp_path):
        tab = Tab(browser)
        page = tab.open(labs / "book/exercises/bleu.html")
        write(page, ANSWER)
        ask(page)
        page.reload()
        assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()
        assert sum_of(page).startswith("2 of ")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Export progress").click()
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        other = Tab(browser).open(labs / "book/exercises/bleu.html")
        assert sum_of(other).startswith("0 of ")
        other.locator("input[type=file]").set_input_files(file)
        other.get_by_text("Your progress is back").wait_for()
        assert "key=lambda" in other.locator(PLACES["answer"]).inner_text()
        assert sum_of(other).startswith("2 of ")
        other.on("dialog", lambda dialog: dialog.accept())
        other.get_by_role("button", name="Start over").click()
        assert "raise NotImplementedError" in other.locator(PLACES["answer"]).inner_text()
        assert sum_of(other).startswith("0 of ")
        assert tab.problems == []

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("not JSON", "not a file of progress"),
            ("[]", "not a file of progress"),
            ('{"format": "course-labs-progress", "cells": {"a": 1}}', "not a file of progress"),
            (
                '{"format": "course-labs-progress", "assignment": "rouge", "cells": {}}',
                "belongs to the exercise “rouge”",
            ),
        ],
    )
    def test_another_file_is_refused_and_nothing_is_lost(self, browser, labs, tmp_path, text, said):
        tab = Tab(browser)
        page = tab.open(labs / "book/exercises/bleu.html")
        write(page, ANSWER)
        file = tmp_path / "other.json"
        file.write_text(text, "utf-8")
        page.locator("input[type=file]").set_input_files(file)
        page.get_by_text(said).wait_for()
        assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()
        assert tab.problems == []

    def test_text_from_a_file_stays_text(self, browser, labs, tmp_path):
        tab = Tab(browser)
        page = tab.open(labs / "book/exercises/bleu.html")
        hostile = (
            "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
        )
        given = {
            "format": "course-labs-progress",
            "assignment": "bleu",
            "cells": {ANSWER_ID: hostile},
        }
        given["points"] = {hostile: 3}
        file = tmp_path / f"{hostile[:4]}.json"
        file.write_text(json.dumps(given), "utf-8")
        page.locator("input[type=file]").set_input_files(file)
        page.get_by_text("Your progress is back").wait_for()
        assert hostile in page.locator(PLACES["answer"]).inner_text()
        page.reload()
        assert hostile in page.locator(PLACES["answer"]).inner_text()
        assert page.title() != "run" and tab.problems == []

    def test_the_notebook_has_the_answers_and_is_otherwise_the_released_one(
        self, browser, labs, tmp_path
    ):
        page = Tab(browser).open(labs / "book/exercises/bleu.html")
        write(page, ANSWER)
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download as notebook").click()
        assert waiting.value.suggested_filename == "bleu.ipynb"
        file = tmp_path / "bleu.ipynb"
        waiting.value.save_as(file)
        got, wanted = (json.loads(text) for text in (file.read_text("utf-8"), released("bleu")))
        changed = {
            cell["id"]: "".join(cell["source"])
            for cell, before in zip(got["cells"], wanted["cells"], strict=True)
            if cell != before
        }
        assert changed == {ANSWER_ID: ANSWER}
        assert {k: v for k, v in got.items() if k != "cells"} == {
            k: v for k, v in wanted.items() if k != "cells"
        }
        nbformat.validate(nbformat.read(file, as_version=4))

    def test_where_nothing_can_be_kept_the_page_says_so(self, browser, labs):
        tab = Tab(browser)
        tab.page.add_init_script(
            "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})"
        )
        page = tab.open(labs / "book/exercises/bleu.html")
        write(page, ANSWER)
        page.get_by_text("Your browser keeps nothing").wait_for()
        assert "2 of 2 points" in ask(page)

    def test_an_answer_to_a_changed_exercise_is_kept(self, browser, labs):
        page = Tab(browser).open(labs / "book/exercises/bleu.html")
        old = {"format": "course-labs-progress", "assignment": "bleu", "hash": "old", "points": {}}
        old["cells"] = {ANSWER_ID: ANSWER, "gone": "x = 1"}
        page.evaluate(
            "text => localStorage.setItem('course-labs-progress:bleu', text)", json.dumps(old)
        )
        page.reload()
        assert "has changed since" in page.locator(".lab-progress").inner_text()
        assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download the answers that have no cell").click()
        assert "x = 1" in waiting.value.path().read_text("utf-8")

    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
    def test_a_page_fits_and_can_be_read(self, browser, labs, width, scheme):
        tab = Tab(browser, width=width, scheme=scheme)
        asked = []
        tab.page.on("request", lambda request: asked.append(request.url))
        page = tab.open(labs / "book/exercises/bleu.html")
        assert not [url for url in asked if "kit.js" in url]
        ask(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert low_contrast(page, ".lab-exercise-page") == []
        assert tab.problems == []
