"""A class whose assignment needs a GPU: it waits without one, and is completed on one."""

import itertools
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.cli.grade_commands import exit_code
from course_pkg.grading.classroom.execution import local_executor, run_gpus
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.runner_output import RunLimits, State
from course_pkg.grading.classroom.runs.batch import EARLIER, KEPT
from course_pkg.grading.classroom.runs.run_summary import summary
from course_pkg.sandbox.gpus import GpuMemory, find_gpus
from tests.grading.classroom import NEEDS_SANDBOX
from tests.grading.classroom.clusters import ASSIGNMENT
from tests.grading.classroom.school import School
from tests.grading.classroom.test_progress import printed
from tests.sandbox.fake_gpus import FakeGpus

pytestmark = [pytest.mark.slow, NEEDS_SANDBOX]
GB = 10**9
REAL_TRIAL = run_gpus.TRIAL
NO_DRIVER = "this machine has no NVIDIA driver"
TRIAL = "open('/dev/nvidia0').close()"
LOOK = """
import os
files = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print(files, os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
"""
SUBMITTED = 1_770_000_000  # when, in seconds since 1970


class Meters:
    """What every use of a GPU reads as its memory; counts how many run at the same time.

    scripts: for each use, the trial's first, the values, the last of which stays.
    """

    def __init__(self, *scripts: tuple[int, ...]) -> None:
        self.scripts = list(scripts)
        self.lock = threading.Lock()
        self.now = self.most = self.uses = 0

    def __call__(self, gpu, limit, exceeded):
        meters = self
        values = self.scripts.pop(0) if self.scripts else (0,)
        reads = itertools.chain(values, itertools.repeat(values[-1]))

        class Memory(GpuMemory):
            def __enter__(self):
                with meters.lock:
                    meters.uses += 1
                    meters.now += 1
                    meters.most = max(meters.most, meters.now)
                return super().__enter__()

            def kept_bytes(self, within_s=0.05):
                with meters.lock:
                    meters.now -= 1
                return super().kept_bytes(within_s)

        return Memory(gpu, limit, exceeded, lambda _: next(reads), pause_s=0.01)


class Class(School):
    def __init__(self, root: Path, prepared: Path, monkeypatch) -> None:
        super().__init__(root / "course", ASSIGNMENT, prepared)
        self.patch = monkeypatch
        self.machine = FakeGpus(root / "machine", 0, 1)
        self.need = "required"
        self.found = ((), (NO_DRIVER,))
        monkeypatch.setattr(ClassAssignment, "gpu", property(lambda _: self.need))
        monkeypatch.setattr(run_gpus, "find_gpus", lambda: self.found)
        monkeypatch.setattr(run_gpus, "TRIAL", TRIAL)

    def gpus(self, count: int) -> None:
        with self.patch.context() as patch:
            self.machine.install(patch)
            self.found = (self.machine.find()[0][:count], ())

    def submit(self, student: str, code: str = LOOK, when: int = SUBMITTED) -> None:
        super().submit(student, 0.0, code)
        os.utime(self.path(student), (when, when))

    def grade(self, meters: Meters | None = None, **options) -> dict:
        self.meters = meters or Meters()
        self.patch.setattr(run_gpus, "GpuMemory", self.meters)
        return super().grade(**{"jobs": 3, **options})

    def submissions(self) -> dict[str, object]:
        from nbgrader.api import MissingEntry

        with self.gradebook() as book:
            try:
                submissions = book.assignment_submissions(ASSIGNMENT)
                return {
                    s.student.id: SimpleNamespace(score=s.score, at=s.timestamp)
                    for s in submissions
                }
            except MissingEntry:
                return {}

    def due(self, when: int) -> None:
        with self.gradebook() as book:
            book.update_or_create_assignment(ASSIGNMENT, duedate=datetime.fromtimestamp(when, UTC))

    def command(self, *arguments: str):
        self.patch.chdir(self.root)
        return CliRunner().invoke(app, list(arguments))

    def seen(self, student: str) -> str:
        cells = self.autograded(student).cells
        return next(c for c in cells if c.source.startswith(LOOK)).outputs[0].text


@pytest.fixture
def school(tmp_path, prepared_bleu, monkeypatch):
    return Class(tmp_path, prepared_bleu, monkeypatch)


