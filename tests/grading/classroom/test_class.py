"""A class as a whole: everybody's results, rosters, removing a student, and grades for an LMS."""

import csv
import io
import os
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunLimits, State
from course_pkg.grading.classroom.feedback import class_report
from course_pkg.grading.classroom.feedback.lms_export import (
    canvas,
    feedback_zip,
    moodle,
    old_feedback,
)
from course_pkg.grading.classroom.gradebook.class_rows import Points, Row, class_points, class_rows
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.record import Store
from course_pkg.grading.classroom.gradebook.students import save_roster, students
from course_pkg.grading.classroom.runs.batch import Batch, Graded
from course_pkg.grading.classroom.runs.grade_class import with_lateness
from course_pkg.grading.classroom.submissions.collect import collect
from course_pkg.grading.classroom.submissions.roster import Person, Roster, RosterError, read_roster

from .recorded import ASSIGNMENT, questions, record, wrong
from .test_gradebook import mark, notebook
from .test_layouts import CANVAS, NOTEBOOK, WORKSHEET, make_zip, written

ADA = Person("ada", "Ada", "Lovelace", "ada@uni.edu", "101")
ZOE = Person("zoe", "Zoë", "Müller", "zoe@uni.edu", "102")


def grade(book, *submissions, state=State.GRADED, **changes):
    """Write results as a run does, of submissions that a checker has judged."""
    writer = Batch(book.course, resolve(ASSIGNMENT), RunLimits(), book, None).recorder
    made = []
    for one in submissions:
        rec = record(one.student, **{"state": state, "files": one.student, **changes})
        made.append(writer.write(one, Graded(rec, notebook(rec) if rec.score else None)))
    class_report.write(book.course, ASSIGNMENT, class_rows(book, ASSIGNMENT, made))


def flat(folder, *names):
    for name in names:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.ipynb").write_bytes(NOTEBOOK)
    return collect(folder, ASSIGNMENT)


