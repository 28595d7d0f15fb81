"""grades.csv, the students' pages and the index: correct, inert and readable."""

import csv
import re
from datetime import UTC, datetime
from html import unescape

import pytest
from bs4 import BeautifulSoup

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.feedback import class_report, pages
from course_pkg.grading.classroom.feedback.class_report import (
    CSV_COLUMNS,
    late_note,
    waiting_points,
)
from course_pkg.grading.classroom.feedback.class_report import folder as results_folder
from course_pkg.grading.classroom.feedback.pages import histogram
from course_pkg.grading.classroom.gradebook.class_rows import Points, Row, score_statistics
from course_pkg.grading.classroom.gradebook.record import file_stem
from course_pkg.grading.classroom.submissions.roster import Person
from tests.chromium import Tab, low_contrast
from tests.grading.classroom.recorded import (
    ASSIGNMENT,
    HOSTILE,
    questions,
    record,
    unreadable,
    wrong,
)

SCRIPT = (pages.TEMPLATES / "class.js").read_text("utf-8")
UNSAFE = "NONE: --unsafe-no-sandbox"


def write(course, assignment, rows):
    """Write the report; its folder."""
    class_report.write(course, assignment, rows)
    return course / results_folder(assignment)


def table(folder):
    with open(folder / "grades.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page(folder, student):
    return (folder / f"{file_stem(student)}.html").read_text("utf-8")


def points(record, **changes):
    """The gradebook's points for a record, of 28 with the written answer."""
    usual = {"by_hand": 0, "late_penalty": 0, "max_score": 28, "to_mark": 4}
    return Points(**{"automatic": record.score, **usual, **changes})


def row(record, person=None, **changes):
    return Row(person or Person(record.student), record, points(record, **changes))


def test_the_csv_has_one_row_per_student_and_its_points_add_up(tmp_path):
    lost = record("ada", questions=questions({"counts": wrong()}))
    when = datetime(2026, 3, 1, 15, tzinfo=UTC)
    marked = {"by_hand": 3, "late_penalty": 2.5, "to_mark": 0}
    rows = [
        row(lost, Person("ada", "Ada", "Lovelace"), **marked, submitted=when, late_s=5400),
        row(unreadable("ben"), to_mark=0),
        Row(Person("cleo", "Cleo"), None, None),
        Row(Person("dan"), None, points(lost)),
        row(record("eve", state=State.RECORD_CHANGED, reason="changed")),
        Row(Person("fay"), record("fay", state=State.REFUSED, reason="no notebook"), None),
    ]
    folder = write(tmp_path, ASSIGNMENT, rows)
    written = table(folder)
    asked = tuple(f"question: {question.question}" for question in questions())
    ada = written[0]
    assert tuple(ada) == (*CSV_COLUMNS, *asked) and folder == tmp_path / "results" / ASSIGNMENT
    assert (ada["first_name"], ada["last_name"]) == ("Ada", "Lovelace")
    numbers = [float(ada[name]) for name in ("automatic", "by_hand", "late_penalty", "score")]
    assert numbers == [21, 3, 2.5, 21.5] and float(ada["max_score"]) == 28
    assert (ada["submitted"], ada["late_hours"]) == ("2026-03-01T15:00:00+00:00", "1.5")
    assert (ada["start_s"], ada["limits"]) == ("0.4", "cgroup v1")
    states = ["graded", "unreadable", "no-submission", "no-record", "record-changed", "refused"]
    assert [r["state"] for r in written] == states
    assert [r["score"] for r in written] == ["21.5", "0", "", "21", "", ""]
    assert written[1]["reason"] == "the file breaks off at line 4"
    assert late_note(tmp_path, ASSIGNMENT) == "ada (1.5 h)"
    assert waiting_points(tmp_path, ASSIGNMENT) == 4
    index = (folder / "index.html").read_text()
    assert "6 students, 5 submissions" in index and "Ada Lovelace" in index
    assert "no-submission" in index and "cleo.html" not in index
    assert "need JavaScript" not in index  # a small class is shown whole
    assert "1.5 h late (submitted 2026-03-01 15:00 UTC)" in index
    assert "24 points by program; 4 more wait for a person in 2 submissions." in index
    text = page(folder, "ada")
    assert "21.5 <small>of 28 points" in text
    assert "21 of 24 points by program; +3 by hand; −2.5 late penalty." in text


def test_the_command_names_ten_late_students(tmp_path):
    folder = tmp_path / results_folder(ASSIGNMENT)
    folder.mkdir(parents=True)
    rows = "".join(f"s{number:02},{number}\n" for number in range(14))
    (folder / "grades.csv").write_text("student,late_hours\n" + rows)
    note = late_note(tmp_path, ASSIGNMENT)
    assert note.startswith("s01 (1 h), s02 (2 h)")
    assert note.endswith("s10 (10 h), and 3 more, see grades.csv")


def test_no_text_in_the_csv_is_a_spreadsheet_formula(tmp_path):
    for text in ("=1+1", "\uff1d1+1", "\t=1", "\r=1", "\n=1"):
        person = Person(text, text, text)
        folder = write(tmp_path, ASSIGNMENT, [row(record(text, reason=text, limits=text), person)])
        (written,) = table(folder)
        for name in ("student", "first_name", "last_name", "reason", "limits"):
            assert written[name].startswith("'") and not {"\t", "\r"} & set(written[name]), text


def test_pages_of_students_who_are_gone_are_removed_and_no_other_file(tmp_path):
    write(tmp_path, ASSIGNMENT, [row(record(student)) for student in ("ada", "ben", "gone")])
    folder = tmp_path / "results" / ASSIGNMENT
    (folder / "mine.html").write_text("somebody's own")
    (folder / "folder.html").mkdir()
    write(tmp_path, ASSIGNMENT, [row(record(student)) for student in ("ada", "ben")])
    kept = {"ada.html", "ben.html", "folder.html", "grades.csv", "index.html", "mine.html"}
    assert {path.name for path in folder.iterdir()} == kept


def test_a_page_names_the_property_behind_every_lost_point(tmp_path):
    lost = {"forward": wrong("the scale is wrong", explanations=("you divided twice",))}
    text = page(write(tmp_path, ASSIGNMENT, [row(record(questions=questions(lost)))]), "ada")
    for part in (
        "the update is B(Ax): A first, then B",
        "smallest failing input",
        "{n: 2}",
        "the scale is wrong",
        "It looks as if you divided twice.",
        "19 of 24 points by program; 4 more wait for a person.",
        "19 <small>of 28 points",
        "0.40 s to start",
        "cgroup v1",
    ):
        assert part in text
    assert "r is the number of rows of A" not in text  # a hint, where there is a diagnosis
    assert text.count(">lost: <") == 4 and "WITHOUT" not in text


def test_a_number_for_another_name_is_told_on_the_page_in_the_index_and_in_the_csv(tmp_path):
    note = "your notebook says 'Hana', but you submitted as 'ada'"
    lost = dict.fromkeys(("by-hand/parameters", "by-hand/reduction"), wrong(note=note))
    folder = write(tmp_path, ASSIGNMENT, [row(record(questions=questions(lost)))])
    assert unescape(page(folder, "ada")).count(note) == 2
    assert unescape((folder / "index.html").read_text()).count(note) == 1
    assert [r["reason"] for r in table(folder)] == [note]


def test_a_page_warns_about_a_missing_sandbox_and_lists_remarks(tmp_path):
    died = {"state": State.KERNEL_DIED, "reason": "signal 11", "sandbox": UNSAFE}
    folder = write(tmp_path, ASSIGNMENT, [row(record(remarks=("a cell was changed",), **died))])
    text = page(folder, "ada")
    for part in (
        "Graded WITHOUT a sandbox",
        "The kernel died; later cells were not run.",
        "signal 11",
        "a cell was changed",
    ):
        assert part in text
    assert "1 of these was graded WITHOUT a sandbox" in (folder / "index.html").read_text()


def test_student_text_is_never_html_and_pages_have_no_active_content(tmp_path):
    student = '"><script>alert(1)</script>'
    lost = {"forward": wrong(HOSTILE, given=HOSTILE, inputs=HOSTILE)}
    texts = {"reason": HOSTILE, "remarks": (HOSTILE,), "limits": HOSTILE}
    rec = record(student, state=State.REFUSED, questions=questions(lost), **texts)
    folder = write(tmp_path, ASSIGNMENT, [row(rec)])
    assert "<script" not in page(folder, student)
    for text in (page(folder, student), (folder / "index.html").read_text()):
        soup = BeautifulSoup(text, "html.parser")
        assert soup.find_all(["img", "link", "iframe", "object"]) == []
        scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        assert scripts == [SCRIPT] * (text.count("<script") and 1)
        for tag in soup.find_all(True):
            assert not any(name.startswith("on") or name in ("src", "style") for name in tag.attrs)
            assert re.fullmatch(r"[\w%.@+~-]+\.html", tag.get("href") or "x.html")
        (policy,) = soup.select("meta[http-equiv]")
        assert policy["content"].startswith("default-src 'none'; style-src 'sha256-")
        assert "http://" not in text and "https://" not in text


def test_an_expected_value_that_must_stay_hidden_is_not_on_the_page(tmp_path):
    lost = {"by-hand/parameters": wrong("not right", expected=None)}
    folder = write(tmp_path, ASSIGNMENT, [row(record(questions=questions(lost)))])
    text = page(folder, "ada")
    assert "<dt>expected</dt>" not in text and "<dt>given</dt>" in text


def test_statistics_leave_out_submissions_without_a_score():
    half = record("b", questions=questions({"merge": wrong(), "inject": wrong()}))
    failed = record("x", state=State.GRADING_ERROR, questions=unreadable().questions)
    refused = record("r", state=State.REFUSED)
    stats = score_statistics([record("a"), half, unreadable("c"), failed, refused])
    assert (stats.scores, stats.mean, stats.median, stats.most) == ((24, 12, 0), 12, 12, 24)
    assert (stats.lower, stats.upper) == (6, 18)
    shares = {share.question: share.share for share in stats.shares}
    assert shares["merge"] == pytest.approx(1 / 3) and shares["counts"] == pytest.approx(2 / 3)
    assert score_statistics([record()]).upper == 24
    marked = {"a": points(record("a"), by_hand=3), "c": points(unreadable("c"))}
    totals = score_statistics([record("a"), half, unreadable("c")], marked)
    assert (totals.scores, totals.mean, totals.most) == ((27, 0), 13.5, 28)


def test_every_score_is_in_exactly_one_bar():
    for most in (0, 1, 5, 12, 24, 100):
        bars = histogram(list(range(most + 1)), most)
        assert sum(bar.count for bar in bars) == most + 1 and len(bars) <= 12, most
        assert all(bar.height >= 0 and bar.x + bar.width <= 600 for bar in bars), most


def test_an_empty_class_gets_an_index_and_an_empty_table(tmp_path):
    folder = write(tmp_path, ASSIGNMENT, [])
    assert table(folder) == []
    assert "0 students, 0 submissions" in (folder / "index.html").read_text()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_the_window_follow_their_policy_and_have_enough_contrast(
    browser, tmp_path, width, scheme
):
    lost = {"forward": wrong("x" * 300, given="y" * 400), "counts": wrong()}
    records = [record("a" * 80, questions=questions(lost), sandbox=UNSAFE), unreadable("ben")]
    folder = write(tmp_path, ASSIGNMENT, [*map(row, records), Row(Person("cleo"), None, None)])
    tab = Tab(browser, width, scheme)
    for file in folder.glob("*.html"):
        page = tab.open(file)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert low_contrast(page) == []
    assert tab.problems == []
