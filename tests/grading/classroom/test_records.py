"""The secret, the keys, accepted results of a checker, and signed records."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass

import nbformat
import pytest

from course_pkg.grading.checker_process import as_json
from course_pkg.grading.classroom.execution import grade_key
from course_pkg.grading.classroom.execution.runner_output import MAX_RESULTS, State
from course_pkg.grading.classroom.gradebook import keys
from course_pkg.grading.classroom.gradebook.keys import (
    GradingFolderError,
    course_lock,
    secret,
    submission_key,
)
from course_pkg.grading.classroom.gradebook.record import Record, Store, file_stem
from course_pkg.grading.classroom.runs.scoring import checked_results
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question_record import mistakes_of, nothing_earned
from course_pkg.grading.questions.report import as_record
from tests.grading.classroom.recorded import (
    ASSIGNMENT,
    HOSTILE,
    ROOT,
    questions,
    record,
    released,
    wrong,
)

IMPORTS = "import sys, pathlib; from course_pkg.grading.classroom.gradebook import keys"

# -- the secret


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_secret_is_created_once_and_readable_only_by_its_owner(tmp_path):
    before = os.umask(0)  # even if files are open to all by default
    try:
        first = secret(tmp_path)
    finally:
        os.umask(before)
    assert len(first) == 32 and secret(tmp_path) == first
    assert mode(tmp_path / ".grading") == 0o700
    assert {mode(p) for p in (tmp_path / ".grading").iterdir()} == {0o600}
    (tmp_path / "other").mkdir()
    assert secret(tmp_path / "other") != first


def another_process(program, course):
    return subprocess.Popen(
        [sys.executable, "-uc", f"{IMPORTS}\n{program}", str(course)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_graders_that_start_at_the_same_time_get_the_same_secret(tmp_path):
    program = "sys.stdin.read(1); print(keys.secret(pathlib.Path(sys.argv[1])).hex())"
    started = [another_process(program, tmp_path) for _ in range(6)]
    for process in started:
        process.stdin.write("x")
        process.stdin.flush()
    assert {process.communicate()[0].strip() for process in started} == {secret(tmp_path).hex()}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: (p / "secret").chmod(0o644), r"open to other users \(mode 0644\).*chmod 0600"),
        (lambda p: p.chmod(0o755), r"open to other users \(mode 0755\).*chmod 0700"),
        (lambda p: (p / "secret").write_text("00" * 31), "holds no secret; expected 64 hex digits"),
        (lambda p: (p / "secret").write_text("zz" * 32 + "\n"), "holds no secret"),
        (lambda p: (p / "secret").rename(p / "x") and (p / "secret").symlink_to(p / "x"), "read"),
    ],
)
def test_a_readable_or_malformed_secret_is_refused_with_a_fix(tmp_path, spoil, says):
    secret(tmp_path)
    spoil(tmp_path / ".grading")
    with pytest.raises(GradingFolderError, match=says):
        secret(tmp_path)


def test_a_link_instead_of_the_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / ".grading").symlink_to("elsewhere")
    with pytest.raises(GradingFolderError, match="is not a folder"):
        secret(tmp_path)


def test_every_submission_has_a_different_key():
    whose = [("a", "bc", "1"), ("ab", "c", "1"), ("a", "b", "1"), ("bc", "a", "1"), ("a", "b", "2")]
    derived = {submission_key(b"s", *parts) for parts in whose}
    others = {keys.derived_key(b"s", "records"), bytes.fromhex(keys.secret_id(b"s")), b"s"}
    assert len(derived) == 5 and not derived & others
    assert submission_key(b"t", "a", "b", "1") not in derived
    assert submission_key(b"s", "a", "b", "1") == submission_key(b"s", "a", "b", "1")


def test_a_second_grader_is_refused_while_the_first_runs(tmp_path):
    doing = "keys.course_lock(pathlib.Path(sys.argv[1]), 'course grade other')"
    other = another_process(f"with {doing}: print('in'), input()", tmp_path)
    assert other.stdout.readline() == "in\n"
    told = rf"being graded already \(course grade other, process {other.pid}\)"
    with pytest.raises(GradingFolderError, match=told), course_lock(tmp_path, "me"):
        pass
    other.kill()
    other.wait()
    with (
        course_lock(tmp_path, "me"),
        pytest.raises(GradingFolderError, match="me, process"),
        course_lock(tmp_path, "x"),
    ):
        pass  # also a second time in the same process


def test_the_lock_is_released_although_a_forked_child_has_the_file_open(tmp_path):
    with course_lock(tmp_path, "first"):
        child = os.fork()
        if child == 0:
            time.sleep(600)  # until it is killed
            os._exit(0)
    try:
        with course_lock(tmp_path, "second"):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_an_error_inside_the_lock_passes_through(tmp_path):
    with pytest.raises(BlockingIOError, match="mine"), course_lock(tmp_path, "x"):
        raise BlockingIOError("mine")


# -- results of a checker


@pytest.fixture(scope="module")
def trusted():
    return registry.load(ASSIGNMENT).questions


@pytest.fixture(scope="module")
def results():
    """Verdicts on wrong answers to two questions, one of them worked by hand."""
    session = GradingSession(ASSIGNMENT, "ada", b"key")
    for name in ("by-hand/parameters", "counts"):
        session.record(name, [{"value": 5} for _ in session.inputs(name)])
    return [session.verdict(name) for name in session.questions]


def rows(results):
    return json.loads(as_json(results))


def test_results_of_a_checker_are_accepted_unchanged(results, trusted):
    accepted = checked_results(as_json(results).encode(), trusted)
    assert accepted == tuple(as_record(result) for result in results)
    failure = accepted[0].properties[0].failure
    assert failure.given == "5" and failure.inputs and failure.expected is None


def test_a_submission_that_was_not_run_loses_every_property_as_not_answered(trusted):
    lost = nothing_earned(trusted)
    assert sum(q.earned for q in lost) == 0 and sum(q.points for q in lost) == 24
    assert [q.question for q in lost] == list(trusted)
    said = [mistakes_of(question) for question in lost]
    assert {(len(one), one[0].diagnosis, one[0].details) for one in said} == {
        (1, "Not answered yet.", ())
    }


def first(rows):
    """The failure of the first property of the first question."""
    return next(iter(rows[0]["failures"].values()))


def test_the_expected_value_of_a_by_hand_question_and_control_characters_are_dropped(
    results, trusted
):
    changed = rows(results)
    first(changed).update(expected="30720", reason="a\x1b[2J\u202eb\nc\ud800")
    failure = checked_results(json.dumps(changed).encode(), trusted)[0].properties[0].failure
    assert (failure.expected, failure.reason) == (None, "a\ufffd[2J\ufffdb c\ufffd")


CHANGES = [
    lambda r: r.pop(),
    lambda r: r.append(r[0]),
    lambda r: r.reverse(),
    lambda r: r[0].update(question="counts"),
    lambda r: r[0].update(extra=1),
    lambda r: r[0].update(failures={}),
    lambda r: r[0]["failures"].update(other=None),
    lambda r: r[0]["failures"].update(dict.fromkeys(r[0]["failures"], False)),
    lambda r: r[0]["failures"].update({key: {} for key in r[0]["failures"]}),
    lambda r: first(r).update(reason=None),
    lambda r: first(r).update(given="x" * 2000),
    lambda r: first(r).update(points=1),
    lambda r: first(r).update(recognized=["no such"]),
    lambda r: first(r).update(recognized=[{}]),
    lambda r: first(r).update(recognized="tripled"),
]
NO_JSON = [
    b"",
    b"[",
    b"null",
    b"\xff",
    b"[NaN]",
    b"[" * 100_000,
    b'[{"a":1,"a":2}]',
    b"[" + b"9" * 5000 + b"]",
    b" " * (MAX_RESULTS + 1),
]


def test_results_of_another_shape_that_are_not_json_or_too_large_are_refused(results, trusted):
    for number, change in enumerate(CHANGES):
        changed = rows(results)
        change(changed)
        with pytest.raises(ValueError):
            checked_results(json.dumps(changed).encode(), trusted)
            pytest.fail(f"change {number} was accepted")
    for text in NO_JSON:
        with pytest.raises(ValueError):
            checked_results(text, trusted)
            pytest.fail(f"{text[:20]} was accepted")


# -- the store


@pytest.fixture
def records(tmp_path):
    return Store(tmp_path, secret(tmp_path))


def path_of(tmp_path, student="ada"):
    return tmp_path / ".grading" / "records" / ASSIGNMENT / f"{student}.json"


def test_a_record_is_read_as_it_was_written(records, tmp_path):
    rec = record(
        state=State.TIMED_OUT,
        reason="10 s were over",
        questions=questions({"counts": wrong(HOSTILE)}),
        remarks=("one", "zwei ü"),
        peak_bytes=None,
    )
    records.save(rec)
    assert records.load(ASSIGNMENT, "ada") == rec
    assert records.load(ASSIGNMENT, "ada").score == 21 and rec.max_score == 24.0
    assert mode(path_of(tmp_path)) == 0o600 and mode(path_of(tmp_path).parent) == 0o700
    assert [p.name for p in path_of(tmp_path).parent.iterdir()] == ["ada.json"]
    assert records.load(ASSIGNMENT, "ben") is None


SPOILED = [
    lambda text: text.replace('"state": "graded"', '"state": "refused"'),
    lambda text: text.replace('"failure": {', '"failure": null, "x": {', 1),
    lambda text: text[: len(text) // 2],
    lambda text: "",
    lambda text: text.replace('"signature": "', '"signature": "0'),
    lambda text: "[]",
    lambda text: text.replace('"ada"', '"eve"'),
]


def test_a_changed_record_is_reported(records, tmp_path):
    path = path_of(tmp_path)
    for number, spoil in enumerate(SPOILED):
        records.save(record(questions=questions({"counts": wrong()})))
        path.write_text(spoil(path.read_text()))
        loaded = records.load(ASSIGNMENT, "ada")
        assert (loaded.state, loaded.questions) == (State.RECORD_CHANGED, ()), number
        assert ".grading/records/lora-math/ada.json" in loaded.reason, number
        assert "--regrade" in loaded.reason, number


def test_a_copied_record_of_another_student_is_reported(records, tmp_path):
    records.save(record("ada"))
    shutil.copy(path_of(tmp_path), path_of(tmp_path, "eve"))
    assert records.load(ASSIGNMENT, "eve").state == State.RECORD_CHANGED
    assert records.load(ASSIGNMENT, "ada").state == State.GRADED


def test_a_record_signed_with_another_secret_is_reported(records, tmp_path):
    records.save(record())
    loaded = Store(tmp_path, b"another").load(ASSIGNMENT, "ada")
    assert loaded.state == State.RECORD_CHANGED and "signature" in loaded.reason


@dataclass(frozen=True)
class OtherRecord(Record):
    no_such_field: int = 1


def test_a_record_with_the_fields_of_another_version_is_graded_again(records):
    records.save(OtherRecord(**vars(record())))
    assert records.load(ASSIGNMENT, "ada") is None


def test_a_record_can_be_forgotten_and_a_new_one_replaces_it(records):
    records.save(record())
    records.save(record(reason="again"))
    assert records.load(ASSIGNMENT, "ada").reason == "again"
    records.forget(ASSIGNMENT, "ada")
    records.forget(ASSIGNMENT, "ada")
    assert records.load(ASSIGNMENT, "ada") is None


def test_an_assignment_with_path_parts_is_refused(records):
    for assignment in ("../x", "a/b", "", ".."):
        with pytest.raises(ValueError, match="is not the name of an assignment"):
            records.load(assignment, "ada")


def test_a_write_that_fails_leaves_the_old_record(records, monkeypatch, tmp_path):
    records.save(record())
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        records.save(record(reason="new"))
    assert records.load(ASSIGNMENT, "ada").reason == ""
    assert [p.name for p in path_of(tmp_path).parent.iterdir()] == ["ada.json"]


IDS = ["ada", "Ada", "ADA", "ada.", "index", "grades", "a b", "ünal", "u\u0308nal", "学生", "../x"]
IDS += ["..", "", ".x", "a" * 300, "a" * 301, "a/b", "a_b", "con\n", "-x", "\ud800", "a@b.c"]


def test_file_names_are_safe_and_distinct_on_any_file_system():
    stems = [file_stem(student) for student in IDS]
    assert len({stem.casefold() for stem in stems}) == len(IDS)
    for stem in stems:
        assert stem.isascii() and "/" not in stem and not stem.startswith(".") and len(stem) <= 90
    assert stems[0] == "ada" and {"index", "grades"}.isdisjoint(stems)


# -- the key of a grading


def test_a_fixed_typo_in_the_notebook_grades_nothing_again_and_another_graded_cell_does():
    nb = released()
    before = grade_key.notebook_hash(nb)
    for cell in nb.cells:
        cell.source += "\n# better words"
        if "checksum" in cell.metadata.get("nbgrader", {}):
            cell.metadata.nbgrader.checksum = "0" * 32
    assert grade_key.notebook_hash(nb) == before
    for change in (
        {"cell_type": "code", "source": "x = 1"},
        {"cell_type": "markdown", "metadata": {"nbgrader": {"grade_id": "x", "points": 1}}},
    ):
        more = {"metadata": {}, "source": "", "outputs": [], "execution_count": None, **change}
        other = nbformat.from_dict({**nb, "cells": [*nb.cells, more]})
        assert grade_key.notebook_hash(other) != before


def test_another_build_of_torch_grades_nothing_again_and_another_version_does(monkeypatch):
    """The CUDA build completes what the CPU build, whose version has a local label, began."""
    hashes = []
    for torch in ("2.13.0+cpu", "2.13.0", "2.13.1"):
        monkeypatch.setattr(grade_key, "version", {"torch": torch}.get)
        monkeypatch.setattr(grade_key, "LIBRARIES", ("torch",))
        hashes.append(grade_key.current_judging_hash())
    assert hashes[0] == hashes[1] != hashes[2]
