"""nbgrader's gradebook: scores, files, and nbgrader's own commands on them."""

import csv
import html
import os
import re
import shutil
import sqlite3
from datetime import datetime, timedelta

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import MissingEntry
from sqlalchemy import text

from course_pkg.grading.assemble import questions_by_cell
from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook import nbgrader_api
from course_pkg.grading.classroom.gradebook.autograded import replace_folder
from course_pkg.grading.classroom.gradebook.class_rows import class_points
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook, GradebookError
from course_pkg.grading.classroom.gradebook.graded_notebook import with_note, with_results
from course_pkg.grading.classroom.release import ReleaseError
from tests.grading.classroom.recorded import (
    ASSIGNMENT,
    HOSTILE,
    ROOT,
    answered,
    notebook,
    questions,
    record,
    released,
    unreadable,
    write,
    wrong,
)

MOST = 24


def submission(book, student="ada"):
    book.nbgrader_book.db.rollback()
    return book.nbgrader_book.find_submission(ASSIGNMENT, student)


def grades(book, student="ada"):
    return {g.name: g for g in submission(book, student).notebooks[0].grades}


def written(book, student="ada"):
    path = book.course / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    return nbformat.read(path, as_version=4)


# -- the graded notebook


def test_a_test_cell_shows_only_the_graders_result():
    rec = record(questions=questions({"counts": wrong(given=HOSTILE, reason=HOSTILE)}))
    fake = [
        new_output("stream", name="stderr", text="error"),
        new_output("execute_result", data={"text/plain": "3.0"}, execution_count=1),
    ]
    shown = notebook(rec, {index: fake for index in range(len(released().cells))})
    cells = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in shown.cells}
    (result,) = cells["check-counts"].outputs
    assert result.data["text/plain"] == "0.0"
    assert "<script" not in result.data["text/html"] and "&lt;script" in result.data["text/html"]
    assert "tex2jax_ignore" in result.data["text/html"]
    assert cells["counts"].outputs == fake  # outputs of other cells are kept


def test_the_report_never_shows_the_expected_value_of_a_by_hand_question():
    lost = {"by-hand/parameters": wrong(expected=None, given="5", inputs="{d: 8}")}
    cells = notebook(record(questions=questions(lost))).cells
    text = "".join(o.data["text/html"] for c in cells for o in c.get("outputs", []))
    assert '<dt>given</dt><dd class="code">5</dd>' in text and "<dt>expected</dt>" not in text


def test_a_test_cell_whose_question_or_points_do_not_match_raises():
    nb = answered()
    for other in ("no-such", "forward"):
        checks = {**questions_by_cell(nb, ASSIGNMENT), "check-counts": other}
        with pytest.raises(ValueError, match="check-counts"):
            with_results(nb, record(), checks, {})


def test_the_note_on_top_lists_remarks_as_inert_text():
    nb = released()
    assert with_note(nb, record()).cells == nb.cells
    rec = record(state=State.REFUSED, reason=HOSTILE, remarks=("a `cell` was **moved**\n\n# x",))
    note = with_note(nb, rec).cells[0]
    assert note.cell_type == "markdown" and "the submission was not accepted" in note.source
    assert not set("$\\`*") & set(note.source) and "<script" not in note.source
    assert "\n" not in note.source
    assert "WITHOUT a sandbox" in with_note(nb, record(sandbox="NONE: --unsafe")).cells[0].source


# -- scores


def test_scores_match_the_record_and_written_work_needs_manual_grading(book):
    rec = record(questions=questions({"counts": wrong(), "forward": wrong()}))
    write(book, rec)
    cells = grades(book)
    assert sum(g.auto_score or 0 for g in cells.values()) == rec.score == MOST - 8
    assert cells["check-counts"].auto_score == 0 and cells["check-merge"].auto_score == 7
    assert cells["written"].needs_manual_grade and cells["written"].auto_score is None
    assert not cells["check-counts"].needs_manual_grade
    assert class_points(book, ASSIGNMENT)["ada"].to_mark == 4.0


