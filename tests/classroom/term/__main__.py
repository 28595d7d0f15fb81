"""Plays a term: release, submissions, grading with crashes, grading by hand, feedback, exports.

    python -m tests.classroom.term --students 60 --hostile 10 --workers 4

The instructor works twice: once alone on this machine, and once on a cluster whose parts are killed
with signal 9. Both must come to the same gradebook. Exit code 0: all checks passed. 1: one failed;
the folder with both courses is kept. 3: nothing could run, for want of a sandbox or of openssl.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from course_pkg.cli.exits import NEEDS_A_LOOK, NO_SANDBOX
from course_pkg.sandbox.probe import probe
from tests.classroom.corpus import ASSIGNMENT
from tests.classroom.host import Watch, groups

from . import checks
from .course import Course, StepFailed
from .crashes import Crashes, graded
from .members import KINDS, Member, deserved, members
from .report import Report

LONGER = 24.0  # hours of the extension
END_S = 10.0  # for the last processes to end


class Term:
    """One term of a class. alone, course: the courses on this machine and on the cluster."""

    def __init__(self, place: Path, people: list[Member], workers: int, report: Report) -> None:
        self.people, self.report = people, report
        self.alone, self.course = Course(place / "alone"), Course(place / "course")
        runs = sum(one.submits and one.known and one.kind != "broken" for one in people)
        self.crashes = Crashes(self.course, place, workers, runs)
        self.late = next(one.id for one in people if one.kind == "late")
        self.improves = next(one for one in people if one.kind == "partly")
        read = [one for one in people if one.submits and one.kind not in ("broken", "hostile")]
        self.points = {one.id: float(one.number % 5) for one in read}

    def play(self) -> None:
        """The whole term. Raises StepFailed if a command fails."""
        with self.crashes:
            self.release()
            self.grade()
            self.grade_by_hand()
            self.grade_again()
        self.give_back()

    def release(self) -> None:
        """A course on this machine, a copy for the cluster, and everybody's submission in both."""
        with self.report.step("release, due date, roster") as step:
            self.alone.root.mkdir()
            self.alone.prepare(one for one in self.people if one.known)
            self.alone.run("start", ASSIGNMENT)
            self.alone.copy(self.course.root)
            step.note = f"{ASSIGNMENT}, a roster of {sum(one.known for one in self.people)}"
        with self.report.step("submissions") as step:
            for one in self.people:
                for course in (self.alone, self.course):
                    if one.submits:
                        one.submit(course.root)
            kinds = [one.kind for one in self.people]
            step.note = ", ".join(f"{kinds.count(k)} {k}" for k in (*KINDS, "hostile"))

    def grade(self) -> None:
        """Grade everybody, alone and through crashes."""
        check, crashes = self.report.check, self.crashes
        with self.report.step("grade on this machine") as step:
            said = self.alone.grade()
            step.note = f"{sum(graded(line) is not None for line in said.splitlines())} graded"
        check("states and automatic points", checks.states(self.alone, self.people))
        self.course.take_secret(self.alone)
        with self.report.step("grade on a cluster, three crashes") as step:
            crashes.grade()
            killed = ", ".join(crashes.killed)
            step.note = f"{crashes.counts.total()} graded; killed: {killed}"
        check("the same on the cluster", checks.states(self.course, self.people))
        check("equal gradebooks after the crashes", checks.gradebooks(self.course, self.alone))
        check("nothing graded twice", checks.twice(crashes.counts, crashes.changed))
        check("nothing missing", checks.missing(self.course, self.people))

    def grade_by_hand(self) -> None:
        """Points and comments for everybody, as formgrader writes them."""
        with self.report.step("grade by hand") as step:
            for course in (self.alone, self.course):
                course.mark(self.points)
                course.comment({student: checks.comment(student) for student in self.points})
            step.note = f"{len(self.points)} submissions"

    def grade_again(self) -> None:
        """One who had points by hand submits all answers; two others are graded again."""
        new, check = self.improves.id, self.report.check
        with self.report.step("a submission after grading by hand") as step:
            for course in (self.alone, self.course):
                self.improves.submit(course.root, 1.0)
            beside = self.alone.grading()
            found = self.crashes.again()
            self.alone.graded(beside)
            step.note = f"{', '.join(sorted(found))} graded"
        check("only the new submission is graded", checks.only(found, {new}))
        check("points by hand stay, to be reviewed for it", self._by_hand(new))
        two = [student for student in self.points if student != new][:2]
        with self.report.step("grade again with --regrade") as step:
            found = self.crashes.again("--regrade", "--student", two[0], "--student", two[1])
            step.note = f"{', '.join(sorted(found))} graded"
        check("only the two are graded again", checks.only(found, two))
        check("points by hand stay, to be reviewed for them too", self._by_hand(new, *two))

    def give_back(self) -> None:
        """Review, an extension, feedback, and grades for other systems."""
        course, check = self.course, self.report.check
        with self.report.step("review, extension, results"):
            for one in (self.alone, self.course):
                one.mark(self.points)
                one.run("extend", ASSIGNMENT, self.late, "--hours", f"{LONGER:g}")
                one.run("results", ASSIGNMENT)
        check("equal gradebooks at the end", checks.gradebooks(course, self.alone))
        with self.report.step("feedback") as step:
            course.nbgrader("generate_feedback", ASSIGNMENT, "--force")
            step.note = f"{len(list(course.root.glob('feedback/*/*/*.html')))} pages"
        with self.report.step("export"):
            course.nbgrader("export")
            for form in ("csv", "moodle"):
                course.run("export-grades", ASSIGNMENT, "--format", form)
        improved = {self.improves.id: deserved(1.0)}
        totals = checks.totals(self.people, improved, self.points, {self.late: LONGER})
        check("totals: gradebook, results, exports, feedback", checks.agree(course, totals))
        check("comments, and nothing hostile, on the pages",
              checks.pages(course, self.points, self.people))  # fmt: skip

    def _by_hand(self, *review: str) -> list[str]:
        return checks.by_hand(self.course, self.points, review)


