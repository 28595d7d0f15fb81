"""A course with canaries, and the results of one run of `course grade` in it.

`CanaryCourse` has random texts wherever a student's code must not look; `Graded` has every row of
the results, and finds the canaries that leaked into one.
"""

import base64
import csv
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from nbformat import NotebookNode

from course_pkg.grading.classroom.gradebook.keys import grading_folder
from course_pkg.grading.classroom.gradebook.record import file_stem
from course_pkg.grading.classroom.release import program_path
from course_pkg.grading.classroom.runs.sample_class import named
from course_pkg.grading.classroom.submissions.names import inert, shown
from tests.exercises.assignments import EXERCISES, ROOT, SOLUTIONS, notebook
from tests.grading.classroom import NEEDS_SANDBOX

from .corpus import ASSIGNMENT, POINTS, Case, base_notebook, selected
from .host import Watch

COURSE = "llm-course"
CLASSMATE = "zz-classmate"  # submits the solution; this name sorts last
CORPUS_MARKS = [pytest.mark.slow, pytest.mark.timeout(3600), NEEDS_SANDBOX]
SECRET = "5eed" * 16 + "\n"  # fixed: what fits one draw in a hundred fits always or never
GOT = "GOT "  # an attack prints it before anything that it should not be able to get


def classmate() -> NotebookNode:
    return named(base_notebook("solution"), CLASSMATE)


class CanaryCourse:
    """A course in a temporary folder, with canaries: random texts that must not leak.

    They are in the grader's environment and home, in solutions/, in the classmate's notebook, in
    the gradebook and in git's objects; the grader's secret counts as one too.
    """

    def __init__(self, root: Path, package: bool = False) -> None:
        self.root = root
        self.home = root.parent / f"{root.name}-home"
        places = ("environment", "home", "solutions", "classmate", "gradebook", "git")
        self.canaries = {place: f"CANARY-{place}-{secrets.token_hex(8)}" for place in places}
        self.home.mkdir(parents=True)
        root.mkdir()
        (self.home / "grades-so-far.txt").write_text(self.canaries["home"])
        shutil.copytree(SOLUTIONS, root / "solutions")
        shutil.copytree(EXERCISES, root / "exercises")
        shutil.copy(ROOT / "nbgrader_config.py", root)
        if package:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "course_pkg", root / "course_pkg", ignore=ignored)
        source = root / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        text = f"### BEGIN SOLUTION\\n# {self.canaries['solutions']}"
        source.write_text(source.read_text().replace("### BEGIN SOLUTION", text))
        blob = self.canaries["git"].encode()
        stored = root / ".git" / "objects" / "ab" / "c0ffee"
        stored.parent.mkdir(parents=True)
        stored.write_bytes(zlib.compress(b"blob %d\0" % len(blob) + blob))
        nb = classmate()
        nb.cells.append(nbformat.v4.new_markdown_cell(self.canaries["classmate"], id="note"))
        self.submit(CLASSMATE, nb)
        secret = grading_folder(root) / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self._enrol()

    def _enrol(self) -> None:
        from nbgrader.api import Gradebook

        where = f"sqlite:///{self.root}/gradebook.db"
        with mock.patch.dict(os.environ, PATH=program_path()), Gradebook(where, COURSE) as book:
            book.add_student("zz-enrolled", first_name=self.canaries["gradebook"])

    def folder(self, student: str) -> Path:
        return self.root / "submitted" / student / ASSIGNMENT

    def submit(self, student: str, nb: NotebookNode) -> None:
        self.folder(student).mkdir(parents=True, exist_ok=True)
        (self.folder(student) / f"{ASSIGNMENT}.ipynb").write_text(json.dumps(nb))

    def write(self, case: Case) -> None:
        shutil.rmtree(self.folder(case.id), ignore_errors=True)
        case.write(self.folder(case.id))

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": program_path(),
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "GRADER_TOKEN": self.canaries["environment"],
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def found_in(self, text: str) -> list[str]:
        """The canaries that `text` contains, and what an attack printed after GOT."""
        known = dict(self.canaries)
        key = self.root / ".grading" / "secret"
        if key.is_file():
            known["secret"] = key.read_bytes().strip().decode("latin-1")
        leaks = [place for place, canary in known.items() if _shows(text, canary)]
        leaks += ["reference"] * any(line in text for line in reference_lines())
        return leaks + sorted(set(re.findall(rf"(?:^|\n|>|\\n){GOT}([\w -]{{1,40}})", text)))


def _shows(text: str, canary: str) -> bool:
    """Whether `canary` is in `text`: plain, backwards, as hex digits or in base64."""
    raw = canary.encode("latin-1")
    forms = [canary, canary[::-1], raw.hex(), repr(raw)[2:-1]]
    if re.fullmatch(r"([0-9a-f]{2})+", canary):
        raw = bytes.fromhex(canary)
        forms.append(repr(raw)[2:-1])
    for skipped in range(3):  # base64 has three alignments; its ends depend on the neighbors
        forms.append(base64.b64encode(b"\0" * skipped + raw).decode()[4:-4])
    return any(form in text for form in forms)


