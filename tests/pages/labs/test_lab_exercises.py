"""Exercises in the reader's browser: their pages, and what a student does there, from disk."""

import copy
import json
import re
import shutil

import nbformat
import pytest
from lab_exercises import exercise_page, site_link
from lab_notebook import ExerciseCell, contents, exercise_cells, renderer
from playwright.sync_api import expect

from course_pkg.grading.assemble import assemble
from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.record import Store
from course_pkg.grading.classroom.runs.grade_class import Options, grade
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.own_notebook import messages
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.read_notebook import read
from course_pkg.pages.labs.assignments import ASSIGNMENTS
from course_pkg.sandbox.probe import probe
from tests.book.support import ROOT
from tests.chromium import Tab, low_contrast
from tests.exercises.assignments import EXERCISES, SOLUTIONS, Course, notebook, places
from tests.grading.classroom.test_same_run import (
    CASES,
    fails_first,
    locked_import,
    prints_much,
    with_mark,
    without_metadata,
)

IN_BROWSER = [pytest.mark.browser, pytest.mark.slow]
ANSWER = """def closest_length(length, lengths):
    return min(lengths, key=lambda n: (abs(n - length), n))"""
PENALTY = """def brevity_penalty(c, r):
    return 0.0 if c == 0 else min(1.0, math.exp(1 - r / c))"""
WRONG = "def closest_length(length, lengths):\n    return max(lengths)"
ANSWER_ID = "c27cc1d1"
COUNTS_ID = "8209d91b"
CHECK_ID = "955620af"
PLACES = {
    "answer": f"#lab-cell-{ANSWER_ID}",
    "check": f"#lab-cell-{CHECK_ID}",
    "name": "#lab-cell-766b11a2",
    "case": "#lab-cell-6acd250a",
    "counts": f"#lab-cell-{COUNTS_ID}",
    "check of counts": "#lab-cell-c390d9f1",
    "scores": "#lab-cell-8ca67b53",
    "penalty": "#lab-cell-916ef8c6",
    "check of penalty": "#lab-cell-923fe096",
}
PAGE = "book/exercises/bleu.html"
EARLIER = f"course-labs-progress:bleu:{'0' * 16}"
# As a busy Chromium gives it to some pages.
EMPTY_STORAGE = """(() => {
  const empty = Object.create({
    getItem(key) { return this[key] ?? null },
    setItem(key, text) { this[key] = text },
  });
  Object.defineProperty(window, "localStorage", {value: empty});
})()"""
# The second copy is there only after openCopy().
LATE_COPY = """(() => {
  const open = indexedDB.open.bind(indexedDB);
  IDBFactory.prototype.open = (...given) => {
    const late = {};
    window.openCopy = () => {
      open(...given).onsuccess = ({target}) => {
        late.result = target.result;
        late.onsuccess();
      };
    };
    return late;
  };
})()"""


def released(name: str) -> str:
    return (ROOT / "exercises" / name / f"{name}.ipynb").read_text("utf-8")


def cells_of(name: str) -> list[ExerciseCell]:
    return exercise_cells(
        json.loads(released(name)), ASSIGNMENTS[name], registry.load(name).questions
    )


def test_no_page_speaks_of_what_is_in_jupyter_alone():
    for name in ASSIGNMENTS:
        text = " ".join(cell.source for cell in cells_of(name) if cell.kind == "text")
        assert re.findall(r"(?i)jupyter|restart|run all|new cell|add cells", text) == [], name
        whole = " ".join("".join(cell["source"]) for cell in json.loads(released(name))["cells"])
        assert "(Restart Kernel and Run All Cells)" in " ".join(whole.split())


def page_data(body: str) -> dict:
    data = re.search(
        r'<script type="application/json" class="lab-exercise">(.*?)</script>', body, re.S
    )
    return json.loads(data[1])


