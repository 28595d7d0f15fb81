"""`course grade`: from submissions to the gradebook, with reruns and resubmissions."""

import csv
import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.results.states import State
from course_pkg.grading.runs import grader
from course_pkg.grading.runs.batch import NO_SANDBOX
from course_pkg.grading.runs.options import Options, RunLimits
from course_pkg.grading.runs.sample_class import answered, named
from course_pkg.sandbox.probe import SandboxState, probe
from tests.exercises.assignments import EXERCISES, ROOT, SOLUTIONS, notebook

ASSIGNMENT = "lora-math"
sandbox = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


class Recorder:
    """Records which submissions started and finished."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []

    def expect(self, total: int) -> None:
        self.total = total

    def started(self, student: str) -> None:
        self.began.append(student)

    def finished(self, record) -> None:
        self.ended.append(record.student)


class Class:
    """A course in a temporary folder, with submissions."""

    def __init__(self, root: Path) -> None:
        self.root, self.told = root, Recorder()
        for name in ("solutions", "exercises"):
            shutil.copytree(ROOT / name, root / name)
        shutil.copy(ROOT / "nbgrader_config.py", root)

    def path(self, student: str) -> Path:
        path = self.root / "submitted" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def submit(self, student: str, nb: nbformat.NotebookNode) -> None:
        nbformat.write(named(nb, student), self.path(student))

    def grade(self, **options) -> dict:
        self.told = Recorder()
        jobs = min(2, len(os.sched_getaffinity(0)))
        asked = Options(self.root / "submitted", **{"jobs": jobs, **options})
        records = grader.grade(self.root, ASSIGNMENT, asked, self.told)
        return {record.student: record for record in records}

    def scores(self) -> dict[str, float]:
        """The scores in nbgrader's gradebook."""
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{self.root}/gradebook.db", "llm-course") as book:
            return {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}

    def csv(self) -> dict[str, dict[str, str]]:
        with open(self.root / "results" / ASSIGNMENT / "grades.csv", newline="") as file:
            return {row["student"]: row for row in csv.DictReader(file)}


def full() -> nbformat.NotebookNode:
    return answered(notebook(EXERCISES, ASSIGNMENT), notebook(SOLUTIONS, ASSIGNMENT))


def with_cell(nb: nbformat.NotebookNode, at: int, code: str) -> nbformat.NotebookNode:
    nb.cells.insert(at, new_code_cell(code))
    return nb


@pytest.fixture(scope="module")
def school(tmp_path_factory):
    """A class that has been graded once."""
    school = Class(tmp_path_factory.mktemp("school"))
    school.submit("ada", full())
    school.submit("eve", with_cell(full(), len(full().cells), "import os; os._exit(3)"))
    school.submit("fay", with_cell(full(), 3, "import time; time.sleep(60)"))
    school.submit("stu", notebook(EXERCISES, ASSIGNMENT))
    school.path("cut").write_text(nbformat.writes(full())[:5000])
    school.path("lin").symlink_to(school.path("ada"))
    school.submit("zoe", full())
    school.first = school.grade(limits=RunLimits(cell_timeout_s=10))
    school.first_told = school.told
    return school


@sandbox
@pytest.mark.slow
def test_every_submission_ends_in_its_state_with_the_points_it_earned(school):
    found = {student: (r.state, r.score) for student, r in school.first.items()}
    assert found == {
        "ada": (State.GRADED, 24),
        "cut": (State.UNREADABLE, 0),
        "eve": (State.KERNEL_DIED, 24),  # what was earned before is kept
        "fay": (State.CELL_TIMED_OUT, 24),  # the other cells were run
        "lin": (State.REFUSED, 0),
        "stu": (State.GRADED, 0),
        "zoe": (State.GRADED, 24),
    }
    assert school.scores() == {student: r.score for student, r in school.first.items()}
    assert {s: float(row["score"]) for s, row in school.csv().items()} == school.scores()
    for student, record in school.first.items():
        assert (record.reason == "") == (record.state == State.GRADED), student
        assert record.sandbox == "bubblewrap"
    assert sorted(school.first_told.ended) == sorted(school.first)