def test_without_a_gpu_submissions_wait_and_on_one_exactly_those_are_completed(school):
    school.submit("ada")
    school.submit("ben")
    school.path("cut").write_text('{"cells"')
    with school.patch.context() as patch:
        patch.setattr(local_executor, "ForkServer", lambda *_: pytest.fail("a sandbox was started"))
        records = school.grade()
    states = {student: record.state for student, record in records.items()}
    assert states == {"ada": State.WAITING, "ben": State.WAITING, "cut": State.UNREADABLE}
    assert str(State.WAITING) == "waiting: needs a GPU" and NO_DRIVER in records["ada"].reason
    assert set(school.submissions()) == {"cut"}  # nobody else has a 0
    assert exit_code([records["ada"]]) == 1

    row = school.table()["ada"]
    assert (row["state"], row["score"], row["automatic"]) == ("waiting: needs a GPU", "", "")
    assert NO_DRIVER in row["reason"]
    lines = school.said()
    assert "ada  waiting: needs a GPU  -" in lines
    told = " ".join(printed(summary(list(records.values()), 1.0), width=200).split())
    assert "3: 1 unreadable, 2 waiting: needs a GPU" in told
    assert "2 submissions wait for a GPU, without a score. Run the same command" in told
    results = school.root / "results" / ASSIGNMENT
    assert "2 submissions wait for a GPU" in (results / "index.html").read_text()
    page = (results / "ada.html").read_text()
    assert "waiting: needs a GPU" in page and 'class="total">–' in page
    assert "It has no score yet: run `course grade` again on a machine with a GPU" in page
    assert "lost" not in page.partition("</header>")[2]

    # The course moves to a machine with a GPU, in a copy that loses the files' times.
    os.utime(school.path("ada"))
    school.due(SUBMITTED + 3600)
    school.gpus(1)
    records = school.grade()
    # Those that waited, and the one that can't be read.
    assert sorted(school.show.began) == ["ada", "ben", "cut"]
    assert {records[s].state for s in ("ada", "ben")} == {State.GRADED}
    assert (records["ada"].gpu, records["ada"].gpu_peak_bytes) == ("Fake 0", 0)
    times = {school.submissions()[student].at.replace(tzinfo=UTC) for student in ("ada", "ben")}
    assert times == {datetime.fromtimestamp(SUBMITTED, UTC)}
    assert float(school.table()["ada"]["late_hours"]) == 0
    assert (school.table()["ada"]["score"], school.table()["ada"]["gpu"]) == ("0", "Fake 0")
    assert "Fake 0, peak memory 0 MiB" in (results / "ada.html").read_text()
    files = ["nvidia-uvm", "nvidia0", "nvidiactl"]
    assert school.seen("ada") == f"{files} GPU-fake-0 None\n"
    assert (school.meters.most, school.meters.uses) == (1, 3)  # never two on one GPU

    # Back without a GPU: nothing is lost, whatever is asked for.
    school.found = ((), (NO_DRIVER,))
    before = school.submissions()["ada"].score
    assert school.grade()["ada"] == records["ada"]
    kept = school.grade(regrade=True)["ada"]
    assert (kept.state, kept.remarks) == (State.GRADED, (*records["ada"].remarks, KEPT))
    assert school.submissions()["ada"].score == before == records["ada"].score
    school.submit("ada", "print('a new submission')", when=1_780_000_000)
    again = school.grade()
    assert again["ada"].state == State.WAITING and EARLIER in again["ada"].remarks
    assert again["ben"] == records["ben"]
    assert school.table()["ada"]["score"] == school.table()["ada"]["submitted"] == ""
    assert school.submissions()["ada"].score == before
    assert school.command("results", ASSIGNMENT).exit_code == 0
    assert school.table()["ada"]["score"] == ""


