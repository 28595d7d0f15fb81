"""Plays a term with a made-up class, by the commands that an instructor uses.

    python -m tests.grading.classroom.term --students 60 --hostile 10 --workers 4

The instructor works twice: alone on this machine, and on a cluster whose parts are killed with
signal 9. Both must come to the same gradebook, and every file to the totals that the submissions
deserve. Exit code 0: all of it holds. 1: something does not, and the folder with both courses is
kept. 3: nothing could run, because there is no sandbox or no openssl.
"""

import argparse
import csv
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import psutil

from course_pkg.cli.exits import FAILED, NEEDS_A_LOOK, NO_SANDBOX
from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.sandbox.probe import probe
from tests.grading.classroom.clusters import Cluster, certificate, graded_in, in_gradebook
from tests.grading.classroom.corpus import ASSIGNMENT, Case, load
from tests.grading.classroom.host import Watch, groups
from tests.grading.classroom.school import School

DUE = datetime(2026, 3, 1, 12, tzinfo=UTC)
IN_TIME = DUE - timedelta(hours=5)
AGAIN = DUE - timedelta(hours=1)
TASK = "written"  # the cell that is graded by hand
SHARES = {"right": 1.0, "late": 1.0, "partly": 0.5}  # of the answers
POINTS = {1.0: 24.0, 0.5: 4.0, 0.0: 0.0}  # automatic, for such a share
MOST = 28.0  # with those by hand
STATES = {"broken": State.UNREADABLE, "missing": "no-submission"}
KINDS = ("right", "partly", "untouched", "late", "broken", "missing")
# Whatever takes long is at the end of their notebooks, so that a busy machine changes no points.
HOSTILE = ("forged-record", "memory-memfd", "interrupt-swallowed", "fork-bomb", "id-html")
HOSTILE += ("names-and-routes", "daemon-double-fork", "ipc-left-behind", "html-script")
HOSTILE += ("many-files-beside", "write-gradebook", "links-beside")
LIMITS = ("--cell-timeout", "15", "--time-limit", "60", "--memory", "2")
BUSY = "the machine or its disk is too slow or busy: try again"  # what the grader then says
TRIES = 4
LATE = """import math

from nbgrader.plugins import BasePlugin


class TenPercentADay(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return score * min(1, 0.1 * math.ceil(total_seconds_late / 86400))
"""

Moment = tuple[int, Callable[[subprocess.Popen[str]], object]]


@dataclass(frozen=True)
class Member:
    """One student. kind: of KINDS or "hostile". in_roster: whether the roster has the time."""

    number: int
    id: str
    kind: str
    hours_late: float = 0.0
    in_roster: bool = False
    case: Case | None = None

    @property
    def known(self) -> bool:
        return self.kind != "missing" and valid_student(self.id)

    @property
    def points(self) -> float:
        return self.case.score if self.case else POINTS[SHARES.get(self.kind, 0.0)]

    @property
    def submitted_at(self) -> datetime:
        return DUE + timedelta(hours=self.hours_late) if self.hours_late else IN_TIME


def members(students: int, hostile: int) -> list[Member]:
    assert 0 <= hostile <= len(HOSTILE) and students - hostile >= len(KINDS)
    made = []
    for number in range(students - hostile):
        kind = KINDS[number % len(KINDS)]
        hours = 60.0 + number if kind == "late" else 0.0
        by_roster = kind == "late" and number % 12 > 6
        made.append(Member(number, f"student-{number + 1:02}", kind, hours, by_roster))
    cases = {case.name: case for folder in ("attacks", "stalls") for case in load(folder)}
    for name in HOSTILE[:hostile]:
        made.append(Member(len(made), cases[name].id, "hostile", case=cases[name]))
    return made


