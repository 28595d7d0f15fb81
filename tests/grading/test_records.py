"""The secret, the keys, what is believed of a checker, and records that can't be changed unseen."""

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

from course_pkg.grading.checker import as_json
from course_pkg.grading.contract import registry
from course_pkg.grading.contract.exam import Exam
from course_pkg.grading.contract.outlines import as_json as outlines_as_json
from course_pkg.grading.contract.outlines import from_json, outlined
from course_pkg.grading.contract.report import as_record
from course_pkg.grading.contract.texts import details, one_line
from course_pkg.grading.results import keys, store
from course_pkg.grading.results.keys import GradingFolderError, lock, secret, student_key
from course_pkg.grading.results.records import MAX_RESULTS, checked_results, nothing_earned
from course_pkg.grading.results.states import State
from course_pkg.grading.results.store import Store, file_stem

from .recorded import ASSIGNMENT, HOSTILE, ROOT, questions, record, wrong

# -- the secret


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path):
    before = os.umask(0)  # even where files are open to all by default
    try:
        first = secret(tmp_path)
    finally:
        os.umask(before)
    assert len(first) == 32 and secret(tmp_path) == first
    assert mode(tmp_path / ".grading") == 0o700
    assert {mode(p) for p in (tmp_path / ".grading").iterdir()} == {0o600}
    (tmp_path / "other").mkdir()
    assert secret(tmp_path / "other") != first


def test_graders_that_start_at_once_end_with_one_secret(tmp_path):
    program = (
        "import sys, pathlib; from course_pkg.grading.results.keys import secret; "
        "sys.stdin.read(1); print(secret(pathlib.Path(sys.argv[1])).hex())"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=env, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]  # fmt: skip
    for process in started:
        process.stdin.write("x")
        process.stdin.flush()
    assert {process.communicate()[0].strip() for process in started} == {secret(tmp_path).hex()}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: (p / "secret").chmod(0o644), r"open to others \(mode 0644\).*chmod 0600"),
        (lambda p: p.chmod(0o755), r"open to others \(mode 0755\).*chmod 0700"),
        (lambda p: (p / "secret").write_text("00" * 31), "holds no secret; wanted 64 hex digits"),
        (lambda p: (p / "secret").write_text(""), "holds no secret"),
        (lambda p: (p / "secret").write_text("zz" * 32 + "\n"), "holds no secret"),
        (lambda p: (p / "secret").rename(p / "x") and (p / "secret").symlink_to(p / "x"), "read"),
    ],
)
def test_a_secret_that_is_open_to_others_or_malformed_is_refused_with_the_mend(
    tmp_path, spoil, says
):
    secret(tmp_path)
    spoil(tmp_path / ".grading")
    with pytest.raises(GradingFolderError, match=says):
        secret(tmp_path)


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / ".grading").symlink_to("elsewhere")
    with pytest.raises(GradingFolderError, match="is no folder"):
        secret(tmp_path)


def test_every_student_assignment_and_hand_in_has_a_key_of_its_own_and_none_is_the_secret():
    whose = [("a", "bc", "1"), ("ab", "c", "1"), ("a", "b", "1"), ("bc", "a", "1"), ("a", "b", "2")]
    found = {student_key(b"s", *parts) for parts in whose}
    others = {keys.derived(b"s", "records"), bytes.fromhex(keys.secret_id(b"s")), b"s"}
    assert len(found) == 5 and not found & others
    assert student_key(b"t", "a", "b", "1") not in found
    assert student_key(b"s", "a", "b", "1") == student_key(b"s", "a", "b", "1")


def test_two_graders_do_not_write_at_once_and_the_second_is_told(tmp_path):
    program = (
        "import sys, pathlib; from course_pkg.grading.results.keys import lock\n"
        "with lock(pathlib.Path(sys.argv[1]), 'course grade other'): print('in'), input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-uc", program, str(tmp_path)], text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout.readline() == "in\n"
    told = rf"being graded already \(course grade other, process {other.pid}\)"
    with pytest.raises(GradingFolderError, match=told), lock(tmp_path, "me"):
        pass
    other.kill()
    other.wait()
    with (
        lock(tmp_path, "me"),
        pytest.raises(GradingFolderError, match="me, process"),
        lock(tmp_path, "x"),
    ):
        pass  # a second time in one process too


def test_the_lock_ends_where_a_forked_child_still_has_the_file_open(tmp_path):
    with lock(tmp_path, "first"):
        child = os.fork()
        if child == 0:
            os.read(0, 0)
            import time

            time.sleep(30)
            os._exit(0)
    try:
        with lock(tmp_path, "second"):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_an_error_inside_the_lock_is_not_taken_for_a_lock_that_is_held(tmp_path):
    with pytest.raises(BlockingIOError, match="mine"), lock(tmp_path, "x"):
        raise BlockingIOError("mine")