def test_an_export_has_no_score_for_a_submission_that_waits(school):
    school.submit("ada")
    roster = school.root / "roster.csv"
    roster.write_text("id,first_name,last_name,lms_user_id\nada,Ada,Lovelace,17\n")
    school.grade(roster=roster)
    sheet = school.root / "sheet.csv"
    sheet.write_text("Identifier,Full name,Grade,Maximum Grade\nParticipant 17,Ada Lovelace,,100\n")
    done = school.command(
        "export-grades", ASSIGNMENT, "--format", "moodle", "--template", sheet.name
    )
    assert done.exit_code == 0 and "because they wait for a GPU: ada" in done.output
    results = school.root / "results" / ASSIGNMENT
    assert (results / "moodle.csv").read_text() == sheet.read_text()
    sheet.write_text("Student,ID,bleu (4711)\nPoints Possible,,24\nLovelace Ada,17,\n")
    done = school.command(
        "export-grades", ASSIGNMENT, "--format", "canvas", "--template", sheet.name
    )
    assert done.exit_code == 0, done.output
    assert (results / "canvas.csv").read_text().splitlines()[-1] == "Lovelace Ada,17,"


def test_memory_is_limited_and_a_submission_that_keeps_some_is_named(school):
    """ada exceeds the limit, ben keeps memory on the only GPU, and so cy waits."""
    for student in ("ada", "ben", "cy"):
        school.submit(student)
    school.submit("ada", LOOK + "import time; time.sleep(600)")
    school.gpus(1)
    meters = Meters((0,), (GB, GB, 6 * GB, GB), (GB, 4 * GB))
    records = school.grade(meters, jobs=1, limits=RunLimits(gpu_bytes=4 * GB))
    ada = records["ada"]
    ben = records["ben"]
    cy = records["cy"]
    assert ada.state == State.OUT_OF_MEMORY and ada.gpu_peak_bytes == 5 * GB
    assert ada.reason == "it used 5 GB of the GPU's memory; its limit is 4 GB"
    assert ada.remarks == ()
    kept = "3 GB of the memory of GPU 0 (Fake 0) stayed in use after it was killed"
    assert ben.state == State.GRADED and ben.remarks[0].startswith(kept)
    assert cy.state == State.WAITING and cy.reason.startswith(kept)
    assert school.seen("ben").split()[-1] == "per_process_memory_fraction:0.4657"  # 4 GB of 8 GiB
    assert kept in school.table()["cy"]["reason"]


def test_an_optional_gpu_is_used_by_all_or_by_none(school):
    """None, then two, then two that can't be used in a sandbox; CPU grades stay as they are."""
    school.need = "optional"
    school.submit("ada")
    school.submit("ben")
    on_cpu = school.grade()
    assert {r.state for r in on_cpu.values()} == {State.GRADED}
    assert {(r.gpu, r.remarks) for r in on_cpu.values()} == {("", ())}
    assert school.seen("ada") == "[]  None\n"
    school.gpus(2)
    assert school.grade() == on_cpu  # the score does not depend on it, so nothing is graded again
    on_gpu = school.grade(regrade=True)
    assert {r.gpu for r in on_gpu.values()} <= {"Fake 0", "Fake 1"}
    assert "GPU-fake" in school.seen("ada") and school.meters.uses == 3
    school.patch.setattr(run_gpus, "TRIAL", "raise RuntimeError('no kernel image')")
    fallen = school.grade(regrade=True, students=("ada",))["ada"]
    why = (
        "it ran on the CPU: the GPU can't be used in a sandbox here (RuntimeError: no kernel image)"
    )
    assert (fallen.state, fallen.gpu, fallen.remarks) == (State.GRADED, "", (why,))


TOO_MUCH = """
import os, time
os.environ.pop("PYTORCH_CUDA_ALLOC_CONF")  # torch's own limit can be removed
import torch
kept = torch.ones(3_000_000_000, dtype=torch.uint8, device="cuda")
time.sleep(600)
"""


@pytest.mark.gpu
def test_a_class_on_a_real_gpu(school):
    """Needs a GPU: ada computes, ben uses 3 GB of 2, and their memory is free again."""
    school.patch.setattr(run_gpus, "TRIAL", REAL_TRIAL)
    school.submit("ada", REAL_TRIAL)
    school.submit("ben", TOO_MUCH)
    school.found = find_gpus()
    limits = RunLimits(memory_bytes=16 * GB, gpu_bytes=2 * GB)
    records = school.grade(GpuMemory, limits=limits, gpu_jobs=1)
    assert {student: record.state for student, record in records.items()} == {
        "ada": State.GRADED,
        "ben": State.OUT_OF_MEMORY,
    }
    assert [record.remarks for record in records.values()] == [(), ()]
    assert records["ada"].gpu and records["ben"].gpu_peak_bytes > 3 * GB