def test_every_cell_of_a_notebook_is_on_its_page():
    for name, able in ASSIGNMENTS.items():
        given = json.loads(released(name))
        body = exercise_page(name, released(name), able)["body"]
        assert page_data(body)["notebook"] == given
        cells = exercise_cells(given, able, registry.load(name).questions)
        assert len(cells) == len(given["cells"])
        placed = [cell.id for cell in cells if f'id="lab-cell-{cell.id}"' in body]
        assert placed == [cell.id for cell in cells if cell.kind != "text"], name
        checks = [cell for cell in cells if cell.kind == "check"]
        assert {cell.question for cell in checks} == set(registry.load(name).questions)
        assert {cell.question for cell in checks if not cell.missing} == set(able)


def test_no_text_of_a_solution_is_on_a_page():
    secret = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.S)
    shown = []
    for name, able in ASSIGNMENTS.items():
        cells = notebook(SOLUTIONS, name).cells
        solutions = "\n".join(text for cell in cells for text in secret.findall(cell.source))
        lines = {line.strip() for line in solutions.splitlines() if len(line) > 40}
        assert lines, name
        data = json.dumps(page_data(exercise_page(name, released(name), able)["body"])["cells"])
        shown += [(name, line) for line in lines if json.dumps(line)[1:-1] in data]
    assert shown == []


def test_links_lead_to_the_pages_of_the_book():
    assert site_link("../../book/setup.md", "bleu") == "../setup.html"
    assert site_link("#here", "bleu") == "#here"
    slugs = {("book/setup", "a-b"): "id3"}
    link = site_link("../../book/setup.md#a-b", "bleu", lambda *place: slugs[place])
    assert link == "../setup.html#id3"


def test_formulas_stay_as_they_are_for_mathjax():
    shown = renderer(str).render("With $p_1 < 1$:\n\n$$\nx_{1} \\& y\n$$\n")
    assert r"\(p_1 &lt; 1\)" in shown and r"\[" in shown and r"x_{1} \&amp; y" in shown


def test_every_task_has_a_label_and_every_heading_a_place():
    cells = cells_of("bleu")
    labels = [cell.label for cell in cells if cell.kind == "check"]
    assert labels[:3] == [f"1{part} One reference, by hand" for part in "abc"]
    assert labels[5:7] == ["3 Counting and clipping", "4 The closest reference length"]
    page = exercise_page("bleu", released("bleu"), ASSIGNMENTS["bleu"])["body"]
    targets = re.findall(r'href="#([^"]+)"', contents(cells))
    assert len(targets) == 7 and all(f'id="{target}"' in page for target in targets)
    assert [cell.label for cell in cells if cell.kind == "given"] == [""] * 3


def test_prose_has_the_points_of_its_task():
    cells = cells_of("concepts")
    assert [cell.points for cell in cells if cell.kind == "prose"] == [4] * 5


def test_no_text_ends_the_element_with_the_data():
    hostile = "</script><!--<script>"
    text = json.loads(released("bleu"))
    text["cells"][3]["source"] = [hostile]
    page = exercise_page("bleu", json.dumps(text), ASSIGNMENTS["bleu"])["body"]
    assert page_data(page)["notebook"] == text and hostile not in page


def test_the_pages_link_to_what_is_there(labs):
    """Pages of the book, headings in them, and places in the page itself."""
    for name in ASSIGNMENTS:
        file = labs / f"book/exercises/{name}.html"
        article = file.read_text("utf-8").split("<article", 1)[1].split("</article>", 1)[0]
        links = re.findall(r'href="([^":]+)"', article)
        assert links
        for link in links:
            page, _, place = link.partition("#")
            target = (file.parent / page).resolve() if page else file
            assert target.is_file(), (name, link)
            assert not place or f'id="{place}"' in target.read_text("utf-8"), (name, link)


def test_the_book_links_to_the_pages(labs):
    """Once from the list and once from each chapter that names it; and where a reader begins."""
    for page, link in (("exercises", "exercises/{}"), ("metrics/bleu", "../exercises/{}")):
        text = (labs / f"book/{page}.html").read_text("utf-8")
        names = ASSIGNMENTS if page == "exercises" else ("bleu", "concepts")
        for name in names:
            assert text.count(f'href="{link.format(name)}.html">in your browser</a>') == 1
    assert "in your browser</a>" not in (labs / "book/appendix/documents.html").read_text("utf-8")
    assert 'href="exercises/bleu.html"' in (labs / "book/index.html").read_text("utf-8")
    article = (labs / "book/exercises.html").read_text("utf-8").partition("<article")[2]
    start = article.partition("<h2")[0]
    assert [
        name for name in ASSIGNMENTS if f'href="exercises/{name}.html">{name}' not in start
    ] == []