def test_the_gradebook_is_the_same_as_after_nbgraders_own_preprocessor(book):
    from nbgrader.preprocessors import SaveAutoGrades

    rec = record(questions=questions({"merge": wrong()}))
    write(book, rec)
    rows = [(g.name, g.auto_score, g.needs_manual_grade) for g in grades(book).values()]
    notes = {c.name: c.auto_comment for c in submission(book).notebooks[0].comments}
    book.nbgrader_book.db.rollback()
    url = f"sqlite:///{book.course}/gradebook.db"
    names = {"notebook": ASSIGNMENT, "assignment": ASSIGNMENT, "student": "ada", "db_url": url}
    SaveAutoGrades().preprocess(written(book), {"nbgrader": names})
    assert rows == [(g.name, g.auto_score, g.needs_manual_grade) for g in grades(book).values()]
    assert notes == {c.name: c.auto_comment for c in submission(book).notebooks[0].comments}


def test_a_regrade_keeps_manual_scores_and_asks_for_a_review(book):
    write(book, record(questions=questions({"counts": wrong()})))
    mark(book, 3.0)
    mark(book, 2.0, "check-counts")
    comment = book.nbgrader_book.find_comment("counts", ASSIGNMENT, ASSIGNMENT, "ada")
    comment.manual_comment = "almost"
    book.nbgrader_book.db.commit()
    write(book, record())
    cells = grades(book)
    assert (cells["written"].manual_score, cells["check-counts"].manual_score) == (3.0, 2.0)
    assert cells["check-counts"].needs_manual_grade  # its automatic points are others now
    assert not cells["written"].needs_manual_grade  # it is the same text
    assert cells["check-counts"].auto_score == 3
    kept = book.nbgrader_book.find_comment("counts", ASSIGNMENT, ASSIGNMENT, "ada")
    assert kept.comment == "almost"


def test_points_by_hand_are_reviewed_if_the_answer_changed(book):
    def submit(text, code=""):
        rec = record()
        nb = notebook(rec)
        nb.cells.append(new_markdown_cell(text))
        (test,) = (n for n, c in enumerate(nb.cells) if "check-counts" in str(c.metadata))
        nb.cells[test - 1].source += code
        book.write(rec, nb, {}, None)
        book.nbgrader_book.db.expire_all()
        return {name for name, grade in grades(book).items() if grade.needs_manual_grade}

    assert submit("one") == {"written"}
    mark(book, 3.0)
    mark(book, 2.5, "check-counts")
    assert submit("one") == set()
    assert submit("two") == {"written"}
    mark(book, 3.0)
    assert submit("two", "  # better") == {"check-counts"}
    assert grades(book)["written"].manual_score == 3.0


def graded_cell(name, cell, **marks):
    known = dict(grade_id=name, schema_version=3, grade=False, solution=False, locked=False)
    cell.metadata["nbgrader"] = {**known, "task": False, **marks}
    return cell


@pytest.mark.slow
def test_cells_that_are_added_after_grading_keep_points_and_are_filled(course):
    (course.root / "solutions").unlink()  # a link to ours
    shutil.copytree(ROOT / "solutions" / ASSIGNMENT, course.root / "solutions" / ASSIGNMENT)
    path = course.root / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    with CourseGradebook(course.root) as book:
        write(book, record())
        mark(book, 3.0)
        assert book.add_new_cells(ASSIGNMENT) == []
        nb = nbformat.read(path, as_version=4)
        new = graded_cell("more", new_markdown_cell("Why?"), grade=True, solution=True, points=2)
        test = graded_cell("extra", new_code_cell("pass"), grade=True, locked=True, points=1)
        nb.cells += [new, test]
        nbformat.write(nb, path)
        assert book.ensure_assignment(ASSIGNMENT)  # the release on disk is still the known one
        assert book.add_new_cells(ASSIGNMENT) == ["more", "extra"]
        book.nbgrader_book.db.expire_all()
        cells = grades(book)
        assert (cells["written"].manual_score, cells["written"].needs_manual_grade) == (3.0, False)
        assert cells["more"].needs_manual_grade and not cells["extra"].needs_manual_grade
        assert book.add_new_cells(ASSIGNMENT) == []
        assert len(book.ensure_assignment(ASSIGNMENT).cells) == len(nb.cells)
        assert submission(book).max_score == 28 + 3 and submission(book).score == MOST + 3
        del nb.cells[-1]
        nbformat.write(nb, path)
        with pytest.raises(ReleaseError, match=r"1 submissions .* gone or of another kind: extra"):
            book.add_new_cells(ASSIGNMENT)