def leftovers(watch: Watch, term: Term, temporary: Path) -> list[str]:
    """What the term leaves behind, in which two programs were killed that could not clean up.

    The worker leaves the folder of its fork server, the scheduler Dask's own.
    """
    until = time.monotonic() + END_S
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < until:
        for child in children:  # those of killed programs are this process's now
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        time.sleep(0.1)
    found = [f"process {child.pid}: {child.name()}, {child.status()}" for child in children]
    found += [f"{kind}: {names}" for kind, names in watch.left(0).items()]
    pids = (*term.alone.pids, *term.course.pids, *term.crashes.pids)
    found += [f"control groups: {names}" for pid in pids if (names := groups(pid))]
    killed = [*list(temporary.glob("course-fork-*"))[:1], temporary / "dask-scratch-space"]
    return found + [f"temporary: {p.name}" for p in temporary.iterdir() if p not in killed]


def main(arguments: list[str] | None = None) -> int:
    """Play a term; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.classroom.term")
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--hostile", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args(arguments)
    try:
        people = members(asked.students, asked.hostile)
    except ValueError as error:
        parser.error(str(error))
    if not (state := probe()).ok or not shutil.which("openssl"):
        print(f"no term: {'openssl is missing' if state.ok else state.detail}")
        return NO_SANDBOX
    place = Path(tempfile.mkdtemp(prefix="course-term-"))
    temporary = place / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)  # of everything that this process starts
    watch, report = Watch(), Report()
    term = Term(place, people, asked.workers, report)
    try:
        term.play()
    except StepFailed as error:
        report.check("every command ends as expected", [str(error)])
    report.check("nothing is left behind", leftovers(watch, term, temporary))
    print(f"\na term of {len(people)}, {asked.workers} workers\n{report.table()}")
    if not report.passed:
        print(f"kept: {place}")
        return NEEDS_A_LOOK
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