@sandbox
@pytest.mark.slow
def test_records_of_submissions_that_ran_have_times_and_limits(school):
    for student in ("ada", "stu", "zoe"):
        record = school.first[student]
        assert record.start_s > 0 and record.run_s > 0 and record.write_s > 0
        assert record.limits in {"cgroup v1", "cgroup v2", "systemd scope", "watchdog"}
        assert record.key and record.graded_at


@sandbox
@pytest.mark.slow
def test_a_second_run_grades_nothing_again_and_a_regrade_gives_the_same(school):
    again = school.grade(limits=RunLimits(cell_timeout_s=10))
    assert sorted(school.told.began) == ["cut", "lin"]  # read again: they were never run
    assert again["ada"] == school.first["ada"]
    regraded = school.grade(limits=RunLimits(cell_timeout_s=10), regrade=True, students=("stu",))
    assert school.told.began == ["stu"]
    assert regraded["stu"].questions == school.first["stu"].questions
    assert set(school.csv()) == set(school.first)  # the others' rows are still there


@sandbox
@pytest.mark.slow
def test_changed_limits_or_a_lost_gradebook_cause_grading_again(school):
    school.grade(limits=RunLimits(cell_timeout_s=11), students=("ada",))
    assert school.told.began == ["ada"]
    (school.root / "gradebook.db").rename(school.root / "lost.db")
    school.grade(limits=RunLimits(cell_timeout_s=11), students=("ada",))
    assert school.told.began == ["ada"] and school.scores() == {"ada": 24}
    (school.root / "lost.db").replace(school.root / "gradebook.db")


@sandbox
@pytest.mark.slow
def test_an_unreadable_resubmission_loses_the_old_score(school):
    school.path("zoe").write_text("{")
    assert school.grade()["zoe"].state == State.UNREADABLE
    assert school.scores()["zoe"] == 0
    assert float(school.csv()["zoe"]["score"]) == 0


