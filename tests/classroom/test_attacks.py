"""Attacks: none forges a score, leaks a secret or leaves anything behind.

All selected submissions of attacks/ are graded in one run; each test reads one row of its
results. `QUICK` has cases of every kind, except earlier submissions, which test_grader covers; the
other cases are exhaustive.
"""

import csv
import json
import stat
import time
import zipfile
from dataclasses import replace

import pytest

from .canary_course import (
    CLASSMATE,
    CORPUS_MARKS,
    CanaryCourse,
    GradedCorpus,
    classmate,
    grade,
    grade_corpus,
)
from .corpus import ASSIGNMENT, POINTS, TRIED, Case, load, parameters
from .host import MARK, Services, Watch

CASES = {case.name: case for case in load("attacks")}
QUICK = {
    "always-equal-float", "daemon-with-socket", "descriptors-in-flight", "duplicated-tests",
    "edited-tests", "forged-record", "forged-zmq", "frames-around", "html-script",
    "id-escaped-path", "id-formula", "import-answer-key", "local-course-pkg", "loopback",
    "lying-tensor", "notebook-is-a-link", "oracle", "own-timestamp", "patched-check", "ptrace",
    "read-gradebook", "read-questions", "read-solutions", "references-in-memory",
    "runner-rewritten", "spoofed-execute-result", "stolen-descriptors", "write-results",
}  # fmt: skip
OPTIONS = ("--jobs=2", "--time-limit=40", "--cell-timeout=20", "--memory=2")
TWINS = ("Ada-Twin",)  # submitted by a builder, in addition to an attack
pytestmark = CORPUS_MARKS


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, request) -> GradedCorpus:
    """The selected attacks, graded in one run beside services that they may try to reach."""
    with Services() as services:
        corpus = grade_corpus(request, tmp_path_factory.mktemp("attacks"), CASES, *OPTIONS)
    return replace(corpus, met=services.met)


@pytest.fixture(params=parameters(CASES, QUICK))
def case(request) -> Case:
    """Each attack in turn."""
    return CASES[request.param]


def test_ids_differ():
    assert len({case.id for case in CASES.values()}) == len(CASES)


def test_the_quick_cases_have_every_kind():
    kinds = {case.kind for case in CASES.values() if not case.earlier}
    assert {CASES[name].kind for name in QUICK} == kinds


def test_it_gets_only_the_points_that_its_honest_part_earns(case, attacked):
    row = attacked.graded.row(case.id)
    assert row is not None, "no row in grades.csv"
    assert row["state"] in case.state, row["reason"]
    assert float(row["score"]) == case.score


def test_its_code_ran_to_the_end(case, attacked):
    if (case.before or case.after) and case.tried:
        assert TRIED in attacked.graded.shown(case.id)


def test_nothing_leaks(case, attacked):
    assert attacked.graded.leaked(case.id) == []


def test_pages_and_outputs_of_it_are_inert(case, attacked):
    opened = attacked.graded.opened(case.id)
    assert [text for text in case.never if text in opened] == []


def test_the_gradebook_agrees_with_the_csv(attacked):
    from nbgrader.api import Gradebook

    where = f"sqlite:///{attacked.graded.course.root}/gradebook.db"
    with Gradebook(where, "llm-course") as book:
        scores = {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}
    expected = {case.id: case.score for case in attacked.cases.values()} | {CLASSMATE: POINTS}
    expected |= dict.fromkeys(TWINS, 0.0)
    assert scores.keys() <= expected.keys()
    assert scores == {student: expected[student] for student in scores}
    ran = {name for name, row in attacked.graded.rows.items() if row["state"] != "refused"}
    assert scores.keys() == ran  # a refused submission adds nobody


def test_the_classmate_graded_last_gets_full_marks(attacked):
    row = attacked.graded.rows[CLASSMATE]
    assert (row["state"], float(row["score"])) == ("graded", POINTS)


def test_nothing_is_left_on_the_machine(attacked):
    assert attacked.left == {}


def test_no_service_on_the_machine_was_reached(attacked):
    assert attacked.met == []


def test_the_services_can_be_reached_from_outside_the_sandbox():
    import socket

    from .host import ABSTRACT, PORT

    with Services() as services, socket.socket(socket.AF_UNIX) as abstract:
        socket.create_connection(("127.0.0.1", PORT)).close()
        abstract.connect(ABSTRACT)
        end = time.monotonic() + 5
        while len(services.met) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert len(services.met) == 2


def test_no_cell_of_the_csv_is_a_formula(attacked):
    path = attacked.graded.course.root / "results" / ASSIGNMENT / "grades.csv"
    with open(path, newline="") as file:
        for row in csv.reader(file):
            assert not [text for text in row if text.startswith(("=", "+", "-", "@", "\t"))], row
            assert not [text for text in row if "\n" in text or "\r" in text or "\x1b" in text]


def test_no_escape_sequence_of_a_student_reached_the_terminal(attacked):
    printed = attacked.graded.printed
    assert CLASSMATE in printed
    assert not [text for text in ("\x1b]", "\x1b[2J", "\x9b", "\x07") if text in printed]


@pytest.mark.exhaustive
def test_scores_of_earlier_submissions_are_replaced(attacked):
    earlier = [case for case in attacked.cases.values() if case.earlier]
    assert {float(attacked.graded.rows[case.id]["score"]) for case in earlier} == {0.0}


def test_a_leaked_canary_would_be_found(attacked):
    course = attacked.graded.course
    for place, canary in course.canaries.items():
        for text in (canary, canary[::-1], canary.encode().hex()):
            assert course.found_in(f"xx{text}xx") == [place]
    key = (course.root / ".grading" / "secret").read_bytes().strip()
    assert "secret" in course.found_in(key.decode("latin-1"))
    assert course.found_in("GOT a thing") == ["a thing"]


def test_a_hostile_zip_writes_nothing_outside_and_affects_nobody_else(tmp_path):
    course = CanaryCourse(tmp_path / "course")
    good = json.dumps(classmate())
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(f"{CLASSMATE}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", good)
        for name in (f"../../{MARK}-up.ipynb", f"/tmp/{MARK}-absolute.ipynb",
                     f"ada/../../../{MARK}-inside/{ASSIGNMENT}.ipynb", f"..\\..\\{MARK}-back.ipynb",
                     f"{MARK}\0x.ipynb", f"C:/{MARK}.ipynb"):  # fmt: skip
            archive.writestr(zipfile.ZipInfo(name), good)
        link = zipfile.ZipInfo(f"linker/{ASSIGNMENT}/{ASSIGNMENT}.ipynb")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(course.root / "gradebook.db"))
        folder = zipfile.ZipInfo("folder-linker")
        folder.create_system, folder.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(folder, str(course.root))
        archive.writestr(f"folder-linker/{MARK}.txt", "x")
        for student in ("bob", "eve"):  # zip bombs: 100 MB each
            with archive.open(f"{student}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", "w") as member:
                for _ in range(100):
                    member.write(bytes(1_000_000))
    watch = Watch(course.home, course.root, tmp_path)
    graded = grade(course, "--submitted", str(path), *OPTIONS)
    assert watch.left(graded.pid) == {}
    assert float(graded.rows[CLASSMATE]["score"]) == POINTS
    others = [row for student, row in graded.rows.items() if student != CLASSMATE]
    assert {row["state"] for row in others} <= {"refused", "unreadable"}
    assert {float(row["score"]) for row in others} == {0.0}
    assert {graded.rows[student]["state"] for student in ("bob", "eve")} == {"refused"}
    assert list(graded.course.root.rglob(f"{MARK}*")) == []
