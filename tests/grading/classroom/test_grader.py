"""`course grade`: from submissions to the gradebook, with reruns and resubmissions."""

import os
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.cli.grade_commands import exit_code
from course_pkg.grading.classroom.execution import local_executor
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunLimits, State
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.record import without_words
from course_pkg.grading.classroom.runs import grade_class
from course_pkg.grading.classroom.runs.batch import NO_SANDBOX, Batch
from course_pkg.grading.classroom.submissions.collect import collect
from course_pkg.sandbox.probe import SandboxState
from tests.exercises.assignments import with_answers
from tests.grading.classroom import NEEDS_SANDBOX
from tests.grading.classroom.school import School

ASSIGNMENT = "lora-math"


class Class(School):
    def __init__(self, root: Path) -> None:
        super().__init__(root, ASSIGNMENT)

    def known(self, student: str, limits: RunLimits):
        """The stored record that a run under these limits would use; None if it would grade."""
        (submission,) = collect(self.root / "submitted", ASSIGNMENT, [student])
        with CourseGradebook(self.root) as book:
            batch = Batch(self.root, resolve(ASSIGNMENT), limits, book, executor=None)
            return batch.known(submission)

    def scores(self) -> dict[str, float]:
        with self.gradebook() as book:
            return {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}


ODD = {"int": "10**2000", "half": "'\\ud800'"}  # answers of one question
LIMITS = RunLimits(cell_timeout_s=20.0)
PEEK = """
import course_pkg.grading.check as c
print(c._request({{"op": "inputs", "question": "counts"}})["inputs"])
# {round}
"""


def seen_inputs(school: Class) -> str:
    return school.autograded("mem").cells[0].outputs[0].text


@pytest.fixture(scope="module")
def school(tmp_path_factory):
    school = Class(tmp_path_factory.mktemp("school"))
    school.submit("ada")
    school.submit("eve", code="import os; os._exit(3)", at=1000)  # the last cell
    school.submit("fay", code="import time; time.sleep(600)", at=3)
    school.submit("fil")
    for name in ("code", "cmd", "pdb", "statistics", "torch"):
        school.path("fil").with_name(f"{name}.py").write_text("mine = 1\nraise SystemExit")
    school.submit("mem", code=PEEK.format(round=1))
    school.submit("stu", 0.0)
    for student, value in ODD.items():
        code = f"def lora_parameter_count(*given):\n    return {value}"
        school.write(student, with_answers(school.answers(), {"counts": code}))
    school.path("cut").write_text(nbformat.writes(school.answers())[:5000])
    school.path("lin").symlink_to(school.path("ada"))
    school.submit("zoe")
    school.first = school.grade(limits=LIMITS)
    school.first_inputs = seen_inputs(school)
    return school


@NEEDS_SANDBOX
@pytest.mark.slow
def test_every_submission_ends_in_its_state_with_the_points_it_earned(school):
    ends = {student: (r.state, r.score) for student, r in school.first.items()}
    assert ends == {
        "ada": (State.GRADED, 24),
        "cut": (State.UNREADABLE, 0),
        "eve": (State.KERNEL_DIED, 24),  # points earned before are kept
        "fay": (State.CELL_TIMED_OUT, 24),  # the other cells ran
        "fil": (State.GRADED, 24),  # files next to the notebook do not shadow the kernel's modules
        "lin": (State.REFUSED, 0),
        "mem": (State.GRADED, 24),
        "stu": (State.GRADED, 0),
        "zoe": (State.GRADED, 24),
        **dict.fromkeys(ODD, (State.GRADED, 21)),  # an odd answer costs only its own points
    }
    in_class = {student: r.score for student, r in school.first.items() if student != "lin"}
    assert school.scores() == in_class  # a refused submission adds nobody to the gradebook
    table = school.table()
    assert table.pop("lin")["score"] == ""
    assert {s: float(row["score"]) for s, row in table.items()} == school.scores()
    for student, record in school.first.items():
        assert (record.reason == "") == (record.state == State.GRADED), student
        assert record.sandbox == "bubblewrap"
    assert {line.partition("  ")[0] for line in school.said().splitlines()} >= school.first.keys()


@NEEDS_SANDBOX
@pytest.mark.slow
def test_the_command_reports_the_result_in_words_and_in_its_exit_code(school):
    done = invoke(school.root, ASSIGNMENT, "--student", "ada", "--cell-timeout", "20")
    assert done.exit_code == 0 and "24/24" in done.output
    done = invoke(school.root, ASSIGNMENT, "--student", "fay", "--cell-timeout", "20")
    assert done.exit_code == 1 and "cell-timed-out" in done.output


@NEEDS_SANDBOX
@pytest.mark.slow
def test_records_of_submissions_that_ran_have_times_and_limits(school):
    for student in ("ada", "stu", "zoe"):
        record = school.first[student]
        assert record.start_s > 0 and record.run_s > 0 and record.write_s > 0
        assert record.limits in {"cgroup v1", "cgroup v2", "systemd scope", "watchdog"}
        assert record.key and record.graded_at