def test_a_locked_gradebook_says_who_may_hold_it(course, monkeypatch):
    monkeypatch.setattr(nbgrader_api, "BUSY_S", 0)
    with CourseGradebook(course.root) as book:
        write(book, record())
        other = sqlite3.connect(course.root / "gradebook.db")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(GradebookError, match=r"another program has locked .* formgrader"):
            write(book, record("ben"))
        other.close()


def test_other_users_can_not_read_the_gradebook(course):
    path = course.root / "gradebook.db"
    path.chmod(0o664)
    CourseGradebook(course.root).__exit__(None, None, None)
    assert path.stat().st_mode & 0o777 == 0o660


def test_an_unreadable_resubmission_scores_0_and_a_fixed_one_scores_again(book):
    write(book, record())
    assert submission(book).score == MOST
    write(book, unreadable())
    assert submission(book).score == 0
    assert not any(g.needs_manual_grade for g in grades(book).values())
    note = written(book).cells[0].source
    assert "the file is not a readable notebook" in note and "breaks off at line 4" in note
    write(book, record())
    assert submission(book).score == MOST and grades(book)["written"].needs_manual_grade


def test_an_unchanged_stub_gets_the_comment_no_response(book):
    nb = released()
    rec = record(questions=unreadable().questions)
    book.write(rec, with_results(nb, rec, questions_by_cell(nb, ASSIGNMENT), {}), {}, None)
    notes = {c.name: c.comment for c in submission(book).notebooks[0].comments}
    assert notes["counts"] == "No response." and notes["written"] is None
    write(book, record())
    assert {c.comment for c in submission(book).notebooks[0].comments} == {None}


DUE = datetime(2026, 3, 1, 12)
PLUGIN = """
from nbgrader.plugins import BasePlugin


class Hourly(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 2 * (total_seconds_late / 3600 - 1)
"""


def configure(course, line):
    with open(course.root / "nbgrader_config.py", "a") as file:
        file.write(f"\n{line}\n")


def penalized(course):
    """A course in which each late hour but the first costs two points; its gradebook."""
    (course.root / "late.py").write_text(PLUGIN)
    configure(course, "c.AssignLatePenalties.plugin_class = 'late.Hourly'")
    return CourseGradebook(course.root)


def mark(book, points, name="written", student="ada"):
    """Points by hand, as formgrader writes them."""
    grade = book.nbgrader_book.find_grade(name, ASSIGNMENT, ASSIGNMENT, student)
    grade.manual_score = points
    grade.needs_manual_grade = False
    book.nbgrader_book.db.commit()


def test_a_late_submission_gets_the_penalty_of_the_configured_plugin(course):
    configure(course, "c.LateSubmissionPlugin.penalty_method = 'zero'")
    with CourseGradebook(course.root) as book:
        book.nbgrader_book.update_or_create_assignment(ASSIGNMENT, duedate=DUE)
        write(book, record(), DUE + timedelta(hours=1))
        assert submission(book).late_submission_penalty == MOST
        assert submission(book).timestamp == DUE + timedelta(hours=1)
        mark(book, 3)
        assert class_points(book, ASSIGNMENT)["ada"].score == 3  # nbgrader computes it only once
        book.refresh_penalties(ASSIGNMENT)
        assert class_points(book, ASSIGNMENT)["ada"].score == 0
        write(book, record(), DUE - timedelta(hours=1))
        assert not submission(book).late_submission_penalty


def test_a_penalty_plugin_in_the_courses_folder_and_an_extension(course):
    with penalized(course) as book:
        write(book, record(), DUE + timedelta(hours=4))
        with pytest.raises(GradebookError, match="has no due date: set it with"):
            book.extend(ASSIGNMENT, "ada", 2)
        book.nbgrader_book.grant_extension(ASSIGNMENT, "ada", hours=1)
        assert class_points(book, ASSIGNMENT)["ada"].late_s == 0  # no due date
        book.nbgrader_book.update_or_create_assignment(ASSIGNMENT, duedate=DUE)
        for hours, penalty in ((0, 6), (2, 2), (4, 0)):
            book.extend(ASSIGNMENT, "ada", hours)
            points = class_points(book, ASSIGNMENT)["ada"]
            assert (points.late_penalty, points.score) == (penalty, MOST - penalty)
            assert points.late_s == 3600 * (4 - hours)
        write(book, record(), DUE + timedelta(hours=6))  # a resubmission keeps the extension
        assert class_points(book, ASSIGNMENT)["ada"].late_penalty == 2
        with pytest.raises(GradebookError, match="ben has no graded submission"):
            book.extend(ASSIGNMENT, "ben", 2)