def table(course):
    with open(course.root / "results" / ASSIGNMENT / "grades.csv", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def run(course, monkeypatch, *arguments, answer=None):
    monkeypatch.chdir(course.root)
    return CliRunner().invoke(app, arguments, input=answer)


def test_a_second_run_with_two_latecomers_removes_nobody(course, book, tmp_path):
    save_roster(book, Roster([ADA, ZOE, Person("cleo")], complete=True))
    grade(book, *flat(tmp_path / "first", "ada", "ben"))
    grade(book, *flat(tmp_path / "second", "dan", "eve"))
    rows = table(course)
    assert {student: row["state"] for student, row in rows.items()} == {
        **dict.fromkeys(("ada", "ben", "dan", "eve"), "graded"),
        **dict.fromkeys(("cleo", "zoe"), "no-submission"),
    }
    assert rows["ada"]["last_name"] == "Lovelace" and rows["cleo"]["score"] == ""
    index = (course.root / "results" / ASSIGNMENT / "index.html").read_text()
    assert "6 students, 4 submissions" in index
    pages = {path.stem for path in (course.root / "results" / ASSIGNMENT).glob("*.html")}
    assert pages == {"index", "ada", "ben", "dan", "eve"}


def test_a_refused_submission_adds_nobody_but_its_reason_stays_in_the_results(
    course, book, tmp_path
):
    save_roster(book, Roster([ADA], complete=True))
    refused = {"state": State.REFUSED, "reason": "no notebook", "questions": ()}
    grade(book, *flat(tmp_path / "first", "ada", "typo"), **refused)
    assert {person.id for person in students(book).people} == {"ada"}
    assert class_points(book, ASSIGNMENT)["ada"].score == 0  # a known student gets feedback
    grade(book, *flat(tmp_path / "second", "dan"))
    row = table(course)["typo"]
    assert (row["state"], row["reason"], row["score"]) == ("refused", "no notebook", "")


def test_totals_agree_after_manual_grading_late_penalty_and_regrading(
    course, monkeypatch, tmp_path
):
    config = course.root / "nbgrader_config.py"
    config.write_text(config.read_text() + "\nc.AssignLatePenalties.plugin_class = 'five.Five'\n")
    (course.root / "five.py").write_text(
        "from nbgrader.plugins import BasePlugin\n\n\nclass Five(BasePlugin):\n"
        "    def late_submission_penalty(self, student_id, score, total_seconds_late):\n"
        "        return 5\n"
    )
    due = datetime(2026, 3, 1, 12, tzinfo=UTC)
    (ada,) = flat(tmp_path / "in", "ada")
    lost = questions({"counts": wrong()})

    def totals():
        with CourseGradebook(course.root) as book:
            points = class_points(book, ASSIGNMENT)["ada"]
        row = table(course)["ada"]
        parts = [float(row[name]) for name in ("automatic", "by_hand", "late_penalty")]
        assert parts == [points.automatic, points.by_hand, points.late_penalty]
        assert float(row["score"]) == points.score == parts[0] + parts[1] - parts[2]
        page = (course.root / "results" / ASSIGNMENT / "ada.html").read_text()
        assert f"{points.score:g} <small>of 28 points" in page
        return points

    with CourseGradebook(course.root) as book:
        book.nbgrader_book.update_or_create_assignment(ASSIGNMENT, duedate=due.replace(tzinfo=None))
        late = replace(ada, timestamp=due + timedelta(hours=2), trusted=True)
        grade(book, late, questions=lost)
        mark(book, 3)
    done = run(course, monkeypatch, "results", ASSIGNMENT)
    assert done.exit_code == 0, done.output
    assert (totals().score, totals().to_mark) == (19, 0)
    with CourseGradebook(course.root) as book:  # a regrade without the roster keeps the time
        grade(book, ada, key="of another version of the grader")
    assert (totals().score, totals().by_hand, totals().late_s) == (22, 3, 7200)
    done = run(course, monkeypatch, "extend", ASSIGNMENT, "ada", "--hours", "2")
    assert done.exit_code == 0 and "not late, score 27 of 28" in done.output
    assert totals().score == 27 and totals().to_mark == 0  # the written answer is the same
    with CourseGradebook(course.root) as book:
        book.nbgrader_book.find_grade("written", *[ASSIGNMENT] * 2, "ada").needs_manual_grade = True
        book.nbgrader_book.db.commit()
    exported = run(course, monkeypatch, "export-grades", ASSIGNMENT, "--format", "canvas")
    assert ",27\n" in (course.root / "results" / ASSIGNMENT / "canvas.csv").read_text()
    assert exported.exit_code == 0, exported.output
    assert "1 student has points that wait for a person" in exported.output


def test_the_command_names_students_with_one_number_and_ends_with_1(course, monkeypatch, tmp_path):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada", "zoe"))
        save_roster(book, Roster([ADA, replace(ZOE, lms_id=ADA.lms_id)], complete=True))
    done = run(course, monkeypatch, "export-grades", ASSIGNMENT, "--format", "moodle")
    assert done.exit_code == 1, done.output
    assert "no feedback is packed of students with the same number: ada, zoe" in done.output
    assert "no score written: 2 rows have one number: Ada Lovelace" in done.output
    assert "not in the file: ada, zoe" in done.output
    filled = read((course.root / "results" / ASSIGNMENT / "moodle.csv").read_text())
    assert [row["Grade"] for row in filled] == ["", ""]


def test_a_time_is_kept_for_the_same_files_and_forgotten_for_others(book, tmp_path):
    when = datetime(2026, 3, 1, 12, tzinfo=UTC)
    path = make_zip(tmp_path / "in.zip", [(f"A_1_assignsubmission_file_/{ASSIGNMENT}.ipynb", b"")])
    (one,) = collect(path, ASSIGNMENT)
    book.nbgrader_book.update_or_create_assignment(ASSIGNMENT, duedate=datetime(2026, 3, 1))
    grade(book, replace(one, timestamp=when, trusted=True))
    rec = [Store(book.course, secret(book.course)).load(ASSIGNMENT, "A")]
    for files, submitted in (("A", when), ("", when), ("A", when), ("new", None)):
        grade(book, one, files=files)
        rec.append(Store(book.course, secret(book.course)).load(ASSIGNMENT, "A"))
        assert class_points(book, ASSIGNMENT)["A"].submitted == submitted
    assert rec[1].remarks == () and "give the grading worksheet" in rec[-1].remarks[0]


def test_what_canvas_calls_late_is_late_without_another_time(course, book, tmp_path):
    names = [f"lovelaceada_LATE_101_1_{ASSIGNMENT}.ipynb", f"müllerzoë_102_2_{ASSIGNMENT}.ipynb"]
    path = make_zip(tmp_path / "in.zip", [(name, NOTEBOOK) for name in names])
    save_roster(book, Roster([ADA, ZOE], complete=True))
    submissions = collect(path, ASSIGNMENT, roster=students(book))
    assert with_lateness(book, ASSIGNMENT, submissions) == submissions  # there is no due date
    book.nbgrader_book.update_or_create_assignment(ASSIGNMENT, duedate=datetime(2026, 3, 1, 12))
    grade(book, *with_lateness(book, ASSIGNMENT, submissions))
    points = class_points(book, ASSIGNMENT)
    assert (points["ada"].late_s, points["zoe"].late_s) == (60, 0)


# -- removing a student


def test_remove_student_asks_and_removes_every_trace(course, monkeypatch, tmp_path):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada", "ben"))
    course.submit("ada", ASSIGNMENT, notebook(record()))
    page = course.root / "feedback" / "ada" / ASSIGNMENT / f"{ASSIGNMENT}.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    exported = course.root / "results" / ASSIGNMENT / "moodle.csv"
    exported.write_text("ada")
    done = run(course, monkeypatch, "remove-student", "ada", answer="n\n")
    assert done.exit_code == 1 and page.exists() and "feedback/ada" in done.output
    done = run(course, monkeypatch, "remove-student", "ada", "--yes")
    assert done.exit_code == 0, done.output
    assert set(table(course)) == {"ben"} and not exported.exists()
    left = [p for p in course.root.rglob("*ada*") if "exercises" not in p.parts]
    assert left == []
    with CourseGradebook(course.root) as book:
        assert {person.id for person in students(book).people} == {"ben"}
    for answer in ("--yes", None):  # without --yes, it does not ask about nobody
        options = () if answer is None else (answer,)
        done = run(course, monkeypatch, "remove-student", "ada", *options)
        assert done.exit_code == 2 and "no student is called 'ada'" in done.output
    done = run(course, monkeypatch, "remove-student", "../ben", "--yes")
    assert done.exit_code == 2 and "can't be a student's id" in done.output


def test_remove_student_can_remove_one_submission_or_a_refused_one(course, monkeypatch, tmp_path):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada"))
        grade(book, *flat(tmp_path / "other", "typo"), state=State.REFUSED, questions=())
    done = run(course, monkeypatch, "remove-student", "typo", "--yes")
    assert done.exit_code == 0 and set(table(course)) == {"ada"}
    options = ("--assignment", ASSIGNMENT, "--yes")
    assert run(course, monkeypatch, "remove-student", "ada", *options).exit_code == 0
    assert table(course)["ada"]["state"] == "no-submission"
    done = run(course, monkeypatch, "remove-student", "ada", *options)
    assert done.exit_code == 2 and f"ada has no submission to {ASSIGNMENT}" in done.output


def test_remove_student_leaves_a_student_alone_whose_id_ends_in_ipynb(
    course, monkeypatch, tmp_path
):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada", "ada.ipynb", "ben", "ben.ipynb"))
    submitted = course.root / "submitted"
    course.submit("ada.ipynb", ASSIGNMENT, notebook(record()))
    (submitted / "ben.ipynb").write_bytes(NOTEBOOK)
    for student in ("ada", "ben.ipynb"):
        done = run(course, monkeypatch, "remove-student", student, "--yes")
        assert done.exit_code == 0 and set(table(course)).isdisjoint({student}), done.output
    assert (submitted / "ada.ipynb" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").exists()
    assert (submitted / "ben.ipynb").read_bytes() == NOTEBOOK


def test_rename_student_moves_everything_to_the_new_id(course, monkeypatch, tmp_path):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada", "ben"))
        mark(book, 3.0)
        save_roster(book, Roster([Person("al1", email="ada@uni.edu")], complete=True))
    course.submit("ada", ASSIGNMENT, notebook(record()))
    done = run(course, monkeypatch, "rename-student", "ada", "ben")
    assert done.exit_code == 2 and f"both ada and ben have submitted ({ASSIGNMENT})" in done.output
    done = run(course, monkeypatch, "rename-student", "ada", "al1")
    assert done.exit_code == 0, done.output
    row = table(course)["al1"]
    assert (row["state"], row["by_hand"], set(table(course))) == ("graded", "3", {"al1", "ben"})
    left = [p for p in course.root.rglob("*ada*") if "exercises" not in p.parts]
    assert left == []
    assert (course.root / "submitted" / "al1" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").exists()
    with CourseGradebook(course.root) as book:
        people = {person.id: person.email for person in students(book).people}
    assert people == {"al1": "ada@uni.edu", "ben": ""}
    for old, new, says in (("ada", "x", "no student is called"), ("al1", "../x", "can't be a")):
        done = run(course, monkeypatch, "rename-student", old, new)
        assert done.exit_code == 2 and says in done.output


def test_the_points_of_each_question_are_columns_and_other_users_read_nothing(
    course, book, tmp_path
):
    grade(book, *flat(tmp_path / "in", "ada"), questions=questions({"counts": wrong()}))
    row = table(course)["ada"]
    assert (row["question: counts"], row["question: merge"]) == ("0", "7")
    files = [course.root / "results", *(course.root / "results").rglob("*")]
    assert [path for path in files if path.stat().st_mode & 0o007] == []


def test_an_export_without_a_template_overwrites_no_filled_file(course, monkeypatch, tmp_path):
    with CourseGradebook(course.root) as book:
        grade(book, *flat(tmp_path / "in", "ada"))
        save_roster(book, Roster([ADA], complete=True))
    sheet = written(tmp_path / "worksheet.csv", WORKSHEET)
    export = ("export-grades", ASSIGNMENT, "--format", "moodle")
    into = course.root / "results" / ASSIGNMENT / "moodle.csv"
    for _ in range(2):  # its own file may be replaced
        assert run(course, monkeypatch, *export).exit_code == 0
    assert run(course, monkeypatch, *export, "--template", str(sheet)).exit_code == 0
    filled = into.read_bytes()
    done = run(course, monkeypatch, *export)
    assert done.exit_code == 2 and "was filled in from a template" in done.output
    assert into.read_bytes() == filled


def test_results_of_an_unknown_assignment_are_an_error(course, monkeypatch):
    (course.root / ".grading").mkdir(mode=0o700)
    done = run(course, monkeypatch, "results", "no-such")
    assert done.exit_code == 2 and "no assignment is called 'no-such'" in done.output
    assert not (course.root / "results").exists()


# -- grades for Moodle and Canvas


def rows(*people, **changes):
    points = Points(**{**dict(automatic=20, by_hand=1, late_penalty=0, max_score=28), **changes})
    return [Row(person, record(person.id), points) for person in people]


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_moodles_worksheet_is_filled_in_and_scaled(tmp_path):
    path = written(tmp_path / "worksheet.csv", WORKSHEET)
    cleo = Row(Person("cleo"), None, None)
    made = moodle([*rows(replace(ADA, id="al1"), Person("dan")), cleo], path)
    first, second = read(made.text)
    assert (first["Grade"], second["Grade"]) == ("75", "")
    kept = ("Identifier", "Last modified (submission)")
    assert [first[name] for name in kept] == ["Participant 101", "Sunday, 1 March 2026, 3:40 PM"]
    assert (made.written, made.left_out) == (1, ("dan",))
    assert made.notes == ("scores are scaled from 28 to 100 points",)
    with pytest.raises(RosterError, match="not Moodle's grading worksheet"):
        moodle([], written(tmp_path / "gradebook.csv", CANVAS))


def test_canvas_gets_one_column_of_its_gradebook(tmp_path):
    path = written(tmp_path / "gradebook.csv", CANVAS)
    people = [replace(ADA, lms_id="12345"), replace(ZOE, lms_id="")]
    made = canvas(rows(*people), ASSIGNMENT, path)
    title = "LoRA math (4711)"
    assert [row[title] for row in read(made.text)] == ["28", "21", "21"]
    assert made.text.startswith("Student,ID,SIS User ID,SIS Login ID,Section,LoRA math (4711)\n")
    assert made.left_out == made.notes == ()
    with pytest.raises(RosterError, match=r"no columns for bleu; choose .*LoRA math \(4711\)"):
        canvas([], "bleu", path)
    assert canvas(rows(*people), "bleu", path, title).written == 2


def test_without_a_template_the_files_have_the_systems_columns():
    made = moodle(rows(ADA, Person("dan")), None)
    assert made.notes[0].startswith("students without Moodle's number: 1; Moodle needs --template")
    assert len(moodle(rows(ADA), None).notes) == 1
    (row,) = read(made.text)
    assert row["Identifier"] == "Participant 101" and row["Full name"] == "Ada Lovelace"
    assert (row["Grade"], row["Maximum Grade"], made.left_out) == ("21", "28", ("dan",))
    points, row = read(canvas(rows(ADA), ASSIGNMENT, None).text)
    assert (points["Student"], points[ASSIGNMENT]) == ("    Points Possible", "28")
    assert (row["Student"], row["ID"], row[ASSIGNMENT]) == ("Lovelace, Ada", "101", "21")


@pytest.mark.parametrize("with_template", [False, True])
def test_no_name_in_an_export_is_a_spreadsheet_formula(tmp_path, with_template):
    person = replace(ADA, first_name="=cmd|A0", last_name="", lms_id="101")
    moodles = written(tmp_path / "worksheet.csv", WORKSHEET.replace("Ada Lovelace", "=cmd|A0"))
    canvases = written(tmp_path / "gradebook.csv", CANVAS.replace("Lovelace, Ada", "=cmd|A0"))
    made = moodle(rows(person), moodles if with_template else None)
    assert read(made.text)[0]["Full name"] == "'=cmd|A0"
    made = canvas(rows(person), ASSIGNMENT, canvases if with_template else None)
    points, row = read(made.text)[:2]
    assert (points["Student"], row["Student"]) == ("    Points Possible", "'=cmd|A0")


def test_a_state_without_a_score_is_not_exported(tmp_path):
    path = written(tmp_path / "worksheet.csv", WORKSHEET)
    failed = [replace(rows(ADA)[0], record=record("ada", state=State.GRADING_ERROR))]
    assert moodle(failed, path).written == 0


def test_feedback_is_packed_as_moodle_expects_it(tmp_path):
    page = tmp_path / "feedback" / "ada" / ASSIGNMENT / f"{ASSIGNMENT}.html"
    page.parent.mkdir(parents=True)
    page.write_text("well done")
    (page.parent / "mine.html").write_text("copied by nbgrader from the submission")
    into = tmp_path / "moodle-feedback.zip"
    assert feedback_zip(tmp_path, ASSIGNMENT, rows(ADA, ZOE), into) == 1
    with zipfile.ZipFile(into) as packed:
        assert packed.namelist() == [f"Ada Lovelace_101_assignfeedback_file_/{ASSIGNMENT}.html"]
    assert feedback_zip(tmp_path, ASSIGNMENT, rows(ZOE), tmp_path / "none.zip") == 0
    assert not (tmp_path / "none.zip").exists()
    assert old_feedback(tmp_path, ASSIGNMENT, rows(ADA, ZOE)) == []
    os.utime(page, (0, 0))
    assert old_feedback(tmp_path, ASSIGNMENT, rows(ADA, ZOE)) == ["ada"]


def test_the_rosters_of_moodle_and_canvas_give_names_to_nbgraders_gradebook(book, tmp_path):
    save_roster(book, read_roster(written(tmp_path / "gradebook.csv", CANVAS)))
    people = {person.id: person for person in students(book).people}
    assert people["ada"] == Person("ada", "Ada", "Lovelace", "", "12345")
    assert len(people) == 2
