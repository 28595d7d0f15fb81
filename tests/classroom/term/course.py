"""The folder of a course, and what its instructor does there: commands, and grading by hand."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from course_pkg.classroom.release import program_path
from tests.classroom.corpus import ASSIGNMENT
from tests.exercises.assignments import ROOT

from .members import DUE, Member

LIMITS = ("--cell-timeout", "15", "--time-limit", "60", "--memory", "2")
BUSY = "the machine or its disk is too slow or busy: try again"  # what the grader then says
TRIES = 4
TASK = "written"  # the cell that is graded by hand
LATE = """import math

from nbgrader.plugins import BasePlugin


class TenPercentADay(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return score * min(1, 0.1 * math.ceil(total_seconds_late / 86400))
"""


class StepFailed(RuntimeError):
    """A command ended with another exit code than expected; the message has what it printed."""


class Course:
    """A course in a folder. pids: of the commands that ran in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pids: list[int] = []

    def start(self, *arguments: str, program: str = "course_pkg") -> subprocess.Popen[str]:
        """Start a command, by default one of `course`, in the course's folder."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": program_path()}
        process = subprocess.Popen(
            [sys.executable, "-m", program, *arguments], cwd=self.root, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.pids.append(process.pid)
        return process

    def run(self, *arguments: str) -> str:
        """Run a `course` command; what it prints. Raises StepFailed if it fails."""
        return self._ended(self.start(*arguments), f"course {' '.join(arguments)}", (0,))

    def nbgrader(self, *arguments: str) -> str:
        """Run an nbgrader command; what it prints. Raises StepFailed if it fails."""
        process = self.start(*arguments, program="nbgrader")
        return self._ended(process, f"nbgrader {' '.join(arguments)}", (0,))

    def grade(self, *options: str) -> str:
        """Grade what is in `submitted/`, again if the machine was too busy; what is printed.

        Raises StepFailed.
        """
        for _ in range(TRIES - 1):
            try:
                return self.graded(self.grading(*options))
            except StepFailed as error:
                if BUSY not in str(error):
                    raise
        return self.graded(self.grading(*options))

    def grading(self, *options: str) -> subprocess.Popen[str]:
        """The command that grades what is in `submitted/`, started."""
        return self.start("grade", ASSIGNMENT, "--roster", "roster.csv", *LIMITS, *options)

    def graded(self, process: subprocess.Popen[str]) -> str:
        """What that command prints until it ends. Raises StepFailed."""
        return self._ended(process, f"course grade {ASSIGNMENT}", (0, 1))

    def prepare(self, people: Iterable[Member]) -> None:
        """A new course: the assignment released, its due date, late penalties, and the roster."""
        shutil.copytree(ROOT / "solutions" / ASSIGNMENT, self.root / "solutions" / ASSIGNMENT)
        config = (ROOT / "nbgrader_config.py").read_text()
        plugin = "c.AssignLatePenalties.plugin_class = 'late.TenPercentADay'"
        (self.root / "nbgrader_config.py").write_text(f"{config}\n{plugin}\n")
        (self.root / "late.py").write_text(LATE)
        self.run("release", ASSIGNMENT)
        due = f"{DUE:%Y-%m-%d %H:%M} UTC"
        self.nbgrader("db", "assignment", "add", ASSIGNMENT, f"--duedate={due}")
        with (self.root / "roster.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("id", "first_name", "last_name", "lms_user_id", "submitted_at"))
            for one in people:
                when = one.submitted_at.isoformat() if one.in_roster else ""
                rows.writerow((one.id, "Zoë", f"O'Neill {one.number}", 1000 + one.number, when))

    def copy(self, root: Path) -> "Course":
        """The course in another folder; what is submitted and graded later differs."""
        shutil.copytree(self.root, root)
        return Course(root)

    def take_secret(self, other: "Course") -> None:
        """Restore the other course's secret, as from a backup: the cases are the same in both."""
        folder = self.root / ".grading"
        folder.mkdir(mode=0o700)
        shutil.copy2(other.root / ".grading" / "secret", folder)

    def mark(self, points: dict[str, float]) -> None:
        """Give everybody's points for the task, as formgrader does."""
        with self._gradebook() as book:
            for student, given in points.items():
                grade = book.find_grade(TASK, ASSIGNMENT, ASSIGNMENT, student)
                grade.manual_score, grade.extra_credit = given, None
                grade.needs_manual_grade = False
                book.db.commit()

    def comment(self, texts: dict[str, str]) -> None:
        """Write everybody's comment on the task, as formgrader does."""
        with self._gradebook() as book:
            for student, text in texts.items():
                comment = book.find_comment(TASK, ASSIGNMENT, ASSIGNMENT, student)
                comment.manual_comment = text
                book.db.commit()

    def gradebook(self) -> dict[tuple[str, str], tuple[object, ...]]:
        """What the gradebook has on each student and cell, and on each student's total.

        For a cell: automatic and manual score, comments, and whether it is to be graded by hand.
        For the total, whose cell is "": score, late penalty and time of the submission.
        """
        found: dict[tuple[str, str], tuple[object, ...]] = {}
        with self._gradebook() as book:
            for one in book.assignment_submissions(ASSIGNMENT):
                (nb,) = one.notebooks
                comments = {c.name: (c.auto_comment, c.manual_comment) for c in nb.comments}
                for g in nb.grades:
                    scores = (g.auto_score, g.manual_score, g.extra_credit, g.needs_manual_grade)
                    found[one.student.id, g.name] = (*scores, *comments.pop(g.name, ()))
                found |= {(one.student.id, name): text for name, text in comments.items()}
                total = (one.score, one.late_submission_penalty, str(one.timestamp))
                found[one.student.id, ""] = total
        return found

    def grades(self) -> dict[str, dict[str, str]]:
        """The rows of results/…/grades.csv by student."""
        return self.table(f"results/{ASSIGNMENT}/grades.csv", "student")

    def table(self, path: str, key: str) -> dict[str, dict[str, str]]:
        """The rows of a CSV file in the course by one of their fields."""
        with (self.root / path).open(newline="", encoding="utf-8") as file:
            return {row[key]: row for row in csv.DictReader(file)}

    def records(self) -> dict[str, bytes]:
        """The grader's records, each a signed file, by the name of the file."""
        folder = self.root / ".grading" / "records" / ASSIGNMENT
        return {path.stem: path.read_bytes() for path in folder.glob("*.json")}

    def _gradebook(self):
        from nbgrader.api import Gradebook

        return Gradebook(f"sqlite:///{self.root}/gradebook.db", "llm-course")

    def _ended(self, process: subprocess.Popen[str], what: str, codes: tuple[int, ...]) -> str:
        said, _ = process.communicate()
        if process.returncode not in codes:
            raise StepFailed(f"{what}: exit code {process.returncode}\n{said[-3000:]}")
        return said
