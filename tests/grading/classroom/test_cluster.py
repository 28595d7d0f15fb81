"""`course grade --scheduler` on real workers: the same results as on one machine, whatever dies.

The tests of this module share a cluster. Each starts the workers that it needs, ends the others.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from course_pkg.common.scheduler_address import scheduler_of
from course_pkg.grading.classroom.cluster import cluster_executor
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.local_executor import ExecutorLost
from course_pkg.grading.classroom.execution.runner_output import State
from tests.exercises.assignments import ROOT
from tests.grading.classroom import NEEDS_SANDBOX
from tests.grading.classroom.cluster_worker import PROOF
from tests.grading.classroom.clusters import (
    ASSIGNMENT,
    LIMITS,
    Class,
    Cluster,
    certificate,
    package_without,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    NEEDS_SANDBOX,
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl, for certificates"),
]
HOSTILE = ("dead", "flood", "html")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("pem"), "course")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, pem):
    """A cluster with TLS, whose workers each test chooses."""
    with Cluster(tmp_path_factory.mktemp("cluster"), pem) as made:
        yield made


@pytest.fixture(scope="module")
def alone(prepared_bleu, tmp_path_factory):
    """A class that was graded on this machine."""
    school = Class(prepared_bleu, tmp_path_factory.mktemp("alone") / "course")
    school.fill(*HOSTILE)
    school.grade()
    return school


@pytest.fixture
def school(prepared_bleu, tmp_path):
    """The same class, which was not graded yet."""
    school = Class(prepared_bleu, tmp_path / "course")
    school.fill(*HOSTILE)
    return school


def command(school, cluster, pem):
    """`course grade`, started."""
    school.hand_in()
    limits = ("--cell-timeout", str(LIMITS.cell_timeout_s))
    limits += ("--time-limit", str(LIMITS.time_limit_s))
    limits += ("--max-output", str(LIMITS.output_bytes / 1e6))
    at = ("--scheduler", cluster.at.address)
    at += ("--tls-ca", pem, "--tls-cert", pem) if pem else ()
    return school.start("grade", ASSIGNMENT, *limits, *map(str, at))


def assert_the_same(school, alone):
    """Everybody who is in both classes has the same results; the pages on the class differ."""
    results = school.results()
    expected = {k: v for k, v in alone.results().items() if not k.startswith("results/")}
    assert {name: results[name] for name in expected} == expected


def test_one_worker_gives_the_same_as_no_cluster(alone, school, cluster):
    cluster.only("a", threads=2)
    records = school.grade(cluster.at)
    states = {student: record.state for student, record in records.items()}
    assert states == {
        "ada": State.GRADED,
        "ben": State.GRADED,
        "cut": State.UNREADABLE,
        "zoe": State.GRADED,
        "dead": State.KERNEL_DIED,
        "flood": State.TOO_MUCH_OUTPUT,
        "html": State.GRADED,
    }
    assert school.results() == alone.results()
    again = school.grade(cluster.at)
    assert {s for s in records if again[s] != records[s]} <= {"cut"}  # which is only read
    assert school.said().count("  before") == len(records) - 1


def test_of_four_workers_one_submission_takes_down_three_and_the_others_lose_nothing(
    alone, school, cluster
):
    cluster.only("a", "b", "c", "d")
    school.submit("killer")
    records = school.grade(cluster.at)
    killer = records.pop("killer")
    assert killer.state == State.WORKERS_LOST and "3 workers" in killer.reason
    assert len(cluster.alive()) == 1
    assert_the_same(school, alone)
    assert school.table()["killer"]["score"] == ""
    assert school.grade(cluster.at)["killer"] == killer  # not again, unless it is asked for
    assert len(cluster.alive()) == 1


def test_a_worker_of_another_version_is_refused_by_name_and_missing_checks_are_sent(
    alone, school, cluster, tmp_path
):
    cluster.only("old")
    cluster.add("new", package=package_without(ASSIGNMENT, tmp_path / "package"))
    school.grade(cluster.at)
    assert school.results() == alone.results()
    said = school.said()
    assert "worker old at tls://127.0.0.1" in said and "it has course_pkg 0.0.1; expected" in said
    assert "worker new" not in said


def test_workers_that_fail_or_lie_change_nothing_and_are_refused(alone, school, cluster):
    """One has no space left, the replies of another one run code in who reads them."""
    cluster.only("a", "full", "junk")
    cluster.wait()
    said = ""
    for first in range(0, 40, 5):  # on a slow machine, one may be ready only after a run
        school.fill_slowly(5, seconds=2, first=first)
        records = school.grade(cluster.at)
        said += school.said()
        if "worker full" in said and "worker junk" in said:
            break
    assert_the_same(school, alone)
    assert {r.state for s, r in records.items() if s.startswith("slow")} == {State.GRADED}
    assert not os.path.exists(PROOF)
    assert "worker full at tls://127.0.0.1" in said and "No space left on device" in said
    assert "worker junk at tls://127.0.0.1" in said and "a task failed" in said
    assert "worker a at" not in said


def test_what_is_open_to_the_network_is_refused(school, tmp_path):
    """As the programs start by default, without --host."""
    with Cluster(tmp_path / "open", host="tcp://0.0.0.0") as made:
        at = scheduler_of(f"127.0.0.1:{made.at.address.rpartition(':')[2]}", None, None, None)
        with pytest.raises(ExecutorLost, match=r"refused: it listens at tcp://.*--host 127.0.0.1"):
            school.grade(at)
    assert not (school.root / "results").exists()


def test_a_scheduler_is_not_trusted_without_its_certificate(school, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_executor, "CONNECT_S", 1.0)
    other = certificate(tmp_path, "other")
    with pytest.raises(ExecutorLost, match=r"no scheduler answers.*of the same authority"):
        school.grade(scheduler_of(cluster.at.address, other, other, None))
    without_key = tmp_path / "other.crt"
    with pytest.raises(ExecutorLost, match=r"certificates can't be used .*--tls-key are yours"):
        school.grade(scheduler_of(cluster.at.address, other, without_key, None))
    assert not (school.root / "results").exists()


def test_ctrl_c_ends_the_command_and_what_runs_on_the_workers(school, cluster, pem):
    cluster.only("a", threads=2)
    school.submit("loop", code="import time; time.sleep(280)")
    process = command(school, cluster, pem)
    for line in process.stdout:
        if "ada  graded" in line:
            break
    wait_until(lambda: cluster.sandboxes() or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "run the same command again to continue" in said
    wait_until(lambda: not cluster.sandboxes())  # far below the submission's limits


@pytest.mark.exhaustive
def test_what_needs_a_gpu_waits_for_a_worker_that_has_one(school, cluster, monkeypatch):
    monkeypatch.setattr(ClassAssignment, "gpu", "required")
    monkeypatch.setattr(cluster_executor, "GRACE_S", 0.5)
    cluster.only("a", threads=2)
    records = school.grade(cluster.at)
    assert {r.state for s, r in records.items() if s != "cut"} == {State.WAITING}
    assert "no worker of the cluster has a GPU" in records["ada"].reason
    assert "--resources GPU=1" in records["ada"].reason
    cluster.add("gpu", threads=2, resources="GPU=1")
    records = school.grade(cluster.at)
    assert (records["ada"].state, records["ada"].gpu) == (State.GRADED, "Fake 0")
    assert records["ben"].gpu == "Fake 0" and records["dead"].state == State.KERNEL_DIED


@pytest.mark.exhaustive
def test_without_its_scheduler_a_run_ends_and_is_completed_anywhere(alone, school, pem, tmp_path):
    with Cluster(tmp_path / "cluster", pem) as cluster:
        cluster.add("a", threads=2)
        process = command(school, cluster, pem)
        for line in process.stdout:
            if "  graded  " in line:
                break
        cluster.scheduler.kill()
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 4 and "run the same command again to continue" in said, said
    school.grade()
    assert school.said().count("  before") >= 1
    assert school.results() == alone.results()


def test_the_process_that_has_the_courses_secret_imports_no_dask():
    code = "import course_pkg.grading.classroom.runs.grade_class, sys"
    code += ", course_pkg.grading.classroom.cluster.cluster_executor"
    run = [sys.executable, "-c", f"{code}; print({{'dask', 'distributed'}} & sys.modules.keys())"]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"
