"""Answers that are folders of files: how they are read, sent once, limited and judged."""

import os
from types import SimpleNamespace

import pytest

from course_pkg.grading.checker_process import as_json, safe_verdict
from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.calling import WrongUse, outcome, read_folder
from course_pkg.grading.questions.comparators import ROOM
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question import QuestionError, parse_questions
from course_pkg.grading.questions.verdict import NOTHING

QUESTIONS = """
[question.poem]
call = "read"
artifact = 1_000_000
judging = 0.2
answer = 'folder = "poem"'
compare = { kind = "cases", name = "compare" }
property.rhymes = { points = 2, says = "it rhymes", hint = "Read it aloud.", cases = 1 }
property.signed = { points = 1, says = "it is signed", hint = "Who wrote it?", cases = 1 }
"""


def compare(expected, files):
    if files.get("slow"):
        while True:
            pass
    return None if files.get("poem.txt") == expected else "these are other words"


KEY = AnswerKey(
    parse_questions("demo", QUESTIONS),
    SimpleNamespace(
        compare=compare,
        poem_rhymes=lambda rng, size: {"words": b"a"},
        poem_signed=lambda rng, size: {"words": b"b"},
        poem_expected=lambda inputs: inputs["words"],
    ),
    SimpleNamespace(read=lambda answer, inputs: read_folder(answer, 1_000_000)),
)


@pytest.fixture
def session():
    return GradingSession("demo", answers=KEY)


def recorded(session, *values):
    session.inputs("poem")
    session.record("poem", [{"value": value} for value in values])
    return session.verdict("poem")


def test_no_input_crosses_and_one_folder_is_asked_for(session):
    assert session.inputs("poem") == [{}] and session.unchanged("poem") == [False]


def test_one_folder_is_judged_by_every_property(session):
    verdict = recorded(session, {"poem.txt": b"a"})
    assert verdict.earned == 2
    failure = verdict.failures["signed"]
    assert failure.reason == "these are other words"
    assert (failure.inputs, failure.expected, failure.given) == (NOTHING, NOTHING, NOTHING)
    assert "words" not in as_json([verdict]).replace("other words", "")


def test_a_folder_for_each_property_is_not_an_answer(session):
    assert recorded(session, {"poem.txt": b"a"}, {"poem.txt": b"b"}).earned == 0
    assert recorded(session, {"poem.txt": b"b"}).earned == 1


def test_a_folder_larger_than_the_artifact_may_be_is_refused_before_it_is_judged(session):
    big = {"poem.txt": b"a", "more": bytes(2_000_000 + ROOM)}
    assert "far too large" in recorded(session, big).failures["rhymes"].reason
    assert recorded(session, {"poem.txt": b"a", "more": bytes(1_000_000)}).earned == 2


def test_an_artifact_has_its_own_time_to_be_judged(session):
    session.inputs("poem")
    session.record("poem", [{"value": {"slow": b"1"}}])
    assert safe_verdict(session, "poem").failures["rhymes"].reason.endswith("within 0.2 s")


def test_an_artifact_that_is_declared_wrongly_is_refused():
    for old, new, says in (
        ('call = "read"', 'call = ["text"]', "read by a function of student.py"),
        ("1_000_000", "100_000_000", "expected one below 67108864"),
        ("judging = 0.2", "wrong.a = { says = 's', answer = 'b = 1' }", "are files: test it"),
    ):
        with pytest.raises(QuestionError, match=says):
            parse_questions("demo", QUESTIONS.replace(old, new))


def test_files_are_read_by_name_and_hidden_ones_are_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    assert read_folder(tmp_path, 10) == read_folder(str(tmp_path), 1) == {"a.txt": b"\xff"}
    assert outcome("read", str(tmp_path), {}, callers=KEY.callers) == {"value": {"a.txt": b"\xff"}}


def too_many(folder):
    for number in range(17):
        (folder / f"{number}").touch()


def too_large_together(folder):
    (folder / "a").write_bytes(bytes(700))
    (folder / "b").write_bytes(bytes(400))


NOT_PLAIN = (
    (lambda folder: (folder / "a").symlink_to("/etc/passwd"), "a is a link; expected plain"),
    (lambda folder: (folder / "a").symlink_to("nowhere"), "a is a link"),
    (lambda folder: (folder / "a").mkdir(), "a is a folder"),
    (lambda folder: os.mkfifo(folder / "a"), "a is not a file"),
    (too_many, "holds 17 files; at most 16"),
    (too_large_together, "b has 400 B; the files of the folder may have 1 kB in all"),
)


def test_anything_but_plain_small_files_is_refused(tmp_path):
    for number, (make, says) in enumerate(NOT_PLAIN):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        with pytest.raises(WrongUse, match=says):
            read_folder(folder, 1000)


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path, says in (
        (tmp_path / "link", "is a link; expected the folder itself"),
        (tmp_path / "none", "there is no folder"),
        (7, "expected the path of a folder, but int was given"),
    ):
        with pytest.raises(WrongUse, match=says):
            read_folder(path, 1000)
