"""The checks of `python -m tests.classroom.term`: each finds the fault that it is for."""

import csv
from collections import Counter
from dataclasses import replace

import pytest

from course_pkg.classroom.feedback import class_report
from course_pkg.classroom.gradebook.class_rows import class_rows

from .corpus import ASSIGNMENT
from .term import checks
from .term.course import BUSY, TASK, TRIES, Course, StepFailed
from .term.crashes import graded
from .term.members import DUE, KINDS, deserved, members, penalty
from .term.report import Report
from .test_class import flat, grade


@pytest.fixture
def term(course, book, tmp_path):
    """A course with two graded submissions and points by hand, and its gradebook, which is open."""
    made = Course(course.root)
    grade(book, *flat(tmp_path / "in", "ada", "ben"))
    made.mark({"ada": 3.0, "ben": 0.0})
    made.comment({student: checks.comment(student) for student in ("ada", "ben")})
    return made, book.nbgrader_book


def test_a_class_has_somebody_of_every_kind_and_more_in_a_larger_one():
    small, large = members(8, 2), members(60, 10)
    assert [one.kind for one in small] == [*KINDS, "hostile", "hostile"]
    kinds = Counter(one.kind for one in large)
    assert len({one.id for one in large}) == 60 and kinds["hostile"] == 10
    assert min(kinds[kind] for kind in ("right", "partly", "untouched", "late", "missing")) > 1
    assert sum(not one.known for one in large) == 1  # an id that a roster can't have
    assert {one.in_roster for one in large if one.kind == "late"} == {False, True}
    for students, hostile in ((7, 2), (60, 13), (6, -1)):
        with pytest.raises(ValueError, match="at most 12 hostile ones and at least 6 others"):
            members(students, hostile)


def test_what_a_member_deserves():
    assert (deserved(0.0), deserved(0.5), deserved(1.0)) == (0, 4, 24)
    assert [round(penalty(20, hours), 6) for hours in (-3, 0, 1, 24, 25, 1000)] == [
        0, 0, 2, 2, 4, 20
    ]  # fmt: skip


def test_the_files_are_the_same_in_every_course(tmp_path):
    texts = []
    for name in ("one", "two"):
        for member in members(8, 2):
            if member.submits:
                member.submit(tmp_path / name)
        paths = sorted((tmp_path / name).rglob("*.ipynb"))
        texts.append([(p.read_bytes(), p.stat().st_mtime) for p in paths])
    assert texts[0] == texts[1] and len(texts[0]) == 7
    late = next(one for one in members(8, 2) if one.kind == "late")
    assert (DUE - late.submitted_at).total_seconds() == -60 * 3600


def change(book, what):
    """Change one thing in the gradebook, as a fault of the grader would."""
    (nb,) = book.find_submission(ASSIGNMENT, "ada").notebooks
    cell = next(g for g in nb.grades if g.auto_score)
    written = next(g for g in nb.grades if g.name == TASK)
    comment = next(c for c in nb.comments if c.name == TASK)
    if what == "automatic":
        cell.auto_score -= 1
    elif what == "manual":
        written.manual_score += 1
    elif what == "review":
        written.needs_manual_grade = True
    elif what == "comment":
        comment.manual_comment += "."
    elif what == "penalty":
        nb.late_submission_penalty = 0.5
    elif what == "student":
        book.remove_submission(ASSIGNMENT, "ada")
    book.db.commit()


@pytest.mark.parametrize("what", ["automatic", "manual", "review", "comment", "penalty", "student"])
def test_a_changed_gradebook_is_found(term, tmp_path, what):
    course, book = term
    copy = course.copy(tmp_path / "copy")
    assert checks.gradebooks(copy, course) == []
    assert checks.by_hand(course, {"ada": 3.0, "ben": 0.0}, ()) == []
    change(book, what)
    found = checks.gradebooks(copy, course)
    assert found and all(text.startswith("ada ") for text in found)
    if what in ("manual", "review", "comment", "student"):
        assert checks.by_hand(course, {"ada": 3.0, "ben": 0.0}, ())
    assert bool(checks.missing(course, two())) == (what == "student")


def two():
    first, second = (one for one in members(8, 2) if one.kind in ("right", "partly"))
    return [replace(first, id="ada"), replace(second, id="ben", share=1.0)]


