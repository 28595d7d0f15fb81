"""Submissions that stall or break things: each ends in a named state and leaves nothing behind.

All selected submissions of stalls/ are graded in one run under small limits; each test reads one
row of its results. `QUICK` has cases of every kind; the others are exhaustive.
"""

import pytest

from .canary_course import CLASSMATE, CORPUS_MARKS, GradedCorpus, grade_corpus
from .corpus import POINTS, Case, load, parameters

CASES = {case.name: case for case in load("stalls")}
QUICK = {
    "binary", "checker-socket-through-itself", "daemon-double-fork", "daemon-that-holds-pipes",
    "descriptors-closed", "disk-home", "fork-bomb-shell", "infinite-loop", "input-call",
    "interrupt-swallowed", "kill-everything", "markdown-table", "memory-kept", "no-notebook",
    "output-one-print", "segfault", "ten-thousand-cells", "truncated",
}  # fmt: skip
OPTIONS = ("--jobs=4", "--time-limit=24", "--cell-timeout=8", "--memory=0.8")
pytestmark = CORPUS_MARKS


@pytest.fixture(scope="module")
def stalled(tmp_path_factory, request) -> GradedCorpus:
    """The selected stalls, submitted and graded in one run."""
    return grade_corpus(request, tmp_path_factory.mktemp("stalls"), CASES, *OPTIONS)


@pytest.fixture(params=parameters(CASES, QUICK))
def case(request) -> Case:
    """Each stall in turn."""
    return CASES[request.param]


def test_ids_differ_and_the_classmates_sorts_last():
    assert len({case.id for case in CASES.values()}) == len(CASES)
    assert max(case.id for case in CASES.values()) < CLASSMATE


def test_the_quick_cases_have_every_kind():
    assert {CASES[name].kind for name in QUICK} == {case.kind for case in CASES.values()}


def test_it_ends_in_a_named_state_and_keeps_what_it_earned(case, stalled):
    row = stalled.graded.row(case.id)
    assert row is not None, "no row in grades.csv"
    assert row["state"] in case.state, row["reason"]
    assert float(row["score"]) == case.score
    assert row["state"] == "graded" or row["reason"]


def test_the_classmate_graded_last_gets_full_marks(stalled):
    row = stalled.graded.rows[CLASSMATE]
    assert (row["state"], float(row["score"])) == ("graded", POINTS)
    assert list(stalled.graded.rows)[-1] == CLASSMATE


def test_nothing_is_left_on_the_machine(stalled):
    assert stalled.left == {}


def test_every_state_of_a_stall_occurs(stalled):
    states = {stalled.graded.row(case.id)["state"] for case in stalled.cases.values()}
    assert states >= {
        "graded", "cell-timed-out", "kernel-died", "out-of-memory", "too-much-output",
        "unreadable", "refused",
    }  # fmt: skip


def test_a_fork_bomb_is_told_about_the_process_limit(stalled):
    """Forks of the kernel itself, and threads with their stacks, reach the memory limit first."""
    assert "processes at once" in stalled.graded.page(CASES["fork-bomb-shell"].id)
