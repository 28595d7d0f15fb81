"""The stall corpus: each ends within its limit in a named state, and leaves nothing behind.

Every submission of stalls/ is graded in one run under small limits; each test then reads its row.
"""

from dataclasses import dataclass

import pytest

from course_pkg.sandbox.probe import probe

from .corpus import CLASSMATE, POINTS, Case, Graded, Ground, grade, load
from .host import Watch
from .tables import Table, print_at_end

CASES = {case.name: case for case in load("stalls")}
LIMIT_S, CELL_S, MEMORY_GB, SLACK_S = 16.0, 5.0, 1.5, 2.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}"),
]


@dataclass
class Stalled:
    """The corpus, graded, and what was left on the machine."""

    graded: Graded
    left: dict[str, set[str]]


@pytest.fixture(scope="session")
def stalled(tmp_path_factory, request):
    """All stalls, submitted and graded in one run."""
    ground = Ground(tmp_path_factory.mktemp("stalls") / "course")
    for case in CASES.values():
        ground.write(case)
    watch = Watch(ground.home, ground.root)
    graded = grade(
        ground, "--jobs=2", f"--time-limit={LIMIT_S}", f"--cell-timeout={CELL_S}",
        f"--memory={MEMORY_GB}",
    )  # fmt: skip
    table = print_at_end(
        request.config,
        Table(f"stalls: limit {LIMIT_S:g} s, {CELL_S:g} s a cell, {MEMORY_GB:g} GB",
              ("stall", "kind", "state", "score", "deserved", "seconds")),
    )  # fmt: skip
    for case in CASES.values():
        row = graded.row(case.id) or {}
        table.rows.append(
            (case.title, case.kind, row.get("state"), row.get("score"), f"{case.score:g}",
             f"{seconds(row):.1f}")
        )  # fmt: skip
    longest = max(seconds(graded.row(case.id) or {}) for case in CASES.values())
    table.last = f"{len(CASES)} stalls in {graded.seconds:.0f} s; the longest took {longest:.1f} s"
    return Stalled(graded, watch.left(graded.pid))


def seconds(row: dict[str, str]) -> float:
    """How long a submission held its place: start and run."""
    return float(row.get("start_s") or 0) + float(row.get("run_s") or 0)


@pytest.fixture(params=list(CASES))
def case(request) -> Case:
    """Each stall in turn."""
    return CASES[request.param]


def test_the_corpus_is_wide():
    assert len(CASES) >= 50
    assert len({case.id for case in CASES.values()}) == len(CASES)
    assert max(case.id for case in CASES.values()) < CLASSMATE


def test_it_ends_in_a_named_state_and_keeps_what_it_earned(case, stalled):
    row = stalled.graded.row(case.id)
    assert row is not None, "no row in grades.csv"
    assert row["state"] in case.state, row["reason"]
    assert float(row["score"]) == case.score
    assert row["state"] == "graded" or row["reason"]


def test_it_ends_within_its_limit(case, stalled):
    assert seconds(stalled.graded.row(case.id)) <= LIMIT_S + SLACK_S


def test_the_classmate_graded_last_gets_full_marks(stalled):
    row = stalled.graded.rows[CLASSMATE]
    assert (row["state"], float(row["score"])) == ("graded", POINTS)
    assert list(stalled.graded.rows)[-1] == CLASSMATE


def test_nothing_is_left_on_the_machine(stalled):
    assert stalled.left == {}


def test_every_state_occurs(stalled):
    states = {stalled.graded.row(case.id)["state"] for case in CASES.values()}
    assert states >= {
        "graded", "cell-timed-out", "timed-out", "kernel-died", "out-of-memory", "too-much-output",
        "unreadable", "refused",
    }  # fmt: skip


def test_a_fork_bomb_is_told_about_the_process_limit(stalled):
    """Forks of the kernel itself, and threads with their stacks, meet the one on memory before."""
    assert "processes at once" in stalled.graded.page(CASES["fork-bomb-shell"].id)
