"""A large class: results as by the plain definitions, with few queries and few written files."""

import random
from dataclasses import asdict
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, inspect, text

from course_pkg.grading.classroom.feedback import class_report, pages
from course_pkg.grading.classroom.gradebook.class_rows import (
    Points,
    Row,
    class_points,
    class_rows,
    score_statistics,
)
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.nbgrader_api import INDEXES
from course_pkg.grading.classroom.gradebook.record import Store, with_words, without_words
from course_pkg.grading.classroom.submissions.roster import Person, Roster, agreement
from tests.grading.classroom.crowd import crowd, crowd_record
from tests.grading.classroom.recorded import ASSIGNMENT, questions, record, write, wrong
from tests.grading.classroom.test_gradebook import DUE, penalized


def add(book, students, draw=None):
    """Grade students as a run does; with `draw`, also late, by hand and with extensions."""
    inner = book.nbgrader_book
    for student in students:
        lost = {"merge": wrong()} if student.endswith("1") else {}
        rec = record(student, questions=questions(lost))
        late = timedelta(hours=draw.randrange(-3, 9)) if draw else timedelta(hours=-1)
        write(book, rec, (DUE + late).replace(tzinfo=UTC))
        if draw is None:
            continue
        submission = inner.find_submission(ASSIGNMENT, student)
        for grade in submission.notebooks[0].grades:
            if draw.random() < 0.3:
                grade.manual_score = draw.randrange(9) / 10
                grade.extra_credit = draw.choice([None, 0.1, 0.7])
        if draw.random() < 0.4:
            inner.grant_extension(ASSIGNMENT, student, hours=draw.randrange(9))
        inner.db.commit()


def due(book, when=DUE):
    book.nbgrader_book.find_assignment(ASSIGNMENT).duedate = when
    book.nbgrader_book.db.commit()


def plain_points(submission):
    """What `class_points` must give, from nbgrader's own objects."""
    (nb,) = submission.notebooks
    automatic = sum(grade.auto_score or 0 for grade in nb.grades)
    return Points(
        automatic,
        by_hand=submission.score - automatic,
        late_penalty=submission.late_submission_penalty or 0,
        max_score=submission.max_score,
        to_mark=sum(grade.max_score for grade in nb.grades if grade.needs_manual_grade),
        submitted=submission.timestamp.replace(tzinfo=UTC),
        late_s=submission.total_seconds_late,
    )


def test_points_and_penalties_are_those_of_nbgraders_objects(course):
    draw = random.Random(3)
    with penalized(course) as book:
        due(book)
        add(book, [f"s{number}" for number in range(14)], draw)
        for when in (DUE, DUE - timedelta(hours=2), DUE + timedelta(hours=30)):
            due(book, when)
            book.refresh_penalties(ASSIGNMENT)
            by_student = class_points(book, ASSIGNMENT)
            charged = set()
            for submission in book.nbgrader_book.assignment_submissions(ASSIGNMENT):
                points = asdict(by_student.pop(submission.student_id))
                plain = asdict(plain_points(submission))
                assert points.pop("submitted") == plain.pop("submitted")
                assert points == pytest.approx(plain)
                (nb,) = submission.notebooks
                hours = submission.total_seconds_late / 3600
                expected = min(max(2 * (hours - 1), 0), nb.score) if hours else None
                assert nb.late_submission_penalty == (expected and pytest.approx(expected))
                charged.add(bool(expected))
            book.nbgrader_book.db.rollback()
            assert by_student == {} and (len(charged) == 2 or when > DUE)
        assert class_points(book, "no-such") == {}


def queries(book, call):
    """How many statements a call sends to the database."""
    sent = []
    engine = book.nbgrader_book.engine

    def count(*arguments):
        sent.append(arguments[2])

    event.listen(engine, "before_cursor_execute", count)
    try:
        call()
    finally:
        event.remove(engine, "before_cursor_execute", count)
    return len(sent)


def test_the_number_of_queries_does_not_grow_with_the_class(course):
    def read():
        book.nbgrader_book.db.expire_all()
        list(class_rows(book, ASSIGNMENT))

    with penalized(course) as book:
        due(book, DUE - timedelta(hours=9))  # everybody is late
        add(book, ["a1", "a2"])
        few = queries(book, read)
        add(book, [f"b{number}" for number in range(8)])
        assert queries(book, read) == few <= 20


def test_the_gradebook_has_the_indexes_that_nbgrader_lacks(book):
    tables = inspect(book.nbgrader_book.engine)
    for table, column in INDEXES:
        assert [column] in [index["column_names"] for index in tables.get_indexes(table)]


def test_a_gradebook_that_refuses_indexes_is_used_without(course):
    with CourseGradebook(course.root) as book:
        for table, column in INDEXES:
            book.nbgrader_book.db.execute(text(f"DROP INDEX ix_course_{table}_{column}"))
        book.nbgrader_book.db.execute(text("CREATE TABLE ix_course_grade_notebook_id (x INTEGER)"))
        book.nbgrader_book.db.commit()
    with CourseGradebook(course.root) as book:
        add(book, ["ada"])
        assert set(class_points(book, ASSIGNMENT)) == {"ada"}


