"""The corpora: no attack forges a score, no stall ends the run, no honest submission loses marks.

The selected submissions of a corpus are graded in one run; most tests read one row of its results.
The quick cases have every kind, except those with an earlier submission, which `test_grader`
covers; the others are exhaustive.
"""

import csv
import html
import socket
from dataclasses import replace

import pytest

from tests.grading.classroom.canary_course import (
    CLASSMATE,
    CORPUS_MARKS,
    GradedCorpus,
    grade_corpus,
)
from tests.grading.classroom.corpus import ASSIGNMENT, POINTS, TRIED, load
from tests.grading.classroom.host import ABSTRACT, PORT, Services
from tests.waiting import wait_until

pytestmark = CORPUS_MARKS


def pytest_generate_tests(metafunc):
    """A test of cases is run for the quick ones of its class's corpus, and for the others."""
    if "cases" in metafunc.fixturenames:
        cases = load(metafunc.cls.folder)
        quick = pytest.param([case for case in cases if case.quick], id="quick")
        others = [case for case in cases if not case.quick]
        metafunc.parametrize(
            "cases", [quick, pytest.param(others, id="others", marks=pytest.mark.exhaustive)]
        )


class Corpus:
    """What holds for every corpus. options: of `course grade`. ends: whether all code ends."""

    folder = ""
    options = ()
    ends = True

    @pytest.fixture(scope="class")
    def corpus(self, request, tmp_path_factory) -> GradedCorpus:
        cls = request.cls
        place = tmp_path_factory.mktemp(cls.folder)
        return grade_corpus(request, place, load(cls.folder), *cls.options)

    def test_ids_differ_and_the_quick_cases_have_every_kind(self):
        cases = load(self.folder)
        assert len({case.id for case in cases}) == len(cases)
        quick = {case.kind for case in cases if case.quick}
        assert quick == {case.kind for case in cases if not case.earlier}

    def test_each_ends_in_its_state_with_the_points_that_its_honest_part_earns(self, corpus, cases):
        rows = {case.name: corpus.graded.row(case.id) for case in cases}
        assert [name for name, row in rows.items() if row is None] == []  # in grades.csv
        assert [
            (case.name, row["state"], row["score"], row["reason"])
            for case in cases
            if (row := rows[case.name])["state"] not in case.state
            or float(row["score"]) != case.score
            or (row["state"] != "graded" and not row["reason"])
        ] == []

    def test_code_of_each_ran_to_the_end(self, corpus, cases):
        tried = [case for case in cases if (case.before or case.after) and case.tried and self.ends]
        assert [one.name for one in tried if TRIED not in corpus.graded.shown(one.id)] == []

    def test_the_classmate_gets_full_marks(self, corpus):
        row = corpus.graded.rows[CLASSMATE]
        assert (row["state"], float(row["score"])) == ("graded", POINTS)

    def test_nothing_is_left_on_the_machine(self, corpus):
        assert corpus.left == {}


class TestAttacks(Corpus):
    folder = "attacks"
    options = ("--jobs=2", "--time-limit=120", "--cell-timeout=60", "--memory=2")

    @pytest.fixture(scope="class")
    def corpus(self, request, tmp_path_factory) -> GradedCorpus:
        with Services() as services:
            place = tmp_path_factory.mktemp("attacks")
            made = grade_corpus(request, place, load("attacks"), *self.options)
        return replace(made, met=services.met)

    def test_nothing_leaks(self, corpus, cases):
        leaked = {case.name: corpus.graded.leaked(case.id) for case in cases}
        assert {name: texts for name, texts in leaked.items() if texts} == {}

    def test_pages_and_outputs_are_inert(self, corpus, cases):
        for case in cases:
            opened = corpus.graded.opened(case.id)
            assert [text for text in case.never if text in opened] == [], case.name

    def test_the_gradebook_agrees_with_the_csv(self, corpus):
        from nbgrader.api import Gradebook

        where = f"sqlite:///{corpus.graded.course.root}/gradebook.db"
        with Gradebook(where, "llm-course") as book:
            scores = {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}
        expected = {case.id: case.score for case in corpus.cases.values()} | {CLASSMATE: POINTS}
        assert scores.keys() <= expected.keys()
        assert scores == {student: expected[student] for student in scores}
        known = {name for name, row in corpus.graded.rows.items() if row["state"] != "refused"}
        known |= {case.id for case in corpus.cases.values() if case.earlier}
        assert scores.keys() == known  # a refused submission adds nobody

    def test_no_service_on_the_machine_was_reached(self, corpus):
        assert corpus.met == []

    def test_the_services_can_be_reached_from_outside_the_sandbox(self):
        with Services() as services, socket.socket(socket.AF_UNIX) as abstract:
            socket.create_connection(("127.0.0.1", PORT)).close()
            abstract.connect(ABSTRACT)
            wait_until(lambda: len(services.met) == 2)

    def test_no_cell_of_the_csv_is_a_formula(self, corpus):
        path = corpus.graded.course.root / "results" / ASSIGNMENT / "grades.csv"
        with open(path, newline="") as file:
            for row in csv.reader(file):
                assert not {"=", "+", "-", "@", "\t"} & {text[:1] for text in row}, row
                assert not [text for text in row if "\n" in text or "\r" in text or "\x1b" in text]

    def test_no_escape_sequence_of_a_student_reached_the_terminal(self, corpus):
        printed = corpus.graded.printed
        assert CLASSMATE in printed
        assert not [text for text in ("\x1b]", "\x1b[2J", "\x9b", "\x07") if text in printed]

    def test_a_later_submission_that_fails_is_expected_to_lose_the_earlier_score(self):
        assert {case.score for case in load(self.folder) if case.earlier} == {0.0}

    def test_a_leaked_canary_would_be_found(self, corpus):
        course = corpus.graded.course
        for place, canary in course.canaries.items():
            for text in (canary, canary[::-1], canary.encode().hex()):
                assert course.found_in(f"xx{text}xx") == [place]
        key = (course.root / ".grading" / "secret").read_bytes().strip()
        assert "secret" in course.found_in(key.decode("latin-1"))
        assert course.found_in("GOT a thing") == ["a thing"]


class TestStalls(Corpus):
    folder = "stalls"
    options = ("--jobs=4", "--time-limit=24", "--cell-timeout=8", "--memory=0.8")
    options += ("--max-output=0.5",)
    ends = False

    def test_every_state_of_a_stall_occurs_and_the_classmate_is_graded_after_them(self, corpus):
        assert list(corpus.graded.rows)[-1] == CLASSMATE
        states = {corpus.graded.row(case.id)["state"] for case in corpus.cases.values()}
        expected = {"graded", "cell-timed-out", "kernel-died", "out-of-memory", "too-much-output"}
        assert states >= expected | {"unreadable", "refused"}

    def test_a_fork_bomb_is_told_about_the_process_limit(self, corpus):
        """Forks of the kernel, and threads with their stacks, reach the memory limit first."""
        assert "processes at once" in corpus.graded.page("fork-bomb-shell")


class TestHonest(Corpus):
    folder = "honest"
    options = ("--jobs=2",)

    def test_every_case_expects_full_marks_or_an_explanation(self):
        cases = load("honest")
        assert {case.score for case in cases if not case.told} == {POINTS}
        assert all(case.state == ("graded",) for case in cases)

    def test_pages_name_what_was_wrong(self, corpus, cases):
        for case in cases:
            page = html.unescape(corpus.graded.page(case.id)).lower()  # a diagnosis has a capital
            assert page, case.name
            assert [text for text in case.told if text.lower() not in page] == [], case.name