# -- what a checker wrote


@pytest.fixture(scope="module")
def trusted():
    return outlined(registry.trusted(ASSIGNMENT).values())


@pytest.fixture(scope="module")
def results():
    """An exam with wrong answers in two questions, one of them worked by hand."""
    exam = Exam(ASSIGNMENT, "ada", b"key")
    for name in ("by-hand/parameters", "counts"):
        exam.record(name, [{"value": 5} for _ in exam.inputs(name)])
    return exam.results()


def rows(results):
    return json.loads(as_json(results))


def test_outlines_survive_the_way_through_text_and_nothing_else_is_taken_for_them(trusted):
    assert from_json(outlines_as_json(trusted)) == trusted
    assert {o.name: o.points for o in trusted.values()} == {
        q.name: q.points for q in registry.trusted(ASSIGNMENT).values()
    }
    with pytest.raises(ValueError, match="wanted a list of outlines"):
        from_json('{"failed": "no room"}')


def test_what_a_checker_writes_is_taken_as_it_was_judged(results, trusted):
    found = checked_results(as_json(results).encode(), trusted)
    assert found == tuple(as_record(result) for result in results)
    failure = found[0].properties[0].failure
    assert failure.given == "5" and failure.inputs and failure.expected is None


def test_of_a_hand_in_that_was_not_run_every_property_is_lost_for_want_of_an_answer(trusted):
    found = nothing_earned(trusted)
    assert sum(q.earned for q in found) == 0 and sum(q.points for q in found) == 24
    assert [q.question for q in found] == list(trusted)
    assert {details(p)[0] for q in found for p in q.properties} == {("not answered yet", "")}


def test_the_right_value_of_a_number_worked_by_hand_is_dropped_whatever_the_checker_says(
    results, trusted
):
    changed = rows(results)
    changed[0]["properties"][0]["failure"]["expected"] = "30720"
    found = checked_results(json.dumps(changed).encode(), trusted)
    assert found[0].properties[0].failure.expected is None


def first(rows):
    return rows[0]["properties"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop(),
        lambda r: r.append(r[0]),
        lambda r: r.reverse(),
        lambda r: r[0].update(question="counts"),
        lambda r: r[0].update(points=100),
        lambda r: r[0].update(points=True),
        lambda r: r[0].update(earned=1),
        lambda r: r[0].update(earned=False),
        lambda r: r[0].update(extra=1),
        lambda r: r[0].update(properties={}),
        lambda r: r[0].update(properties=[]),
        lambda r: first(r).update(points=2),
        lambda r: first(r).update(name="other"),
        lambda r: first(r).update(says="other"),
        lambda r: first(r).update(earned=1),
        lambda r: first(r).update(earned=0.0),
        lambda r: first(r).update(earned=False),
        lambda r: first(r).update(failure=False),
        lambda r: first(r).update(failure={}),
        lambda r: first(r)["failure"].update(reason=None),
        lambda r: first(r)["failure"].update(reason=["x"]),
        lambda r: first(r)["failure"].update(given="x" * 2000),
        lambda r: first(r)["failure"].update(misconception="no such"),
        lambda r: (first(r).update(failure=None, earned=-1), r[0].update(earned=-1)),
    ],
)
def test_results_of_another_shape_are_refused(results, trusted, change):
    changed = rows(results)
    change(changed)
    with pytest.raises(ValueError):
        checked_results(json.dumps(changed).encode(), trusted)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[", b"null", b"\xff", b"[NaN]", b"[" * 100_000, b'[{"a":1,"a":2}]',
        b"[" + b"9" * 5000 + b"]", b" " * (MAX_RESULTS + 1),
    ],
    ids=range(9),
)  # fmt: skip
def test_results_that_are_no_json_or_too_much_of_it_are_refused(text, trusted):
    with pytest.raises(ValueError):
        checked_results(text, trusted)


def test_controls_and_marks_that_turn_text_are_replaced(results, trusted):
    changed = rows(results)
    first(changed)["failure"]["reason"] = "a\x1b[2J\u202eb\nc\x00"
    found = checked_results(json.dumps(changed).encode(), trusted)
    assert found[0].properties[0].failure.reason == "a\ufffd[2J\ufffdb c\ufffd"
    assert one_line("\ud800x") == "\ufffdx"


# -- the store


@pytest.fixture
def kept(tmp_path):
    return Store(tmp_path, secret(tmp_path))


def path_of(tmp_path, student="ada"):
    return tmp_path / ".grading" / "records" / ASSIGNMENT / f"{student}.json"


