"""Running an experiment: a stopped sweep continues, and rows of other code are never mixed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.pages.experiments import changed_files, load_experiment, script_sources
from tests.book.support import rate_ladder, recording


class Bench:
    """A made-up experiment in a folder of its own, whose rows are squares."""

    plan = tuple({"x": x} for x in range(4))

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.prepared = 0
        self.measured = []
        self.factor = 1.0
        self.stop_at = None
        self.script = folder / "book/experiments/squares.py"
        self.script.parent.mkdir(parents=True)
        self.script.write_text("FACTOR = 1\n")

    def prepare(self) -> None:
        self.prepared += 1

    def measure(self, task: None, key: dict) -> dict:
        if key["x"] == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(key["x"])
        return {"square": self.factor * key["x"] ** 2}

    def run(self, *arguments: str) -> dict:
        keywords = {"probe": {"x": 3}, "settings": {}, "folder": self.root, "root": self.root}
        recording.main(
            str(self.script), self.plan, self.prepare, self.measure, arguments=arguments, **keywords
        )
        return self.read()

    def changed(self) -> list[str]:
        record = load_experiment("squares", folder=self.root)
        return changed_files(record, script_sources(self.root))

    def read(self) -> dict:
        return json.loads((self.root / "squares.json").read_text("utf-8"))


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


def test_a_stopped_sweep_keeps_its_rows_and_a_finished_one_costs_nothing_to_run_again(bench):
    bench.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert [row["square"] for row in bench.read()["rows"]] == [0, 1]
    bench.stop_at = None
    done = bench.run()
    assert [row["square"] for row in done["rows"]] == [0, 1, 4, 9]
    assert bench.run() == done
    assert bench.measured == [0, 1, 2, 3] and bench.prepared == 2


def test_a_plan_that_depends_on_the_rows_is_asked_until_it_is_complete(bench):
    def until_ten(rows):
        """Keys until a square exceeds 10."""
        return [{"x": x} for x in range(1 + sum(row["square"] <= 10 for row in rows))]

    bench.plan = until_ten
    assert [row["square"] for row in bench.run()["rows"]] == [0, 1, 4, 9, 16]
    assert bench.prepared == 1


def test_rows_of_other_code_are_neither_mixed_nor_confirmed_nor_dropped_unasked(bench):
    with pytest.raises(SystemExit, match="no record to confirm"):
        bench.run("--confirm")
    old = bench.run()
    bench.script.write_text("FACTOR = 2\n")
    bench.factor = 2.0
    with pytest.raises(SystemExit, match=r"squares\.py changed .* --restart .* --confirm"):
        bench.run()
    with pytest.raises(SystemExit, match=r"not confirmed, square was 9\.0 and is 18\.0"):
        bench.run("--confirm")
    assert bench.read() == old and bench.changed() == ["book/experiments/squares.py"]
    assert [row["square"] for row in bench.run("--restart")["rows"]] == [0, 2, 8, 18]


def test_after_an_edit_that_changes_nothing_one_row_confirms_the_record(bench):
    old = bench.run()
    bench.script.write_text("FACTOR = 3 - 2\n")
    new = bench.run("--confirm")
    assert new["rows"] == old["rows"] and bench.measured == [0, 1, 2, 3, 3]
    assert new["files"] != old["files"] and new["confirmed"]["versions"] == old["versions"]
    assert bench.changed() == []


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (1.0, 1.0005, True),
        (1.0, 1.002, False),
        ([1.0, 2.0], [1.0, 2.0004], True),
        ([1.0], [1.0, 2.0], False),
        ({"a": [1.0]}, {"a": [2.0]}, False),
        (3, 4, False),
    ],
)
def test_results_are_compared_within_a_tolerance(ours, theirs, same):
    assert (recording.compare({"r": ours, "seconds": 1}, {"r": theirs, "seconds": 9}) == []) is same


def test_another_machine_may_round_differently():
    """Two virtual machines may have processors of one name and other instructions."""
    here = recording.machine()
    other = here | {"instructions": "none"}
    assert recording.tolerance(here) < recording.tolerance(other)
    assert recording.tolerance({"cpu": here["cpu"]}) == recording.tolerance(other)


@pytest.mark.parametrize(
    ("losses", "rates", "best"),
    [
        ({}, [3, 10], None),
        ({3: 2.0}, [3, 10], None),
        ({3: 1.0, 10: 2.0}, [1, 3, 10], None),
        ({3: 2.0, 10: 1.0}, [3, 10, 30], None),
        ({1: 2.0, 3: 1.0, 10: 2.0}, [1, 3, 10], 3),
        ({1: 1.0, 3: 2.0, 10: 3.0}, [1, 3, 10], 1),  # the ladder ends there
        ({3: 3.0, 10: 2.0, 30: 1.0}, [3, 10, 30], 30),
    ],
)
def test_a_rate_is_chosen_once_it_is_not_at_an_edge_that_can_move(losses, rates, best):
    assert rate_ladder.rates_to_try(losses, [3, 10], [1, 3, 10, 30]) == (rates, best)


def test_what_ran_here_and_in_a_process_of_its_own_counts_and_what_was_not_loaded_does_not(bench):
    package = bench.root / "course_pkg"
    package.mkdir()
    for name in ("__init__", "child", "grandchild", "never"):
        (package / f"{name}.py").write_text("def f():\n    return 1\n")
    (package / "child.py").write_text("from course_pkg.grandchild import f\nX = f()\n")
    bench.script.write_text("def later():\n    from course_pkg.never import f\n    return f()\n")
    bench.plan = ({"x": 3},)

    def measure(task: None, key: dict) -> dict:
        search = os.environ["PYTHONPATH"] + os.pathsep + str(bench.root)
        environment = {**os.environ, "PYTHONPATH": search}
        command = [sys.executable, "-c", "import course_pkg.child"]
        subprocess.run(command, env=environment, check=True, cwd=bench.root)
        return {"square": 9.0}

    bench.measure = measure
    record = bench.run()
    files = {"book/experiments/squares.py", "course_pkg/child.py", "course_pkg/grandchild.py"}
    assert record["files"].keys() == files and "course_pkg.child" in record["programs"]
    (package / "never.py").write_text("def f():\n    return 2\n")
    assert bench.changed() == []
    (package / "grandchild.py").write_text("def f():\n    return 2\n")
    assert bench.changed() == ["course_pkg/grandchild.py"]
    assert "PYTHONPATH" not in os.environ or "course-trace" not in os.environ["PYTHONPATH"]
