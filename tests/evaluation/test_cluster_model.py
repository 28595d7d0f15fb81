import json
import re

import pytest
from typer.testing import CliRunner

from course_pkg import __version__
from course_pkg.cli import app
from course_pkg.common.http_client import ServerError
from course_pkg.evaluation import cluster_model
from course_pkg.evaluation.cluster_model import ClusterModel, Loading, answer_batch
from course_pkg.evaluation.local_model import load_model
from course_pkg.evaluation.run_errors import RunError
from course_pkg.evaluation.samples import make_requests
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task
from tests.grading.classroom.clusters import Cluster

TASK = load_task("multiple-choice")
LIMIT = 80  # three batches


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), preload=None) as cluster:
        cluster.add("one", "two")
        cluster.wait()
        yield cluster


@pytest.fixture(scope="module")
def local():
    return load_model("tiny")


def on(address, local, loading=None, wait_s=10):
    return ClusterModel(local, loading or Loading("tiny"), address, wait_s=wait_s)


def fields(folder):
    """A record without the time at which it was made."""
    return {
        name: value
        for name, value in json.loads((folder / "record.json").read_text("utf-8")).items()
        if name != "finished"
    }


@pytest.mark.slow
def test_the_record_is_that_of_one_machine(cluster, local, tmp_path):
    run_task(TASK, local, tmp_path / "here", limit=LIMIT)
    run = run_task(TASK, on(cluster.at.address, local), tmp_path / "there", limit=LIMIT)
    assert run.asked == LIMIT and run.record.failed == 0
    assert fields(tmp_path / "there") == fields(tmp_path / "here")


@pytest.mark.slow
def test_a_run_that_began_here_continues_on_the_cluster(cluster, local, tmp_path):
    run_task(TASK, local, tmp_path, limit=32)
    run = run_task(TASK, on(cluster.at.address, local), tmp_path, limit=LIMIT)
    assert run.asked == LIMIT - 32
    assert run_task(TASK, on("tcp://127.0.0.1:1", local), tmp_path, limit=LIMIT).asked == 0


@pytest.mark.slow
def test_the_command_takes_a_scheduler(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["eval", "--task", "multiple-choice", "--model", "tiny", "--limit", "6"]
    done = CliRunner().invoke(app, [*command, "--scheduler", cluster.at.address])
    assert done.exit_code == 0, done.output
    assert "multiple-choice, tiny: 6 items" in done.stdout


@pytest.mark.slow
def test_workers_with_other_weights_are_refused(cluster, local, tmp_path):
    other = load_model("tiny")
    with_other = next(other.model.parameters())
    with_other.data += 1
    with pytest.raises(RunError, match=r"a worker has other weights for tiny \(\w+, here \w+\)"):
        run_task(TASK, on(cluster.at.address, other), tmp_path / "other", limit=2)
    missing = Loading("tiny", adapter=str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match=r"a worker can't load the model: .*nowhere"):
        run_task(TASK, on(cluster.at.address, local, missing), tmp_path / "missing", limit=2)


def test_a_worker_of_another_version_is_refused(local):
    requests = make_requests(TASK, tokenizer=local.tokenizer, limit=1)
    expected = ("0.0.1", local.identity["weights"])
    with pytest.raises(RunError, match=r"a worker has version .*, this machine 0\.0\.1"):
        answer_batch(Loading("tiny"), expected, TASK, requests)


def test_a_folder_with_other_weights_in_the_next_run_is_loaded_again(local, monkeypatch):
    loaded = []

    def load(name, *_, **__):
        loaded.append(load_model("tiny", dtype="float32" if not loaded else "float16"))
        return loaded[-1]

    monkeypatch.setattr(cluster_model, "load_model", load)
    monkeypatch.setattr(cluster_model, "_LOADED", {})
    requests = make_requests(TASK, tokenizer=local.tokenizer, limit=1)
    after = load_model("tiny", dtype="float16").identity["weights"]
    for weights in (local.identity["weights"], local.identity["weights"], after):
        answer_batch(Loading("tiny"), (__version__, weights), TASK, requests)
    assert len(loaded) == 2


def test_an_item_at_fault_fails_alone(local, monkeypatch):
    class Failing(type(local)):
        def _compute(self, task, batch, *progress):
            if any(request.item.id == TASK.chosen(1)[0].id for request in batch):
                raise FloatingPointError("the logits are NaN")
            return super()._compute(task, batch, *progress)

    failing = Failing(local.model, local.tokenizer, "tiny", None)
    monkeypatch.setattr(cluster_model, "load_model", lambda *_, **__: failing)
    monkeypatch.setattr(cluster_model, "_LOADED", {})
    requests = make_requests(TASK, tokenizer=local.tokenizer, limit=3)
    expected = (__version__, local.identity["weights"])
    answers = answer_batch(Loading("tiny"), expected, TASK, requests)
    assert [isinstance(answer, FloatingPointError) for answer in answers] == [True, False, False]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_worker_costs_no_item(local, tmp_path):
    with Cluster(tmp_path / "cluster", preload=None) as cluster:
        cluster.add("dies", "lives")
        cluster.wait()
        killed = []

        def kill_one(done, total):
            if done and not killed:
                killed.append(cluster.kill("dies"))

        model = on(cluster.at.address, local)
        run = run_task(TASK, model, tmp_path / "run", limit=LIMIT, progress=kill_one)
    assert killed and run.record.failed == 0 and len(run.record.samples) == LIMIT


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_lost_scheduler_ends_the_run_and_keeps_what_was_answered(local, tmp_path):
    with Cluster(tmp_path / "cluster", preload=None) as cluster:
        with pytest.raises(ServerError, match=r"has had no worker for 1 s: start one"):
            run_task(TASK, on(cluster.at.address, local, wait_s=1), tmp_path / "run", limit=LIMIT)
        cluster.add("one")
        cluster.wait()

        def kill_scheduler(done, total):
            if done:  # of several batches, so that some are left
                cluster.scheduler.kill()

        model = on(cluster.at.address, local)
        with pytest.raises(ServerError, match=r"the scheduler tcp://127\.0\.0\.1:\d+ is lost"):
            run_task(TASK, model, tmp_path / "run", limit=LIMIT, progress=kill_scheduler)
    with pytest.raises(ServerError, match=re.escape("no scheduler answers at tcp://127.0.0.1")):
        run_task(TASK, on(cluster.at.address, local, wait_s=1), tmp_path / "run", limit=LIMIT)
    assert run_task(TASK, local, tmp_path / "run", limit=LIMIT).asked < LIMIT