def write(page, code: str, place: str = "answer") -> None:
    cell = page.locator(PLACES[place])
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
    cell.locator(".lab-bar:not(.running)").wait_for(timeout=60_000)
    return cell.locator(".lab-output").inner_text()


def run_all(page) -> None:
    all_checks = page.get_by_role("button", name="Run all checks")
    all_checks.click()
    all_checks.and_(page.locator(":enabled")).wait_for(timeout=120_000)


def status_of(page, place: str) -> str:
    return page.locator(PLACES[place]).locator(".lab-status").inner_text()


def sum_of(page) -> str:
    return page.locator(".lab-sum").inner_text()


def saved(page, button: str):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return waiting.value


def take(page, folder, text: str, name: str = "file.json") -> str:
    """Import a file, and return what the page says of it."""
    file = folder / name
    file.write_text(text, "utf-8")
    page.locator("input[type=file]").set_input_files(file)
    said = page.locator(".lab-progress > .lab-status").filter(has_text=name)
    said.wait_for()
    return said.inner_text()


def answers(cells: dict[str, str], **more) -> str:
    """A file of answers, as the page exports it."""
    head = {"format": "course-labs-progress", "assignment": "bleu", "hash": "any"}
    return json.dumps({**head, "cells": cells, **more})


@pytest.fixture
def tab(browser):
    """A tab with an empty storage, in which nothing may go wrong."""
    tab = Tab(browser)
    yield tab
    assert tab.problems == []
    tab.context.close()


@pytest.fixture
def page(tab, labs):
    return tab.open(labs / PAGE)


