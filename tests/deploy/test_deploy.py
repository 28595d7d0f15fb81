"""The set-ups under deploy/: certificates that work, scripts and manifests without mistakes."""

import os
import pwd
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from distributed.cli import dask_scheduler, dask_worker

from course_pkg.common.scheduler_address import scheduler_of
from course_pkg.grading.classroom.submissions.roster import Person, read_roster
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ME = pwd.getpwuid(os.getuid()).pw_name
SCRIPTS = ["ssh_cluster.py", "slurm_cluster.py"]


def run(*command: object, **more) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **more)


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tls"
    made = run(DEPLOY / "certificates.sh", folder, 3)
    assert made.returncode == 0, made.stderr
    return folder


def test_the_certificates_are_those_of_one_authority_whose_key_is_gone(tls):
    assert sorted(path.name for path in tls.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert {path.stat().st_mode & 0o077 for path in tls.iterdir()} == {0}
    strict = "-x509_strict", "-CAfile", tls / "ca.pem"  # as Python 3.13 verifies them
    assert run("openssl", "verify", *strict, tls / "cert.pem").returncode == 0
    public = [
        run("openssl", *what, "-pubout").stdout or run("openssl", *what).stdout
        for what in (
            ("pkey", "-in", tls / "key.pem"),
            ("x509", "-in", tls / "cert.pem", "-noout", "-pubkey"),
            ("x509", "-in", tls / "ca.pem", "-noout", "-pubkey"),
        )
    ]
    assert public[0] == public[1] != public[2]


def test_the_command_takes_the_certificates(tls):
    files = [tls / name for name in ("ca.pem", "cert.pem", "key.pem")]
    assert scheduler_of("tls://10.0.0.5:8786", *files).key.startswith("-----BEGIN")


def test_certificates_replace_no_others(tls):
    before = (tls / "key.pem").read_text()
    again = run(DEPLOY / "certificates.sh", tls)
    assert again.returncode != 0 and "exists" in again.stderr
    assert (tls / "key.pem").read_text() == before


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_nothing_without_certificates(name, tmp_path):
    done = run(sys.executable, DEPLOY / name, *["host"] * (name == SCRIPTS[0]) * 2, cwd=tmp_path)
    assert done.returncode == 1
    assert "key.pem missing: run deploy/certificates.sh tls" in done.stderr


def test_ssh_needs_a_host_for_the_scheduler_and_one_for_a_worker(tls):
    done = run(sys.executable, DEPLOY / "ssh_cluster.py", "one", "--tls", tls)
    assert done.returncode == 2 and "expected two hosts or more" in done.stderr


@pytest.mark.skipif(
    find_spec("dask_jobqueue") is None, reason="no dask-jobqueue: see deploy/requirements.txt"
)
def test_a_job_of_slurm_starts_a_worker_with_tls(tls):
    options = ["--show", "--port", "0", "--gpus", "2", "--threads", "3", "--partition", "long"]
    done = run(sys.executable, DEPLOY / "slurm_cluster.py", *options, "--tls", tls)
    assert done.returncode == 0, done.stderr
    directives = [line for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH -p long", "#SBATCH --gres=gpu:2", "#SBATCH --cpus-per-task=3"} < {*directives}
    (line,) = [line for line in done.stdout.splitlines() if "dask_worker" in line]
    arguments = line.partition("dask_worker ")[2].split()
    worker = dask_worker.main.make_context("worker", arguments).params
    assert worker["scheduler"].startswith("tls://") and worker["nthreads"] == 3
    assert worker["resources"] == "GPU=2" and worker["tls_key"] == str(tls / "key.pem")
    assert worker["dashboard_address"] == "127.0.0.1:0"


# -- Kubernetes

MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
PODS = [
    ("scheduler", MANIFESTS[0]["spec"]["scheduler"]["spec"]),
    ("worker", MANIFESTS[0]["spec"]["worker"]["spec"]),
    ("worker", MANIFESTS[1]["spec"]["worker"]["spec"]),
]


@pytest.fixture
def in_a_pod(tls, monkeypatch):
    """What `dask scheduler` or `dask worker` makes of the arguments of a pod's container."""
    commands = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}

    def parsed(kind: str, pod: dict) -> dict:
        (container,) = pod["containers"]
        assert container["command"] == ["/opt/venv/bin/dask", kind]
        arguments = [text.replace("=/tls/", f"={tls}/") for text in container["args"]]
        return commands[kind].make_context(kind, arguments).params

    return parsed


def test_the_manifests_are_a_cluster_and_its_gpu_workers():
    assert [one["kind"] for one in MANIFESTS] == ["DaskCluster", "DaskWorkerGroup"]
    assert {one["apiVersion"] for one in MANIFESTS} == {"kubernetes.dask.org/v1"}
    assert MANIFESTS[1]["spec"]["cluster"] == MANIFESTS[0]["metadata"]["name"]


@pytest.mark.parametrize(("kind", "pod"), PODS, ids=["scheduler", "worker", "gpu"])
def test_a_pod_runs_dask_with_tls_shows_no_pages_and_has_no_account(in_a_pod, tls, kind, pod):
    parameters = in_a_pod(kind, pod)
    assert parameters["tls_ca_file"] == str(tls / "ca.pem")
    assert parameters["tls_cert"] == str(tls / "cert.pem")
    assert parameters["tls_key"] == str(tls / "key.pem")
    assert not parameters["dashboard"] and parameters["dashboard_address"].startswith("127.0.0.1:")
    (container,) = pod["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["runAsUser"] == 1000


def test_workers_reach_the_scheduler_through_its_service(in_a_pod):
    cluster = MANIFESTS[0]
    (port,) = cluster["spec"]["scheduler"]["service"]["ports"]
    service = f"tls://{cluster['metadata']['name']}-scheduler:{port['port']}"
    assert in_a_pod(*PODS[0])["port"] == str(port["port"])
    assert {in_a_pod(*pod)["scheduler"] for pod in PODS[1:]} == {service}


def test_a_worker_with_a_gpu_says_so_and_runs_one_submission(in_a_pod):
    parameters = in_a_pod(*PODS[2])
    assert (parameters["resources"], parameters["nthreads"]) == ("GPU=1", 1)
    assert PODS[2][1]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_a_worker_has_four_gb_for_each_submission_at_once(in_a_pod):
    for _, pod in PODS[1:]:
        most = pod["containers"][0]["resources"]["requests"]["memory"].removesuffix("Gi")
        assert int(most) >= 4 * in_a_pod("worker", pod)["nthreads"]


# -- nbgrader's exchange


@pytest.fixture
def inbound(tmp_path) -> Path:
    """An exchange's inbound folder: this user submitted twice, and another assignment too."""
    for name in (
        f"{ME}+bleu+2026-03-01 10:00:00.000000 UTC+one",
        f"{ME}+bleu+2026-03-02 10:00:00.000000 UTC+two",
        f"{ME}+rouge+2026-03-03 11:00:00.000000 UTC+three",
        "notes",
    ):
        (tmp_path / "inbound" / name).mkdir(parents=True)
    return tmp_path / "inbound"


def people_of(inbound: Path) -> list[Person]:
    """Who is in the roster of an exchange; and nobody was left out."""
    made = run(sys.executable, DEPLOY / "exchange_roster.py", inbound, "bleu")
    assert (made.returncode, made.stderr) == (0, "")
    (inbound.parent / "roster.csv").write_text(made.stdout)
    return read_roster(inbound.parent / "roster.csv").people


def test_the_roster_of_an_exchange_has_times_that_a_student_cannot_set(inbound):
    for path in inbound.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (person,) = people_of(inbound)
    last = (inbound / f"{ME}+bleu+2026-03-02 10:00:00.000000 UTC+two").stat().st_ctime
    assert person.id == ME and abs(person.submitted_at.timestamp() - last) <= 1


def test_a_notebook_that_is_changed_in_its_place_has_the_time_of_the_change(inbound):
    folder = inbound / f"{ME}+bleu+2026-03-02 10:00:00.000000 UTC+two"

    def changed_a_second_later():  # nobody can set this time, and the roster has whole seconds
        (folder / "bleu.ipynb").write_text("later")
        return (folder / "bleu.ipynb").stat().st_ctime > folder.stat().st_ctime + 1

    wait_until(changed_a_second_later)
    os.utime(folder / "bleu.ipynb", (1_700_000_000, 1_700_000_000))
    (person,) = people_of(inbound)
    changed = (folder / "bleu.ipynb").stat().st_ctime
    assert changed - folder.stat().st_ctime > 1
    assert abs(person.submitted_at.timestamp() - changed) <= 1


def test_a_submission_in_somebody_elses_name_and_a_link_are_left_out_and_named(inbound):
    (inbound / "ada+bleu+2099-03-02 10:00:00.000000 UTC+four").mkdir()
    link = inbound / f"{ME}+bleu+2099-03-02 10:00:00.000000 UTC+five"
    link.symlink_to(inbound / "notes")
    made = run(sys.executable, DEPLOY / "exchange_roster.py", inbound, "bleu")
    assert made.returncode == 0 and [line.partition(",")[0] for line in made.stdout.split()] == [
        "id",
        ME,
    ]
    assert f"belongs to {ME}, not to ada" in made.stderr and "five: not a folder" in made.stderr


@pytest.mark.parametrize(
    ("folder", "says"), [("inbound", "has no submission of 'lora-math'"), ("no", "can't be read")]
)
def test_an_exchange_without_submissions_is_an_error(inbound, folder, says):
    script = DEPLOY / "exchange_roster.py"
    done = run(sys.executable, script, inbound.with_name(folder), "lora-math")
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