class Course(School):
    """A course in a folder, and the commands that are run there. pids: of them."""

    def __init__(self, root: Path, prepared: Path | None = None) -> None:
        super().__init__(root, ASSIGNMENT, prepared)
        self.pids: list[int] = []

    def start(self, *arguments: str, program: str = "course_pkg") -> subprocess.Popen[str]:
        process = super().start(*arguments, program=program)
        self.pids.append(process.pid)
        return process

    def run(self, *arguments: str, program: str = "course_pkg") -> None:
        process = self.start(*arguments, program=program)
        said, _ = process.communicate()
        assert process.returncode == 0, f"{arguments}: {process.returncode}\n{said}"

    def nbgrader(self, *arguments: str) -> None:
        self.run(*arguments, program="nbgrader")

    def grade_by_command(
        self, *options: str, code: int = NEEDS_A_LOOK, moments: Iterable[Moment] = ()
    ) -> list[str]:
        """Run `course grade`, again if the machine was too busy; who was graded, in order."""
        graded = []
        left = list(moments)
        for _ in range(TRIES):
            arguments = ("grade", ASSIGNMENT, "--roster", "roster.csv", *LIMITS, *options)
            process = self.start(*arguments)
            said = []
            for line in process.stdout:
                said.append(line)
                graded += graded_in(line)
                while left and len(graded) >= left[0][0]:
                    left.pop(0)[1](process)
            if process.wait() != FAILED or BUSY not in said[-1]:
                break
        assert (process.returncode, left) == (code, []), "".join(said[-30:])
        return graded

    def prepare(self, people: list[Member]) -> None:
        shutil.rmtree(self.root / "exercises")
        with (self.root / "nbgrader_config.py").open("a") as config:
            config.write("\nc.AssignLatePenalties.plugin_class = 'late.TenPercentADay'\n")
        (self.root / "late.py").write_text(LATE)
        self.run("release", ASSIGNMENT)
        due = f"{DUE:%Y-%m-%d %H:%M} UTC"
        self.nbgrader("db", "assignment", "add", ASSIGNMENT, f"--duedate={due}")
        with (self.root / "roster.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("id", "first_name", "last_name", "lms_user_id", "submitted_at"))
            for one in filter(lambda one: valid_student(one.id), people):
                when = one.submitted_at.isoformat() if one.in_roster else ""
                rows.writerow((one.id, "Zoë", f"O'Neill {one.number}", 1000 + one.number, when))
        self.run("start", ASSIGNMENT)

    def take(self, one: Member, share: float | None = None) -> None:
        """Write a member's submission. share: of the answers, if it is the second one."""
        path = self.root / "submitted" / one.id / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        if one.case:
            one.case.write(path.parent)
        else:
            self.submit(one.id, SHARES.get(one.kind, 0.0) if share is None else share)
            if one.kind == "broken":
                path.write_text(path.read_text()[:5000])
        at = (one.submitted_at if share is None else AGAIN).timestamp()
        os.utime(path, (at, at), follow_symlinks=False)

    def mark(self, points: dict[str, float]) -> None:
        with self.gradebook() as book:
            for student, value in points.items():
                grade = book.find_grade(TASK, ASSIGNMENT, ASSIGNMENT, student)
                grade.manual_score = value
                grade.extra_credit = None
                grade.needs_manual_grade = False
                written = book.find_comment(TASK, ASSIGNMENT, ASSIGNMENT, student)
                written.manual_comment = comment(student)
            book.db.commit()

    def to_review(self, points: dict[str, float]) -> set[str]:
        """Whose points by hand must be reviewed; nobody's points or comment are lost."""
        marks = {}
        review = set()
        with self.gradebook() as book:
            for student in points:
                grade = book.find_grade(TASK, ASSIGNMENT, ASSIGNMENT, student)
                written = book.find_comment(TASK, ASSIGNMENT, ASSIGNMENT, student)
                marks[student] = (grade.manual_score, written.manual_comment)
                if grade.needs_manual_grade:
                    review.add(student)
        assert marks == {student: (value, comment(student)) for student, value in points.items()}
        return review

    def in_gradebook(self) -> dict[str, tuple[object, ...]]:
        with self.gradebook() as book:
            submissions = book.assignment_submissions(ASSIGNMENT)
            return {one.student.id: in_gradebook(one) for one in submissions}

    def rows(self, path: str, key: str) -> dict[str, dict[str, str]]:
        with (self.root / path).open(newline="", encoding="utf-8") as file:
            return {row[key]: row for row in csv.DictReader(file)}


class Term:
    """One term. alone, course: the courses on this machine and on the cluster."""

    def __init__(self, place: Path, people: list[Member], workers: int) -> None:
        self.place = place
        self.people = people
        self.workers = workers
        self.alone = Course(place / "alone")
        self.course = self.alone
        read = [one for one in people if one.known and one.kind not in ("broken", "hostile")]
        self.points = {one.id: float(one.number % 5) for one in read}  # by hand
        self.improves = next(one for one in people if one.kind == "partly")
        self.late = next(one for one in people if one.kind == "late")
        self.worker_pids: list[int] = []

    def play(self) -> None:
        step("release, due date, roster, submissions")
        self.alone.prepare(self.people)
        self.course = Course(self.place / "course", self.alone.root)
        for one in self.people:
            for course in (self.alone, self.course):
                if one.kind != "missing":
                    course.take(one)
        step("grade on this machine")
        self.alone.grade_by_command()
        self.check_states(self.alone)
        (self.course.root / ".grading").mkdir(mode=0o700)  # the same secret gives the same cases
        shutil.copy2(self.alone.root / ".grading" / "secret", self.course.root / ".grading")
        self.grade_through_crashes()
        self.give_back()

    def give_back(self) -> None:
        """Points by hand are reviewed; an extension, feedback and exports."""
        step("review, an extension, feedback, exports")
        for course in (self.alone, self.course):
            course.mark(self.points)
            course.run("extend", ASSIGNMENT, self.late.id, "--hours", "24")
            course.run("results", ASSIGNMENT)
        self.check_equal()
        self.course.nbgrader("generate_feedback", ASSIGNMENT, "--force")
        self.course.nbgrader("export")
        for form in ("csv", "moodle"):
            self.course.run("export-grades", ASSIGNMENT, "--format", form)
        self.check_totals()
        self.check_pages()

    def grade_through_crashes(self) -> None:
        """Grade on two clusters: nobody is graded twice, and points by hand stay."""
        runs = sum(one.known and one.kind != "broken" for one in self.people)
        one, two, three = (max(part, runs * part // 5) for part in (1, 2, 3))  # submissions graded
        step("grade on a cluster: a worker is killed, then the scheduler")
        with Cluster(self.place / "first", preload=None) as cluster:
            at = self.started(cluster)

            def kill_a_worker(process: subprocess.Popen[str]) -> None:
                name = self.busy_worker(cluster, process)
                cluster.kill(name)
                self.add(cluster, f"{name}-again")

            crashes = [(one, kill_a_worker), (two, lambda _: cluster.scheduler.kill())]
            graded = self.course.grade_by_command(*at, code=FAILED, moments=crashes)
            cluster.stop()
        pem = certificate(self.place, "term")
        with Cluster(self.place / "second", pem, preload=None) as cluster:
            at = (*self.started(cluster), "--tls-ca", str(pem), "--tls-cert", str(pem))
            step("the command is killed, and run again")
            crash = (max(1, three - len(graded)), lambda process: process.kill())
            graded += self.course.grade_by_command(*at, code=-9, moments=[crash])
            graded += self.course.grade_by_command(*at)
            assert max(Counter(graded).values()) == 1, graded
            self.check_states(self.course)
            self.check_equal()
            step("points by hand; a better submission after them; two are graded again")
            for course in (self.alone, self.course):
                course.mark(self.points)
                course.take(self.improves, 1.0)
            new = self.improves.id
            assert self.alone.grade_by_command() == [new]
            assert self.course.grade_by_command(*at) == [new]
            # Nobody's written answer has changed.
            assert self.course.to_review(self.points) == set()
            two_others = [student for student in self.points if student != new][:2]
            chosen = [word for student in two_others for word in ("--student", student)]
            again = self.course.grade_by_command(*at, "--regrade", *chosen, code=0)
            assert sorted(again) == sorted(two_others)
            assert self.course.to_review(self.points) == set()
            cluster.stop()

    def started(self, cluster: Cluster) -> tuple[str, ...]:
        self.add(cluster, *(f"{cluster.folder.name}-{n}" for n in range(self.workers)))
        return ("--scheduler", cluster.at.address)

    def add(self, cluster: Cluster, *names: str) -> None:
        cluster.add(*names)
        self.worker_pids += [cluster.workers[name].pid for name in names]

    def busy_worker(self, cluster: Cluster, process: subprocess.Popen[str]) -> str:
        while process.poll() is None:
            for name in cluster.alive():
                children = psutil.Process(cluster.workers[name].pid).children(recursive=True)
                if any(child.name() == "bwrap" for child in children):
                    return name
            time.sleep(0.05)
        raise AssertionError("the command ended before it had graded everybody")

    def check_equal(self) -> None:
        assert self.course.in_gradebook() == self.alone.in_gradebook()

    def check_states(self, course: Course) -> None:
        """Everybody has the state and the automatic points that the submission deserves."""
        rows = course.table()
        assert rows.keys() == {one.id for one in self.people}
        assert course.in_gradebook().keys() == {one.id for one in self.people if one.known}
        for one in self.people:
            row = rows[one.id]
            states = one.case.state if one.case else {STATES.get(one.kind, State.GRADED)}
            assert row["state"] in states, row
            assert row["automatic"] or not one.known, row
            assert not row["automatic"] or float(row["automatic"]) == one.points, row

    def check_totals(self) -> None:
        """The gradebook, the results, the exports and the feedback have the same totals."""
        course = self.course
        roster = {row["lms_user_id"]: id for id, row in course.rows("roster.csv", "id").items()}
        own = course.table()
        exported = course.rows("grades.csv", "student_id")
        moodle = course.rows(f"results/{ASSIGNMENT}/moodle.csv", "Identifier")
        in_moodle = {roster[name.split()[-1]]: row["Grade"] for name, row in moodle.items()}
        for one in filter(lambda one: one.known, self.people):
            again = one == self.improves
            points = (POINTS[1.0] if again else one.points) + self.points.get(one.id, 0.0)
            hours = one.hours_late - (24 if one == self.late else 0)
            total = points * (1 - min(1.0, 0.1 * math.ceil(hours / 24)))
            score = rf"{ASSIGNMENT} \(Score: ([0-9.]+) / {MOST}\)"
            totals = {
                "results": own[one.id]["score"],
                "nbgrader export": exported[one.id]["score"],
                "moodle.csv": in_moodle[one.id],
                "feedback": re.search(score, self.feedback(one.id))[1],
            }
            for name, text in totals.items():  # some have two decimals
                assert abs(float(text) - total) < 0.01, (one.id, name, text, total)

    def check_pages(self) -> None:
        """Feedback has the comments, and no page anything that a hostile member wrote."""
        for student in self.points:
            assert comment(student) in unescape(self.feedback(student)), student
        never = {text for one in self.people if one.case for text in one.case.never}
        for folder in ("results", "feedback"):
            for path in (self.course.root / folder).rglob("*.html"):
                text = path.read_text()
                assert not [bad for bad in never if bad in text], path

    def feedback(self, student: str) -> str:
        folder = self.course.root / "feedback" / student / ASSIGNMENT
        return (folder / f"{ASSIGNMENT}.html").read_text()

    def check_left_behind(self, watch: Watch, temporary: Path) -> None:
        """No process, control group or file is left; two programs were killed and can't clean up.

        The worker leaves the folder of its fork server, the scheduler Dask's own.
        """
        until = time.monotonic() + 100
        while (children := psutil.Process().children(recursive=True)) and time.monotonic() < until:
            for child in children:  # those of killed programs are this process's now
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
            time.sleep(0.1)
        assert not children and not watch.left(0), (children, watch.left(0))
        for pid in (*self.alone.pids, *self.course.pids, *self.worker_pids):
            assert not groups(pid)
        killed = [*list(temporary.glob("course-fork-*"))[:1], temporary / "dask-scratch-space"]
        assert not [path for path in temporary.iterdir() if path not in killed]


def comment(student: str) -> str:
    return f"Read by hand, {student}: größer than 1 & less than 3"


def step(name: str, began: float = time.monotonic()) -> None:
    print(f"{time.monotonic() - began:7.1f} s  {name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.grading.classroom.term")
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--hostile", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args()
    state = probe()
    if not state.ok or not shutil.which("openssl"):
        print(f"no term: {'openssl is missing' if state.ok else state.detail}")
        return NO_SANDBOX
    place = Path(tempfile.mkdtemp(prefix="course-term-"))
    temporary = place / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)  # of everything that this process starts
    watch = Watch()
    try:
        term = Term(place, members(asked.students, asked.hostile), asked.workers)
        term.play()
        term.check_left_behind(watch, temporary)
    except BaseException:
        print(f"kept: {place}")
        raise
    step("all checks passed")
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