# -- pages that are written when they change


def written_again(folder, rows):
    """The names of the students' pages that a second report writes."""
    class_report.write(folder, ASSIGNMENT, crowd(60))
    into = folder / class_report.folder(ASSIGNMENT)
    before = {path.name: path.stat().st_ino for path in into.glob("s*.html")}
    class_report.write(folder, ASSIGNMENT, rows)
    after = {path.name: path.stat().st_ino for path in into.glob("s*.html")}
    return {name for name, inode in after.items() if before.get(name) != inode}


def test_the_pages_of_students_are_written_only_when_they_change(tmp_path):
    assert written_again(tmp_path / "a", crowd(60)) == set()
    assert written_again(tmp_path / "b", crowd(62)) == {"s00060.html", "s00061.html"}
    rows = crowd(60)
    rows[1] = Row(Person("s00001", "Another", "Name"), rows[1].record, rows[1].points)
    rows[2] = Row(
        rows[2].person,
        record("s00002", questions=questions({"merge": wrong("other")})),
        rows[2].points,
    )
    rows[4] = Row(rows[4].person, rows[4].record, rows[5].points)
    changed = {"s00001.html", "s00002.html", "s00004.html"}
    assert written_again(tmp_path / "c", rows) == changed


def test_an_incomplete_or_changed_page_is_written_again(tmp_path):
    rows = crowd(4)
    class_report.write(tmp_path, ASSIGNMENT, rows)
    into = tmp_path / class_report.folder(ASSIGNMENT)
    whole = {path.name: path.read_bytes() for path in into.iterdir()}
    for number, spoiled in enumerate((whole["s00000.html"][:-40], b"", b"\xff" * 500)):
        (into / f"s0000{number}.html").write_bytes(spoiled)
    (into / "s00003.html").unlink()
    class_report.write(tmp_path, ASSIGNMENT, rows)
    assert {path.name: path.read_bytes() for path in into.iterdir()} == whole


def test_a_page_is_written_again_by_another_version_of_the_package(tmp_path, monkeypatch):
    (row,) = crowd(1)
    before = pages.fingerprint(row)
    monkeypatch.setattr(pages, "_templates_hash", lambda: "other")
    assert pages.fingerprint(row) != before


# -- records in memory


def test_records_without_words_have_the_scores_and_notes_and_share_the_rest():
    records = [crowd_record(number) for number in range(200)]
    less = [without_words(rec) for rec in records]
    assert score_statistics(less) == score_statistics(records)
    assert [rec.score for rec in less] == [rec.score for rec in records]
    assert [with_words(a, b) for a, b in zip(less, records, strict=True)] == records
    assert len({id(q) for rec in less for q in rec.questions}) < 30
    assert "expected 4" not in repr(less) and "expected 4" in repr(records)


def test_words_of_another_grading_are_not_added():
    old = record(questions=questions({"merge": wrong()}), graded_at="2026-01-01T00:00:00+00:00")
    new = without_words(record(questions=questions({"merge": wrong()})))
    assert with_words(new, old) == new and with_words(new, None) == new
    assert with_words(new, record(questions=questions())) == new


def test_everybody_with_a_record_is_known_without_reading_plain_names(tmp_path):
    store = Store(tmp_path, secret(tmp_path))
    ids = ["ada", "Ada", "zoë", "index", "a b", "s01"]
    for student in ids:
        store.save(record(student))
    store.path(ASSIGNMENT, "s01").write_text("not JSON")
    assert sorted(store.students(ASSIGNMENT)) == sorted(ids)


# -- the roster


TEXT = st.sampled_from(
    ["", "ada", "Ada", "a da", "zoe\u0308", "zoë", "Zoë_x", "lovelaceada", "x@y"]
)
PERSON = st.builds(Person, TEXT, TEXT, TEXT, TEXT, st.sampled_from(["", "1", "2"]))


@given(st.lists(PERSON, unique_by=lambda person: person.id), PERSON)
def test_the_roster_finds_whom_a_look_at_everybody_finds(people, described):
    fits = [agreement(described, person) for person in people]
    best = [p for p, fit in zip(people, fits, strict=True) if fit and fit == max(fits)]
    roster = Roster(people, complete=True)
    assert {p.id for p in roster.fitting(described)} == {p.id for p in best}
    assert roster.find(described) == (best[0] if len(best) == 1 else None)


def test_only_the_first_twenty_strangers_are_compared_with_everybody():
    roster = Roster([Person("ada", "Ada", "Lovelace")], complete=True)
    said = [roster.unknown(Person("adaa")) for _ in range(21)]
    assert all(one.endswith("; similar: ada") for one in said[:20])
    assert said[20] == "no student in the roster, or more than one, is adaa"