@NEEDS_SANDBOX
@pytest.mark.slow
def test_a_second_run_grades_nothing_again_and_a_regrade_gives_the_same(school):
    again = school.grade(limits=LIMITS, students=("ada", "eve"))
    assert school.show.began == [] and again["ada"] == school.first["ada"]
    regraded = school.grade(limits=LIMITS, regrade=True, students=("mem", "stu"))
    assert sorted(school.show.began) == ["mem", "stu"]
    assert regraded["stu"].questions == school.first["stu"].questions
    assert seen_inputs(school) == school.first_inputs  # the same submission has the same cases
    assert set(school.table()) == set(school.first)  # the others' rows are still there


@NEEDS_SANDBOX
@pytest.mark.slow
def test_a_resubmission_has_new_cases_and_loses_the_old_score(school):
    school.submit("mem", code=PEEK.format(round=2))
    school.path("zoe").write_text("{")
    records = school.grade(limits=LIMITS, students=("mem", "zoe"))
    assert (records["mem"].score, records["zoe"].state) == (24, State.UNREADABLE)
    assert seen_inputs(school) != school.first_inputs
    assert (school.scores()["zoe"], float(school.table()["zoe"]["score"])) == (0, 0)


@NEEDS_SANDBOX
@pytest.mark.slow
def test_a_changed_record_is_reported_and_not_graded_again(school):
    path = school.root / ".grading" / "records" / ASSIGNMENT / "fil.json"
    path.write_text(path.read_text().replace('"state": "graded"', '"state": "refused"'))
    record = school.grade(limits=LIMITS, students=("fil",))["fil"]
    assert (record.state, school.show.began) == (State.RECORD_CHANGED, [])
    assert exit_code([record]) == 1
    row = school.table()["fil"]
    assert (row["state"], row["score"]) == ("record-changed", "")
    assert school.scores()["fil"] == 24  # the gradebook is not touched


@NEEDS_SANDBOX
@pytest.mark.slow
def test_changed_limits_or_a_lost_gradebook_cause_grading_again(school):
    assert without_words(school.known("ada", LIMITS)) == school.first["ada"]
    assert school.known("ada", RunLimits(cell_timeout_s=16)) is None
    (school.root / "gradebook.db").rename(school.root / "lost.db")
    assert school.known("ada", LIMITS) is None
    (school.root / "lost.db").replace(school.root / "gradebook.db")


@NEEDS_SANDBOX
@pytest.mark.slow
def test_a_failure_of_the_grader_is_a_state_and_is_graded_again(school, monkeypatch):
    """An answer that came too late is not such a failure: it is a state, and the run names it."""
    run = local_executor.LocalExecutor.run_submission

    def failing(servers, student, *rest):
        if student == "stu":
            raise OSError("the disk is on fire")
        result = run(servers, student, *rest)
        if student == "half":
            result.verdicts = result.verdicts.replace(b'"late_s": null', b'"late_s": 65.0', 1)
            return result
        result.verdicts = result.verdicts.replace(b'"counts"', b'"no-such-question"')
        return result

    with monkeypatch.context() as patch:
        patch.setattr(local_executor.LocalExecutor, "run_submission", failing)
        records = school.grade(limits=LIMITS, regrade=True, students=("half", "int", "stu"))
    late = records.pop("half")
    assert (late.state, exit_code([late])) == (State.ANSWER_LATE, 1)
    assert "arrived after 65 s; the limit is 60 s" in late.reason and late.score == 21
    assert without_words(school.known("half", LIMITS)) == late
    assert {r.state for r in records.values()} == {State.GRADING_ERROR}
    assert "the disk is on fire" in records["stu"].reason and records["int"].score == 0
    assert exit_code(list(records.values())) == 4
    assert school.known("stu", LIMITS) is school.known("int", LIMITS) is None


def invoke(course: Path, *arguments: str):
    here = Path.cwd()
    os.chdir(course)
    try:
        return CliRunner().invoke(app, ["grade", *arguments])
    finally:
        os.chdir(here)


def test_without_a_sandbox_nothing_runs_and_the_message_says_what_to_install(tmp_path, monkeypatch):
    missing = SandboxState(False, "bubblewrap is not installed", "apt install bubblewrap")
    monkeypatch.setattr(grade_class, "probe", lambda: missing)
    course = Class(tmp_path)
    marker = tmp_path / "was-run"
    course.submit("eve", code=f"open({str(marker)!r}, 'w')")
    done = invoke(course.root, ASSIGNMENT)
    assert done.exit_code == 3 and "apt install bubblewrap" in done.output
    assert not marker.exists() and not (tmp_path / "results").exists()


@pytest.mark.slow
def test_unsafe_grading_is_noted_in_every_record(tmp_path):
    course = Class(tmp_path)
    course.submit("ada")
    record = course.grade(limits=RunLimits(sandboxed=False))["ada"]
    assert (record.state, record.score, record.sandbox) == (State.GRADED, 24, NO_SANDBOX)
    assert course.table()["ada"]["sandbox"] == NO_SANDBOX
    assert "WITHOUT" in (tmp_path / "results" / ASSIGNMENT / "ada.html").read_text()
