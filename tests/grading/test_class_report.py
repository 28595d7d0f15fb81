"""grades.csv, the students' pages and the index: correct, inert and readable."""

import csv
import re
from html.parser import HTMLParser

import pytest

from course_pkg.grading.feedback.class_report import COLUMNS, current, write
from course_pkg.grading.feedback.class_report import folder as results_folder
from course_pkg.grading.feedback.pages import histogram
from course_pkg.grading.results.keys import secret
from course_pkg.grading.results.score_statistics import score_statistics
from course_pkg.grading.results.states import State
from course_pkg.grading.results.store import Store, file_stem
from tests.chromium import Tab, low_contrast

from .recorded import ASSIGNMENT, HOSTILE, questions, record, unreadable, wrong

UNSAFE = "NONE: --unsafe-no-sandbox"


def table(folder):
    with open(folder / "grades.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page(folder, student):
    return (folder / f"{file_stem(student)}.html").read_text("utf-8")


def test_the_csv_has_one_sorted_row_per_student_with_numbers_as_numbers(tmp_path):
    lost = questions({"counts": wrong()})
    folder = write(tmp_path, ASSIGNMENT, [unreadable("ben"), record("ada", questions=lost)],
                   {"ada": 4.0})  # fmt: skip
    rows = table(folder)
    assert tuple(rows[0]) == COLUMNS and [row["student"] for row in rows] == ["ada", "ben"]
    assert float(rows[0]["score"]) == 21 and float(rows[0]["max_score"]) == 24
    assert (rows[0]["to_mark"], rows[1]["to_mark"]) == ("4.0", "0.0")
    assert rows[1]["state"] == "unreadable" and rows[1]["reason"] == "the file breaks off at line 4"
    assert (rows[0]["start_s"], rows[0]["limits"]) == ("0.4", "cgroup v1")
    assert folder == tmp_path / "results" / ASSIGNMENT


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=1"])
def test_no_text_in_the_csv_is_a_spreadsheet_formula(tmp_path, text):
    folder = write(tmp_path, ASSIGNMENT, [record(text, reason=text, limits=text)], {})
    (row,) = table(folder)
    for name in ("student", "reason", "limits"):
        assert row[name].startswith("'") and "\t" not in row[name] and "\r" not in row[name]


def test_the_report_includes_stored_records_of_students_who_still_have_a_submission(tmp_path):
    store = Store(tmp_path, secret(tmp_path))
    for student in ("ada", "ben", "gone"):
        store.save(record(student))
    write(tmp_path, ASSIGNMENT, [record(student) for student in ("ada", "ben", "gone")], {})
    fresh = record("ben", reason="again")
    now = current(store, ASSIGNMENT, {"ada", "ben", "new"}, [fresh])
    assert [(r.student, r.reason) for r in now] == [("ada", ""), ("ben", "again")]
    folder = tmp_path / "results" / ASSIGNMENT
    (folder / "mine.html").write_text("somebody's own")
    write(tmp_path, ASSIGNMENT, now, {})
    assert sorted(p.name for p in folder.iterdir()) == [
        "ada.html", "ben.html", "grades.csv", "index.html", "mine.html",
    ]  # fmt: skip


def test_a_page_names_the_property_behind_every_lost_point(tmp_path):
    lost = {"forward": wrong("the scale is wrong", explanations=("you divided twice",))}
    text = page(write(tmp_path, ASSIGNMENT, [record(questions=questions(lost))], {"ada": 4}), "ada")
    for part in ("the update is B(Ax): A first, then B", "smallest failing input", "{n: 2}",
                 "the scale is wrong", "you divided twice", "r is the number of rows of A",
                 "4 more points are to be marked", "19 <small>of 24 points", "0.40 s to start",
                 "cgroup v1"):  # fmt: skip
        assert part in text
    assert text.count('class="lost"') == 4 and "WITHOUT" not in text


def test_a_page_warns_about_a_missing_sandbox_and_lists_remarks(tmp_path):
    rec = record(
        state=State.KERNEL_DIED, reason="signal 11", remarks=("a cell was changed",), sandbox=UNSAFE
    )
    folder = write(tmp_path, ASSIGNMENT, [rec], {})
    text = page(folder, "ada")
    for part in ("Graded WITHOUT a sandbox", "The kernel died; later cells were not run.",
                 "signal 11", "a cell was changed"):  # fmt: skip
        assert part in text
    assert "1 of these was graded WITHOUT a sandbox" in (folder / "index.html").read_text()


class Tags(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_student_text_is_never_html_and_pages_have_no_active_content(tmp_path):
    student = '"><script>alert(1)</script>'
    rec = record(
        student,
        state=State.REFUSED,
        reason=HOSTILE,
        remarks=(HOSTILE,),
        limits=HOSTILE,
        questions=questions({"forward": wrong(HOSTILE, given=HOSTILE, inputs=HOSTILE)}),
    )
    folder = write(tmp_path, ASSIGNMENT, [rec], {})
    for text in (page(folder, student), (folder / "index.html").read_text()):
        found = Tags(text).found
        assert {tag for tag, _ in found}.isdisjoint({"script", "img", "link", "iframe", "object"})
        for _, attributes in found:
            assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
            assert re.fullmatch(r"[\w%.@+~-]+\.html", attributes.get("href") or "x.html")
        policy = next(a["content"] for _, a in found if a.get("http-equiv"))
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "http://" not in text and "https://" not in text


def test_an_expected_value_that_must_stay_hidden_is_not_on_the_page(tmp_path):
    lost = {"by-hand/parameters": wrong("not right", expected=None)}
    folder = write(tmp_path, ASSIGNMENT, [record(questions=questions(lost))], {})
    assert "<dt>expected</dt>" not in page(folder, "ada") and "<dt>given</dt>" in page(
        folder, "ada"
    )


def test_statistics_leave_out_submissions_without_a_score():
    half = record("b", questions=questions({"merge": wrong(), "inject": wrong()}))
    failed = record("x", state=State.GRADING_ERROR, questions=unreadable().questions)
    stats = score_statistics([record("a"), half, unreadable("c"), failed])
    assert (stats.count, stats.mean, stats.median, stats.most) == (3, 12, 12, 24)
    assert (stats.lower, stats.upper) == (6, 18)
    shares = {share.question: share.share for share in stats.shares}
    assert shares["merge"] == pytest.approx(1 / 3) and shares["counts"] == pytest.approx(2 / 3)
    assert score_statistics([record()]).upper == 24


@pytest.mark.parametrize("most", [0, 1, 5, 12, 24, 100])
def test_every_score_is_in_exactly_one_bar(most):
    bars = histogram(list(range(most + 1)), most)
    assert sum(bar.count for bar in bars) == most + 1 and len(bars) <= 12
    assert all(bar.height >= 0 and bar.x + bar.width <= 600 for bar in bars)


def test_a_folder_named_like_a_page_is_not_touched(tmp_path):
    odd = tmp_path / results_folder(ASSIGNMENT) / "mine.html"
    odd.mkdir(parents=True)
    write(tmp_path, ASSIGNMENT, [], {})
    assert odd.is_dir()


def test_an_empty_class_gets_an_index_and_an_empty_table(tmp_path):
    folder = write(tmp_path, ASSIGNMENT, [], {})
    assert table(folder) == [] and "0 submissions" in (folder / "index.html").read_text()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_window_follow_their_policy_and_have_enough_contrast(
    browser, tmp_path, width, scheme
):
    lost = {"forward": wrong("x" * 300, given="y" * 400), "counts": wrong()}
    records = [record("a" * 80, questions=questions(lost), sandbox=UNSAFE), unreadable("ben")]
    folder = write(tmp_path, ASSIGNMENT, records, {"ben": 4})
    tab = Tab(browser, width, scheme)
    for file in folder.glob("*.html"):
        page = tab.open(file)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert low_contrast(page) == []
    assert tab.problems == []