@sandbox
@pytest.mark.slow
def test_a_failure_of_the_grader_is_a_state_and_is_graded_again(school, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr("course_pkg.grading.submissions.assemble.assemble", broken)
        record = school.grade(regrade=True, students=("stu",))["stu"]
    assert record.state == State.GRADING_ERROR and "the disk is on fire" in record.reason
    assert grader.exit_code([record]) == 4
    assert school.grade(students=("stu",))["stu"].state == State.GRADED


@sandbox
@pytest.mark.slow
def test_results_that_do_not_fit_the_questions_are_rejected(school, monkeypatch):
    run = grader.ForkServers.run_submission
    with monkeypatch.context() as patch:
        patch.setattr(grader.ForkServers, "run_submission", lambda *args: _forged(run(*args)))
        record = school.grade(regrade=True, students=("stu",))["stu"]
    assert record.state == State.GRADING_ERROR and record.score == 0


def _forged(result):
    result.verdicts = result.verdicts.replace(b'"earned": 0', b'"earned": 9')
    return result


@sandbox
@pytest.mark.slow
def test_two_courses_draw_different_cases(school, tmp_path):
    other = Class(tmp_path)
    other.submit("stu", notebook(EXERCISES, ASSIGNMENT))
    record = other.grade()["stu"]
    for mine, theirs in zip(record.questions, school.first["stu"].questions, strict=True):
        assert mine.question == theirs.question
    secrets = {(root / ".grading" / "secret").read_text() for root in (school.root, tmp_path)}
    assert len(secrets) == 2


@sandbox
@pytest.mark.slow
def test_the_cases_of_one_submission_do_not_predict_those_of_the_next(school):
    """Submit, look at the inputs in the outputs, submit again: they are other ones."""
    peek = """
import course_pkg.grading.check as c
print(c._request({"op": "inputs", "question": "counts"})["inputs"])
"""
    seen = []
    for round_ in (1, 2):
        school.submit("mem", with_cell(full(), 0, f"{peek}# {round_}"))
        assert school.grade(students=("mem",))["mem"].score == 24
        path = school.root / "autograded" / "mem" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        seen.append(nbformat.read(path, as_version=4).cells[0].outputs[0].text)
        school.grade(students=("mem",), regrade=True)
        again = nbformat.read(path, as_version=4).cells[0].outputs[0].text
        assert again == seen[-1]  # the same submission has the same cases
    assert seen[0] != seen[1]


@sandbox
@pytest.mark.slow
def test_one_odd_answer_costs_only_its_own_points(school):
    odd = full()
    code = "def lora_parameter_count(*given):\n    return {value}"
    for student, value in (("int", "10**2000"), ("half", "'\\ud800'"), ("many", "[0] * 700_000")):
        index = next(i for i, c in enumerate(odd.cells) if "def lora_parameter_count" in c.source)
        odd.cells[index].source = code.format(value=value)
        school.submit(student, odd)
    records = school.grade(students=("int", "half", "many"))
    assert {(r.state, r.score) for r in records.values()} == {(State.GRADED, 21)}


@sandbox
@pytest.mark.slow
def test_files_beside_the_notebook_do_not_shadow_the_kernels_modules(school):
    school.submit("fil", full())
    for name in ("code", "cmd", "pdb", "statistics", "torch"):
        (school.path("fil").parent / f"{name}.py").write_text("mine = 1\nraise SystemExit")
    assert school.grade(students=("fil",))["fil"].score == 24


def invoke(course: Path, *arguments: str):
    here = Path.cwd()
    os.chdir(course)
    try:
        return CliRunner().invoke(app, ["grade", *arguments])
    finally:
        os.chdir(here)


@sandbox
@pytest.mark.slow
def test_the_command_reports_the_result_in_words_and_in_its_exit_code(school):
    done = invoke(school.root, ASSIGNMENT, "--student", "ada", "--cell-timeout", "11")
    assert done.exit_code == 0 and "24" in done.output
    done = invoke(school.root, ASSIGNMENT, "--student", "cut")
    assert done.exit_code == 1 and "unreadable" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lora-maths"], "no assignment is called 'lora-maths'"),
        ([ASSIGNMENT, "--submitted", "nowhere"], "nowhere does not exist"),
        ([ASSIGNMENT, "--jobs", "0"], "--jobs"),
    ],
)
def test_impossible_requests_exit_with_code_2(tmp_path, monkeypatch, arguments, said):
    monkeypatch.setattr(grader, "probe", lambda: SandboxState(True, ""))
    course = Class(tmp_path)
    done = invoke(course.root, *arguments)
    assert done.exit_code == 2 and said in done.output


def test_without_a_sandbox_nothing_runs_and_the_message_says_what_to_install(tmp_path, monkeypatch):
    missing = SandboxState(False, "bubblewrap is not installed", "apt install bubblewrap")
    monkeypatch.setattr(grader, "probe", lambda: missing)
    course = Class(tmp_path)
    marker = tmp_path / "was-run"
    course.submit("eve", with_cell(full(), 0, f"open({str(marker)!r}, 'w')"))
    done = invoke(course.root, ASSIGNMENT)
    assert done.exit_code == 3 and "apt install bubblewrap" in done.output
    assert not marker.exists() and not (tmp_path / "results").exists()


@pytest.mark.slow
def test_unsafe_grading_is_noted_in_every_record(tmp_path, monkeypatch):
    monkeypatch.setattr(
        grader, "probe", lambda: SandboxState(False, "bubblewrap is not installed", "")
    )
    course = Class(tmp_path)
    course.submit("ada", full())
    record = course.grade(limits=RunLimits(sandboxed=False))["ada"]
    assert (record.state, record.score, record.sandbox) == (State.GRADED, 24, NO_SANDBOX)
    assert course.csv()["ada"]["sandbox"] == NO_SANDBOX
    assert "WITHOUT" in (tmp_path / "results" / ASSIGNMENT / "ada.html").read_text()