def test_a_record_is_read_as_it_was_written(kept, tmp_path):
    rec = record(
        state=State.TIMED_OUT,
        reason="10 s were over",
        questions=questions({"counts": wrong(HOSTILE, misconception=None)}),
        remarks=("one", "zwei ü"),
        peak_bytes=None,
    )
    kept.save(rec)
    assert kept.load(ASSIGNMENT, "ada").record == rec
    assert kept.load(ASSIGNMENT, "ada").record.score == 21 and rec.max_score == 24.0
    assert mode(path_of(tmp_path)) == 0o600 and mode(path_of(tmp_path).parent) == 0o700
    assert [p.name for p in path_of(tmp_path).parent.iterdir()] == ["ada.json"]
    assert kept.load(ASSIGNMENT, "ben") == store.Found(None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"state": "graded"', '"state": "refused"'),
        lambda text: text.replace('"failure": {', '"failure": null, "x": {', 1),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"signature": "', '"signature": "0'),
        lambda text: "[]",
        lambda text: text.replace('"ada"', '"eve"'),
    ],
)
def test_a_record_that_was_changed_counts_as_none_and_is_named(kept, tmp_path, spoil):
    kept.save(record(questions=questions({"counts": wrong()})))
    path = path_of(tmp_path)
    path.write_text(spoil(path.read_text()))
    found = kept.load(ASSIGNMENT, "ada")
    assert found.record is None and "counts as none" in found.warning
    assert [f.record for f in kept.all(ASSIGNMENT)] == [None]


def test_a_record_in_the_place_of_anothers_counts_as_none(kept, tmp_path):
    kept.save(record("ada"))
    shutil.copy(path_of(tmp_path), path_of(tmp_path, "eve"))
    assert kept.load(ASSIGNMENT, "eve").record is None
    assert [f.record and f.record.student for f in kept.all(ASSIGNMENT)] == [None, "ada"]


def test_a_record_signed_with_another_courses_secret_counts_as_none(kept, tmp_path):
    kept.save(record())
    assert Store(tmp_path, b"another").load(ASSIGNMENT, "ada").record is None


def test_a_record_can_be_forgotten_and_a_new_one_replaces_it(kept):
    kept.save(record())
    kept.save(record(reason="again"))
    assert kept.load(ASSIGNMENT, "ada").record.reason == "again"
    kept.forget(ASSIGNMENT, "ada")
    kept.forget(ASSIGNMENT, "ada")
    assert kept.load(ASSIGNMENT, "ada") == store.Found(None)


@pytest.mark.parametrize("assignment", ["../x", "a/b", "", ".."])
def test_an_assignment_with_path_parts_is_refused(kept, assignment):
    with pytest.raises(ValueError, match="no assignment's name"):
        kept.load(assignment, "ada")


def test_a_write_that_fails_leaves_the_old_record(kept, monkeypatch, tmp_path):
    kept.save(record())
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        kept.save(record(reason="new"))
    assert kept.load(ASSIGNMENT, "ada").record.reason == ""
    assert [p.name for p in path_of(tmp_path).parent.iterdir()] == ["ada.json"]


IDS = ["ada", "Ada", "ADA", "ada.", "index", "grades", "a b", "ünal", "u\u0308nal", "学生"]
IDS += [
    "../x",
    "..",
    "",
    ".x",
    "a" * 300,
    "a" * 301,
    "a/b",
    "a_b",
    "con\n",
    "-x",
    "\ud800",
    "a@b.c",
]


def test_names_of_files_are_safe_and_differ_on_any_disk():
    stems = [file_stem(student) for student in IDS]
    assert len({stem.casefold() for stem in stems}) == len(IDS)
    for stem in stems:
        assert stem.isascii() and "/" not in stem and not stem.startswith(".") and len(stem) <= 90
    assert stems[0] == "ada" and {"index", "grades"}.isdisjoint(stems)


# -- the address of a grading


def test_the_code_hash_changes_with_the_grader_and_its_libraries_only(tmp_path, monkeypatch):
    for name in (
        "grading/a.py",
        "sandbox/b.py",
        "adapters/c.py",
        "cli.py",
        "grading/checks/x/d.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(store, "PACKAGE", tmp_path)

    def found():
        store.code_hash.cache_clear()
        return store.code_hash()

    try:
        before = found()
        for name in ("cli.py", "grading/checks/x/d.py"):
            (tmp_path / name).write_text("2")
        assert found() == before
        seen = {before}
        for name in ("grading/a.py", "sandbox/b.py", "adapters/c.py"):
            (tmp_path / name).write_text("2")
            seen.add(found())
        monkeypatch.setattr(store, "version", lambda name: "0.0")
        seen.add(found())
        assert len(seen) == 5
    finally:
        store.code_hash.cache_clear()