def reference_lines() -> list[str]:
    """Lines of code that only the reference and the cases of the checks contain."""
    checks = ROOT / "course_pkg" / "grading" / "assignments" / "lora_math"
    paths = [ROOT / "course_pkg" / "adapters" / "lora.py", checks / "cases.py"]
    shared = (checks / "student.py").read_text()
    shared += "".join(cell.source for cell in notebook(SOLUTIONS, ASSIGNMENT).cells)
    lines = {line.strip() for path in paths for line in path.read_text().splitlines()}
    return [
        line
        for line in lines
        if len(line) > 40
        and not set("\"'<>&") & set(line)
        and line not in shared
        and "import" not in line
    ]


@dataclass(frozen=True)
class Graded:
    """The results of one run of `course grade`, whose process id is `pid`."""

    course: CanaryCourse
    pid: int
    code: int
    printed: str

    @cached_property
    def rows(self) -> dict[str, dict[str, str]]:
        """The rows of grades.csv by student who submitted; a refused submission counts 0."""
        with open(self.course.root / "results" / ASSIGNMENT / "grades.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["state"] != "no-submission"]
        return {row["student"]: {**row, "score": row["score"] or "0"} for row in rows}

    def row(self, student: str) -> dict[str, str] | None:
        """The student's row; an invalid id is escaped in it, and a formula is inert."""
        names = (student, shown(student), inert(student), inert(shown(student)))
        return next((self.rows[name] for name in names if name in self.rows), None)

    def page(self, student: str) -> str:
        path = self.course.root / "results" / ASSIGNMENT / f"{file_stem(student)}.html"
        return path.read_text() if path.is_file() else ""

    def autograded(self, student: str) -> str:
        folder = self.course.root / "autograded" / student / ASSIGNMENT
        path = folder / f"{ASSIGNMENT}.ipynb"
        return path.read_text() if path.is_file() else ""

    def outputs(self, student: str) -> list[dict[str, Any]]:
        text = self.autograded(student)
        cells = json.loads(text)["cells"] if text else []
        return [output for cell in cells for output in cell.get("outputs", [])]

    def shown(self, student: str) -> str:
        """All text that this student's code could have written: outputs, page, row."""
        texts = [_text(output) for output in self.outputs(student)]
        return "\n".join([*texts, self.page(student), str(self.row(student))])

    def opened(self, student: str) -> str:
        """What an instructor opens in a browser: the page, the class's index, the outputs."""
        index = self.course.root / "results" / ASSIGNMENT / "index.html"
        texts = [_text(output) for output in self.outputs(student)]
        return "\n".join([*texts, self.page(student), index.read_text()])

    def leaked(self, student: str) -> list[str]:
        """What leaked: canaries, reference code, and what an attack printed after GOT."""
        return self.course.found_in(self.shown(student))


@dataclass(frozen=True)
class GradedCorpus:
    """The graded cases of a corpus, what was left on the machine, and who reached services."""

    cases: dict[str, Case]
    graded: Graded
    left: dict[str, set[str]]
    met: list[str] = field(default_factory=list)


def grade_corpus(
    request: pytest.FixtureRequest, folder: Path, cases: list[Case], *options: str
) -> GradedCorpus:
    """Grade the cases that pytest has selected, in one run; some after an earlier submission."""
    chosen = selected(request, cases)
    course = CanaryCourse(folder / "course")
    if earlier := [case for case in chosen.values() if case.earlier]:
        for case in earlier:
            course.submit(case.id, named(base_notebook(case.earlier), case.id))
        first = grade(course, *options)
        assert {float(first.rows[case.id]["score"]) for case in earlier} == {POINTS}
    for case in chosen.values():
        course.write(case)
    own = [course.home, course.root, course.root / "solutions", course.root / "exercises"]
    watch = Watch(*own)
    graded = grade(course, *options)
    return GradedCorpus(chosen, graded, watch.left(graded.pid))


def _text(output: dict[str, Any]) -> str:
    parts = [output.get("text", ""), output.get("traceback", ""), output.get("evalue", "")]
    parts += output.get("data", {}).values()
    return "\n".join("".join(p) if isinstance(p, list) else str(p) for p in parts)


def grade(course: CanaryCourse, *options: str, timeout: float = 3000) -> Graded:
    command = [sys.executable, "-m", "course_pkg", "grade", ASSIGNMENT, *options]
    with (course.home / "log").open("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            cwd=course.root,
            env=course.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        code = process.wait(timeout)
        log.seek(0)
        return Graded(course, process.pid, code, log.read())