def test_a_full_disk_is_explained_without_a_traceback(book, capfd):
    write(book, record())
    book.nbgrader_book.db.rollback()
    size = book.nbgrader_book.db.execute(text("PRAGMA page_count")).scalar()
    book.nbgrader_book.db.execute(text(f"PRAGMA max_page_count = {size}"))  # as on a full disk
    with pytest.raises(OSError, match="the disk is full, so it was not changed"):
        for number in range(200):
            write(book, record(f"ben{number}"))
    assert "Traceback" not in "".join(capfd.readouterr())
    assert submission(book).score == MOST


def test_a_notebook_whose_score_differs_from_the_record_is_not_written(book):
    rec = record(questions=questions({"counts": wrong()}))
    with pytest.raises(ValueError, match=r"24\.0 points; expected 21"):
        book.write(rec, notebook(record()), {}, None)
    short = notebook(rec)
    short.cells = [c for c in short.cells if "written" not in str(c.metadata)]
    with pytest.raises(ValueError, match="do not have the same cells: written"):
        book.write(rec, short, {}, None)
    with pytest.raises(MissingEntry):
        submission(book)
    assert not (book.course / "autograded").exists()


def test_creating_a_gradebook_restores_the_path_variable(course):
    before = os.environ["PATH"]
    (course.root / "gradebook.db").unlink()
    CourseGradebook(course.root).__exit__(None, None, None)
    assert os.environ["PATH"] == before


# -- files


def files_of(book, student="ada"):
    folder = book.course / "autograded" / student / ASSIGNMENT
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}


def test_files_are_read_only_as_with_nbgrader_and_replace_the_old_ones(book):
    write(book, record(), files={"data/mine.csv": b"1,2", "old.txt": b"x"})
    write(book, record(), datetime(2026, 3, 1), files={"data/mine.csv": b"3,4"})
    paths = files_of(book)
    assert set(paths) == {"data/mine.csv", f"{ASSIGNMENT}.ipynb", "timestamp.txt"}
    assert paths["data/mine.csv"].read_bytes() == b"3,4"
    assert {p.stat().st_mode & 0o777 for p in paths.values()} == {0o444}
    assert [p.name for p in (book.course / "autograded" / "ada").iterdir()] == [ASSIGNMENT]


def test_students_files_replace_none_of_the_courses_and_of_nbgraders(book):
    """nbgrader copies other files to its feedback first, and can't replace a folder by a page."""
    (book.course / "exercises" / ASSIGNMENT / "words.txt").write_text("ours")
    theirs = ("words.txt", f"{ASSIGNMENT}.ipynb", f"{ASSIGNMENT}.html/x", "a.ipynb", "b.IPYNB")
    kept = ("other.html", "data/x.ipynb")
    write(book, record(), files=dict.fromkeys((*theirs, *kept), b"theirs"))
    paths = files_of(book)
    assert set(paths) == {"words.txt", f"{ASSIGNMENT}.ipynb", *kept}
    assert paths["words.txt"].read_text() == "ours"
    nbformat.validate(written(book))


def test_a_path_that_leaves_the_folder_is_refused(book):
    for name in ("../x", "/etc/x", "a/../../x", "", "a\0b"):
        with pytest.raises(ValueError, match="leaves the submission's folder"):
            write(book, record(), files={name: b""})
    assert not (book.course / "autograded").exists()


def test_an_id_with_path_parts_is_refused(book):
    for student in ("", ".", "..", "a/b", "../ada", "a\0"):
        with pytest.raises(ValueError, match="is not a student's id"):
            write(book, record(student))
    assert not (book.course / "autograded").exists()