def test_wrong_states_and_points_are_found(term):
    course, _ = term
    ada, ben = two()
    assert checks.states(course, [ada, ben]) == []
    assert checks.states(course, [ada]) == ["ben: is not in the class"]
    half = replace(ben, share=0.5)
    assert checks.states(course, [ada, half]) == ["ben: 24 points; expected 4"]
    broken = replace(ben, kind="broken")
    assert checks.states(course, [ada, broken]) == ["ben: graded; expected unreadable"]
    gone = replace(ben, id="cleo")
    assert "cleo: None; expected graded" in checks.states(course, [ada, ben, gone])


def test_a_total_that_differs_anywhere_is_found(term, book):
    course, _ = term
    expected = checks.totals(two(), {}, {"ada": 3.0, "ben": 0.0}, {})
    assert expected == {"ada": 27, "ben": 24}
    class_report.write(book.course, ASSIGNMENT, class_rows(book, ASSIGNMENT))
    table(course.root / "roster.csv", ("id", "lms_user_id"), ("ada", 1), ("ben", 2))
    table(course.root / "grades.csv", ("student_id", "score"), ("ada", 27.0), ("ben", 24.0))
    moodle = course.root / "results" / ASSIGNMENT / "moodle.csv"
    rows = ("Participant 1", 27), ("Participant 2", 24)
    table(moodle, ("Identifier", "Grade"), *rows)
    for student, total in expected.items():
        page = course.root / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html"
        page.parent.mkdir(parents=True)
        text = f"<h4>{ASSIGNMENT} (Score: {total:.1f} / 28.0)</h4>{checks.comment(student)}"
        page.write_text(text.replace("&", "&amp;").replace("<b", "&lt;b"))
    points = dict.fromkeys(expected, 0.0)
    assert checks.agree(course, expected) == [] == checks.pages(course, points, two())
    table(moodle, ("Identifier", "Grade"), rows[0])
    page.write_text("nothing")
    table(course.root / "grades.csv", ("student_id", "score"), ("ada", 26.0), ("ben", 24.0))
    assert checks.agree(course, expected) == [
        "ada: 26.0 in nbgrader export; expected 27",
        "ben: None in moodle.csv; expected 24",
        "ben: None in feedback; expected 24",
    ]
    assert checks.pages(course, points, two()) == ["ben: the feedback has no comment"]
    hostile = next(one for one in members(60, 10) if one.case and one.case.never)
    page.write_text(hostile.case.never[0])
    assert f"has {hostile.case.never[0]}" in checks.pages(course, {}, [hostile])[0]


def table(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_what_is_graded_twice_or_unasked_is_found():
    for line, student in (
        ("ada  graded  24/24  2.3 s", "ada"),
        ("ada  graded  24/24  before", None),
        ("2 submissions; starting the sandboxes", None),
        ("ben  waiting: needs a GPU  -  1.0 s", "ben"),
        ("cut  unreadable  0/24  0.0 s  not a notebook", None),
    ):
        assert graded(line) == student
    found = checks.twice({"ada": 2, "ben": 1}, {"cleo"})
    assert found == ["ada: graded 2 times", "cleo: the record was written again"]
    assert checks.only({"ada"}, {"ada"}) == []


def test_a_report_with_a_problem_or_without_a_check_has_not_passed(capsys):
    report = Report()
    assert not report.passed
    with report.step("release") as step:
        step.note = "two"
    report.check("good", [])
    assert report.passed and "ok         good" in report.table() and ": two" in report.table()
    report.check("bad", ["ada: 1; expected 2"])
    assert not report.passed and "1 WRONG    bad" in report.table()
    assert "FAILED bad: ada: 1; expected 2" in capsys.readouterr().out


@pytest.mark.parametrize(("why", "tries"), [(BUSY, TRIES), ("the disk is full", 1)])
def test_a_command_is_run_again_if_the_machine_was_too_busy(tmp_path, monkeypatch, why, tries):
    course, started = Course(tmp_path), []
    monkeypatch.setattr(course, "start", lambda *arguments: started.append(arguments))

    def graded(_):
        raise StepFailed(why)

    monkeypatch.setattr(course, "graded", graded)
    with pytest.raises(StepFailed, match=why):
        course.grade("--regrade")
    assert len(started) == tries and started[0][-1] == "--regrade"