class TestPage:
    pytestmark = IN_BROWSER

    def test_a_student_solves_a_question(self, page):
        assert sum_of(page) == "0 of 27 points"
        write(page, WRONG)
        assert "0 of 2 points" in ask(page)
        row = page.locator(".lab-points li", has_text="4 The closest")
        assert "✗ 0 / 2" in row.inner_text()
        write(page, ANSWER)
        assert "changed" in row.inner_text() and "have changed" in status_of(page, "check")
        assert "2 of 2 points" in ask(page)
        assert sum_of(page) == "2 of 27 points" and "✓ 2 / 2" in row.inner_text()

    def test_an_answer_that_got_worse_loses_its_points(self, page):
        write(page, ANSWER)
        ask(page)
        write(page, "def closest_length(:")
        assert sum_of(page) == "0 of 27 points"  # it isn't the answer that was checked
        ask(page)
        assert "SyntaxError" in page.locator(PLACES["answer"]).inner_text()
        write(page, "del closest_length")
        assert "NameError: name 'closest_length' is not defined, so nothing was checked" in ask(
            page
        )
        assert sum_of(page) == "0 of 27 points" and "0 of 2 points" in status_of(page, "check")
        write(page, ANSWER)
        write(page, "[", "counts")
        assert "2 of 2 points" in ask(page)  # it needs no other answer

    def test_points_belong_to_the_answers_that_an_answer_uses(self, page):
        write(page, WRONG.replace("closest_length", "mine"), "counts")
        write(page, "closest_length = mine")
        ask(page)
        row = page.locator(".lab-points li", has_text="4 The closest")
        assert "✗ 0 / 2" in row.inner_text()
        write(page, ANSWER.replace("closest_length", "mine"), "counts")
        assert "changed" in row.inner_text()
        assert "2 of 2 points" in ask(page)
        write(page, "scores = [0, 0]", "scores")
        assert "✓ 2 / 2" in row.inner_text()

    def test_the_page_gives_the_points_of_a_run_from_top_to_bottom(self, page, tmp_path):
        """Those that `course check` gives its notebook: whatever ran in the page before."""
        write(page, ANSWER)
        assert "2 of 2 points" in ask(page)
        for answer in (
            "def closest_length(:",
            f"1 / 0\n{ANSWER}",
            f"{ANSWER}\n1 / 0",
            "closest_length = helper",  # which a cell behind it defines
            f"import math\nmath.exp = None\n{ANSWER}",
            ANSWER,
        ):
            write(page, answer)
            write(page, f"{ANSWER.replace('closest_length', 'helper')}\n{PENALTY}", "penalty")
            ask(page, "check of penalty")
            run_all(page)
            lines = page.locator(".lab-points li").all_inner_texts()
            shown = [int(re.search(r"(\d+) / \d+$", line)[1]) for line in lines]
            text = saved(page, "Download as notebook").path().read_text("utf-8")
            asked = nbformat.reads(text, as_version=4)
            said = messages(asked, tmp_path, "bleu", 60, 1_000_000)
            earned = {one.question: one.earned for one in said if one.question}
            where = places(notebook(EXERCISES, "bleu"))
            assert shown == [earned[name] for name in where], answer

    def test_a_notebook_earns_here_what_it_earns_everywhere(self, page, tmp_path):
        """The cases of test_same_run, but for those with cells of one's own, and `quit()`."""
        page.on("dialog", lambda dialog: dialog.accept())
        for change in (locked_import, fails_first, without_metadata, with_mark, prints_much):
            nb = notebook(SOLUTIONS, "bleu")
            change(nb)
            mark = "\ufeff" * (change is with_mark)
            take(page, tmp_path, mark + nbformat.writes(nb), f"{change.__name__}.ipynb")
            run_all(page)
            assert sum_of(page) == f"{CASES[change]} of 27 points", change

    def test_what_a_cell_shows_stays_on_the_page_and_reaches_nothing_stored(self, page):
        write(page, ANSWER)  # so that something is stored
        away = '<meta http-equiv="refresh" content="0;url=data:text/html,away"><base href="x:">here'
        names = "indexedDB caches BroadcastChannel Worker XMLHttpRequest WebSocket importScripts"
        write(
            page,
            "import js\nfrom IPython.display import HTML, display\n"
            f"display(HTML({away!r}))\n"
            f"print([n for n in {names.split()!r} if getattr(js, n, None)], "
            "getattr(js.navigator, 'storage', None),\n"
            "    hasattr(js.WorkerGlobalScope.prototype, 'indexedDB'))",
            "counts",
        )
        shown = ask(page, "counts")
        assert "here" in shown and "[] None False" in shown
        assert page.locator(".lab-output :is(meta, base)").count() == 0
        assert page.url.endswith(PAGE)

    def test_a_name_changes_the_case_that_is_shown_and_checked(self, page):
        """Cells run as from top to bottom, though only one was edited."""
        write(page, "counts = [(1, 1)] * 4", "counts")
        assert "You see the example case" in ask(page, "check of counts")
        example = page.locator(PLACES["case"]).locator(".lab-output").inner_text()
        write(page, 'STUDENT = "ada"', "name")
        assert "0 of 1 point" in status_of(page, "check of counts")
        assert "You see the example case" not in ask(page, "check of counts")
        assert page.locator(PLACES["case"]).locator(".lab-output").inner_text() != example
        write(page, 'STUDENT = ""', "name")
        ask(page, "name")  # run alone, so that nothing has changed when the check runs
        assert "You see the example case" in ask(page, "check of counts")
        assert page.locator(PLACES["case"]).locator(".lab-output").inner_text() == example

    def test_all_checks_give_the_model_answers_all_points(self, page, tmp_path):
        solution = notebook(SOLUTIONS, "bleu")
        said = take(page, tmp_path, nbformat.writes(solution), "bleu.ipynb")
        assert "10 cells are filled" in said
        assert page.locator(".lab-output").count() == 0  # nothing ran by itself
        run_all(page)
        assert sum_of(page) == "27 of 27 points"
        assert page.locator(".lab-points li.lab-full").count() == 10

    def test_checks_can_be_stopped(self, page):
        write(page, "while True: pass", "counts")
        page.get_by_role("button", name="Run all checks").click()
        page.locator(PLACES["check of counts"]).get_by_text("running").wait_for()
        page.locator(".lab-progress").get_by_role("button", name="Stop").click()
        page.locator(PLACES["check of counts"]).get_by_text("stopped").wait_for()
        assert page.get_by_role("button", name="Run all checks").is_enabled()
        assert sum_of(page) == "0 of 27 points"

    def test_progress_is_kept_and_can_be_moved(self, browser, page, labs, tmp_path):
        write(page, ANSWER)
        ask(page)
        page.reload()
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        assert sum_of(page) == "2 of 27 points" and status_of(page, "check") == "2 of 2 points"
        file = saved(page, "Export answers")
        other = Tab(browser).open(labs / PAGE)
        text = file.path().read_text("utf-8")
        assert "1 cell is filled" in take(other, tmp_path, text, file.suggested_filename)
        assert "key=lambda" in other.locator(PLACES["answer"]).inner_text()
        assert sum_of(other) == "0 of 27 points"  # points come from a check alone
        assert saved(other, "Export answers").path().read_text("utf-8") == text
        other.once("dialog", lambda dialog: dialog.dismiss())
        other.get_by_role("button", name="Start over").click()
        assert "key=lambda" in other.locator(PLACES["answer"]).inner_text()
        other.once("dialog", lambda dialog: dialog.accept())
        other.get_by_role("button", name="Start over").click()
        assert "raise NotImplementedError" in other.locator(PLACES["answer"]).inner_text()
        other.reload()
        assert "raise NotImplementedError" in other.locator(PLACES["answer"]).inner_text()

    def test_an_empty_storage_loses_nothing(self, page):
        write(page, ANSWER)
        ask(page)
        page.add_init_script(EMPTY_STORAGE)
        page.reload()
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        assert sum_of(page) == "2 of 27 points"
        write(page, WRONG)  # this page's storage forgets it
        page.reload()
        expect(page.locator(PLACES["answer"])).to_contain_text("return max")

    def test_what_is_typed_before_the_second_copy_is_there_stays(self, page):
        write(page, ANSWER)
        page.add_init_script(EMPTY_STORAGE)
        page.add_init_script(LATE_COPY)
        page.reload()
        write(page, "counts = [(1, 1)] * 4", "counts")
        assert "raise NotImplementedError" in page.locator(PLACES["answer"]).inner_text()
        page.evaluate("() => openCopy()")
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        assert "(1, 1)" in page.locator(PLACES["counts"]).inner_text()
        page.reload()
        page.evaluate("() => openCopy()")
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        assert "(1, 1)" in page.locator(PLACES["counts"]).inner_text()

    def test_another_file_is_refused_and_nothing_is_lost(self, page, tmp_path):
        write(page, ANSWER)
        refused = {
            "not JSON": "neither a file of answers",
            "null": "neither a file of answers",
            answers({ANSWER_ID: 1}): "neither a file of answers",
            answers({}, assignment="rouge"): "belongs to the exercise “rouge”",
            answers({"constructor": "x", "__proto__": "y"}): "no answer to a task",
            json.dumps({"cells": [None, {"id": "x"}]}): "nbformat is nothing; expected 4",
            released("rouge"): "this is not the notebook of bleu",
            released("bleu"): "no answer to a task",
            answers({ANSWER_ID: "#" * 2_000_001}): "more than 2 million characters",
        }
        for number, (text, reason) in enumerate(refused.items()):
            assert reason in take(page, tmp_path, text, f"file-{number}.json")
            assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()

    def test_a_file_that_is_too_large_is_not_read(self, page, tmp_path):
        with (tmp_path / "large.json").open("wb") as file:
            file.truncate(100_000_001)
        page.locator("input[type=file]").set_input_files(tmp_path / "large.json")
        page.get_by_text("larger than 100 MB").wait_for()

    def test_a_notebook_is_read_whatever_a_program_has_dropped(self, page, tmp_path):
        """As Colab, an older Jupyter and a converter write it, with a plot and more cells."""
        written = json.loads(released("bleu"))
        places_of = {cell["id"]: at for at, cell in enumerate(written["cells"])}
        written["cells"][places_of[ANSWER_ID]]["source"] = ANSWER.splitlines(keepends=True)
        written["cells"][places_of["766b11a2"]]["source"] = ['STUDENT = "ada"']
        plot = {
            "output_type": "display_data",
            "metadata": {},
            "data": {"image/png": "A" * 3_000_000},
        }
        written["cells"][places_of[ANSWER_ID]]["outputs"] = [plot]

        def colab(cell):
            cell["metadata"]["id"] = cell.pop("id")

        def older(cell):
            del cell["id"]

        def bare(cell):
            del cell["id"]
            cell["metadata"] = {}

        for number, change in enumerate((colab, older, bare)):
            page.once("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="Start over").click()
            text = copy.deepcopy(written)
            for cell in text["cells"]:
                change(cell)
            said = take(page, tmp_path, json.dumps(text), f"{number}.ipynb")
            assert "2 cells are filled" in said and "more cell" not in said, change
            assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()
            assert '"ada"' in page.locator(PLACES["name"]).inner_text()
        extra = {"cell_type": "code", "id": "mine", "metadata": {}, "source": "helper = 1"}
        written["cells"].append(extra)
        said = take(page, tmp_path, json.dumps(written), "extra.ipynb")
        assert "It has another cell with code" in said

    def test_a_file_replaces_an_answer_only_if_the_reader_agrees(self, page, tmp_path):
        write(page, ANSWER)
        (tmp_path / "file.json").write_text(answers({ANSWER_ID: WRONG}), "utf-8")
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        with page.expect_event("dialog"):
            page.locator("input[type=file]").set_input_files(tmp_path / "file.json")
        take(page, tmp_path, "null", "next.json")  # by then, the first file is done with
        assert len(asked) == 1 and "1 of your answers" in asked[0]
        assert "key=lambda" in page.locator(PLACES["answer"]).inner_text()

    def test_text_from_a_file_stays_text(self, page, tmp_path):
        hostile = (
            "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
        )
        given = answers({ANSWER_ID: hostile}, scores={hostile: {"points": 3, "of": hostile}})
        take(page, tmp_path, given, f"{hostile[:8]}.json")
        assert hostile in page.locator(PLACES["answer"]).inner_text()
        page.reload()
        expect(page.locator(PLACES["answer"])).to_contain_text(hostile)
        assert page.title() != "run" and sum_of(page) == "0 of 27 points"

    def test_a_notebook_without_answers_is_the_released_one(self, page):
        file = saved(page, "Download as notebook")
        assert file.path().read_text("utf-8") == released("bleu")

    def test_the_notebook_has_the_answers_and_is_otherwise_the_released_one(self, page):
        write(page, ANSWER)
        file = saved(page, "Download as notebook")
        assert file.suggested_filename == "bleu.ipynb"
        got, wanted = (
            json.loads(text) for text in (file.path().read_text("utf-8"), released("bleu"))
        )
        changed = {
            cell["id"]: "".join(cell["source"])
            for cell, before in zip(got["cells"], wanted["cells"], strict=True)
            if cell != before
        }
        assert changed == {ANSWER_ID: ANSWER}
        assert {**got, "cells": []} == {**wanted, "cells": []}
        nbformat.validate(nbformat.from_dict(got))

    def test_the_notebook_is_graded_as_the_page_says(self, page, tmp_path):
        """By `course grade`, on cases of its own: a right answer, a wrong one, and none."""
        wrong = answer_key("bleu")["brevity-penalty"].wrong[0]
        code = answer_key("bleu").source(answer_key("bleu")["brevity-penalty"], wrong)
        where = places(notebook(EXERCISES, "bleu"))
        cell = notebook(EXERCISES, "bleu").cells[where["brevity-penalty"].answer].id
        take(page, tmp_path, answers({ANSWER_ID: ANSWER, cell: code}))
        run_all(page)
        lines = page.locator(".lab-points li").all_inner_texts()
        shown = [int(re.search(r"(\d+) / \d+$", line)[1]) for line in lines]
        data = saved(page, "Download as notebook").path().read_bytes()
        assembled = assemble(read(data), notebook(EXERCISES, "bleu"))
        assert assembled.remarks == ()
        if not probe().ok:
            pytest.skip(f"no sandbox here: {probe().detail}")
        course = Course(tmp_path)
        folder = tmp_path / "submitted" / "ada" / "bleu"
        folder.mkdir(parents=True)
        (folder / "bleu.ipynb").write_bytes(data)
        shutil.copytree(EXERCISES, course.root / EXERCISES.name)
        with ProgressDisplay() as show:
            list(grade(course.root, "bleu", Options(course.root / "submitted", jobs=1), show))
        record = Store(course.root, secret(course.root)).load("bleu", "ada")
        graded = {question.question: question.earned for question in record.questions}
        assert [graded[name] for name in where] == shown
        assert 0 < graded["brevity-penalty"] < 3 and graded["closest-length"] == 2

    @pytest.mark.parametrize(
        ("storage", "said"),
        [
            (
                "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})",
                "Your browser keeps nothing",
            ),
            (
                "Storage.prototype.setItem = () => {"
                " throw new DOMException('', 'QuotaExceededError') }",
                "storage is full",
            ),
        ],
    )
    def test_where_nothing_can_be_kept_the_page_says_so(self, browser, labs, storage, said):
        tab = Tab(browser)  # with errors of the theme, which keeps its color scheme
        tab.page.add_init_script(storage)
        page = tab.open(labs / PAGE)
        write(page, ANSWER)
        page.get_by_text(said).wait_for()
        assert "2 of 2 points" in ask(page)

    def test_answers_to_an_earlier_version_are_offered_and_kept(self, page, labs):
        def serve_earlier_version(route):
            text = (labs / PAGE).read_text("utf-8")
            text = text.replace(page_data(text)["hash"], "0" * 16).replace(COUNTS_ID, "earlier1")
            route.fulfill(body=text, content_type="text/html")

        page.route("**/bleu.html", serve_earlier_version)
        page.reload()
        write(page, ANSWER)
        page.locator("#lab-cell-earlier1").get_by_role("button", name="Edit").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text("x = 1")
        old = page.evaluate("key => localStorage.getItem(key)", EARLIER)
        page.unroute("**/bleu.html")
        page.reload()
        box = page.locator(".lab-offer")
        expect(box).to_contain_text(f"last on {json.loads(old)['saved'][:10]}.")
        assert "raise NotImplementedError" in page.locator(PLACES["answer"]).inner_text()
        assert "x = 1" in saved(page, "Export them").path().read_text("utf-8")
        box.get_by_role("button", name="Use them here").click()
        assert "key=lambda" in page.locator(PLACES["answer"]).inner_text() and box.is_hidden()
        page.reload()
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        expect(box).to_be_hidden()
        kept = "([key, text]) => localStorage.getItem(key) === text"
        page.wait_for_function(kept, arg=[EARLIER, old])
        # The storage has lost the newest write: the offer is back until the second copy is there.
        newest = EARLIER.replace("0" * 16, page_data((labs / PAGE).read_text("utf-8"))["hash"])
        page.evaluate("key => localStorage.removeItem(key)", newest)
        page.add_init_script(LATE_COPY)
        page.reload()
        expect(box).to_be_visible()
        page.evaluate("() => openCopy()")
        expect(page.locator(PLACES["answer"])).to_contain_text("key=lambda")
        expect(box).to_be_hidden()

    def test_what_cannot_run_here_is_kept_too(self, tab, labs):
        page = tab.open(labs / "book/exercises/paged-attention.html")
        assert "here; 10 more in Jupyter only, 4 more by a person" in sum_of(page)
        page.locator(".lab-prose textarea").fill("Small blocks waste little.")
        assert page.locator(".lab-prose .lab-status").inner_text() == "4 words"
        page.reload()
        expect(page.locator(".lab-prose textarea")).to_have_value("Small blocks waste little.")
        notebook = json.loads(saved(page, "Download as notebook").path().read_text("utf-8"))
        assert notebook["cells"][-1]["source"] == ["Small blocks waste little."]

    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
    def test_a_page_fits_can_be_read_and_loads_late(self, browser, labs, width, scheme):
        tab = Tab(browser, width=width, scheme=scheme)
        asked = []
        tab.page.on("request", lambda request: asked.append(request.url))
        page = tab.open(labs / PAGE)
        assert [url for url in asked if "labs.js" in url]
        assert not [url for url in asked if re.search("kit.js|python.js|package.js", url)]
        write(page, WRONG)
        ask(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert low_contrast(page, ".lab-exercise-page") == []
        assert tab.problems == []