def test_an_error_while_writing_keeps_the_old_submission(book, monkeypatch):
    write(book, record(), files={"a.txt": b"old"})
    real = os.rename
    monkeypatch.setattr(os, "rename", lambda *a: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write(book, unreadable(), files={"a.txt": b"new"})
    monkeypatch.setattr(os, "rename", real)
    assert files_of(book)["a.txt"].read_text() == "old" and submission(book).score == MOST


def test_leftovers_of_an_interrupted_grader_are_removed(tmp_path):
    (tmp_path / "ada" / ".lora-math.123").mkdir(parents=True)
    replace_folder(tmp_path / "ada" / "lora-math", {"x": b"1"}, 0o444)
    assert [p.name for p in (tmp_path / "ada").iterdir()] == ["lora-math"]


def test_a_failed_rename_keeps_the_old_folder(tmp_path, monkeypatch):
    target = tmp_path / "ada" / "lora-math"
    real = os.rename
    replace_folder(target, {"x": b"old"}, 0o644)

    def rename(a, b):
        if b == target and ".old" not in str(a):
            raise OSError("no")
        real(a, b)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no"):
        replace_folder(target, {"x": b"new"}, 0o644)
    assert (target / "x").read_bytes() == b"old"
    assert [p.name for p in (tmp_path / "ada").iterdir()] == ["lora-math"]


# -- the assignment


@pytest.mark.slow
def test_an_assignment_missing_from_the_gradebook_is_released(course):
    (course.root / "gradebook.db").unlink()
    with CourseGradebook(course.root) as book:
        assert book.ensure_assignment(ASSIGNMENT).cells == released().cells
        write(book, record())
        assert submission(book).max_score == 28


def test_a_known_assignment_is_not_released_again(book):
    path = book.course / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    before = path.stat().st_mtime_ns
    assert book.ensure_assignment(ASSIGNMENT).cells == released().cells
    assert path.stat().st_mtime_ns == before


def test_exercises_changed_by_hand_are_detected_and_not_overwritten(course):
    path = course.root / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].source += "changed"
    nbformat.write(nb, path)
    with CourseGradebook(course.root) as book, pytest.raises(ReleaseError, match="changed by hand"):
        book.ensure_assignment(ASSIGNMENT)


def test_a_damaged_gradebook_is_explained(course):
    (course.root / "gradebook.db").write_text("no database at all" * 100)
    with pytest.raises(GradebookError, match=r"not a database.*back up gradebook.db"):
        CourseGradebook(course.root)


# -- nbgrader's own commands on the result


@pytest.fixture
def written_class(course, book):
    """Three students in the gradebook: right, with a lost question, and unreadable."""
    lost = {"counts": wrong(HOSTILE, given=HOSTILE), "by-hand/parameters": wrong(expected=None)}
    write(book, record("ada"))
    second = {"scratch.ipynb": b'{"cells": []}'}  # nbgrader has no notebook of this name
    write(book, record("ben", questions=questions(lost), remarks=(HOSTILE,)), files=second)
    write(book, unreadable("dan"))
    for student in ("ada", "ben", "dan"):
        course.submit(student, ASSIGNMENT, released())
    return course


@pytest.mark.slow
def test_feedback_and_export_work_on_what_was_written(written_class):
    done = written_class.nbgrader("generate_feedback", ASSIGNMENT)
    assert done.returncode == 0, done.stderr
    pages = {p.parts[-3]: p.read_text() for p in written_class.root.glob("feedback/*/*/*.html")}
    assert {"ada", "ben", "dan"} <= set(pages)
    assert "(Score: 24.0 / 28.0)" in pages["ada"] and "(Score: 0.0 / 28.0)" in pages["dan"]
    assert "the file is not a readable notebook" in pages["dan"]
    text = html.unescape(re.sub(r"<[^>]+>", "", pages["ben"]))
    assert "smallest failing input" in text and "(Score: 20.0 / 28.0)" in pages["ben"]
    assert "<script>alert(1)" not in pages["ben"] and "<img src=x" not in pages["ben"]
    assert written_class.nbgrader("export").returncode == 0
    with open(written_class.root / "grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert scores["ada"] == 24 and scores["ben"] == 20 and scores["dan"] == 0


@pytest.mark.slow
def test_formgraders_api_shows_scores_manual_grading_and_the_mark_scheme(written_class):
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    folders = CourseDirectory(root=str(written_class.root), course_id="llm-course")
    folders.source_directory = "solutions"
    folders.release_directory = "exercises"
    rows = {r["student"]: r for r in NbGraderAPI(coursedir=folders).get_submissions(ASSIGNMENT)}
    assert rows["ada"]["autograded"] and rows["ada"]["score"] == 24
    assert rows["ada"]["needs_manual_grade"] and not rows["dan"]["needs_manual_grade"]
    path = written_class.root / "autograded" / "ada" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    assert "BEGIN MARK SCHEME" in path.read_text()
