"""Submissions described by small files: read, written as a student would, and graded in one run.

A corpus is a folder of TOML files beside this module, one for each submission; `Case` lists the
fields of a file. `Ground` is a course with canaries wherever a student's code must not look, and
`Graded` is the result of one run of `course grade`. Each corpus has a few quick cases; the others
are exhaustive. Only the cases that pytest has selected are graded.
"""

import ast
import base64
import csv
import hashlib
import importlib
import inspect
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from nbformat import NotebookNode

from course_pkg.grading.feedback.class_report import inert
from course_pkg.grading.gradebook.release import program_path
from course_pkg.grading.results.store import file_stem
from course_pkg.grading.runs.sample_class import answered, named
from course_pkg.grading.submissions.names import shown
from tests.exercises.assignments import CHECK, EXERCISES, ROOT, SOLUTIONS, notebook, places

ASSIGNMENT, COURSE = "lora-math", "llm-course"
POINTS = 24.0  # that lora-math gives automatically
CLASSMATE = "zz-classmate"  # submits the solution; this name sorts last
GOT = "GOT "  # an attack prints it before whatever it should not have got
# The fields that decide what is submitted and run. The others describe it, and are not hashed.
RUN = {
    "after", "answers", "base", "before", "build", "earlier", "everywhere", "files", "signed",
    "student",
}  # fmt: skip
TRIED = "TRIED IT ALL"  # printed at the end of `before` and `after`


@dataclass(frozen=True)
class Case:
    """One submission, as its file describes it.

    title: for the table. why: what it tries. kind: the heading in the table. state: the states in
    which it may end. score: points of its honest part, of POINTS. base: the notebook it starts
    from. student: the student's id; by default the file's name. signed: the name in the notebook;
    by default the id. before, after: code of a first and a last cell. answers: code by question.
    everywhere: an expression that answers every question. build: a function of the folder's
    `builders`. files: beside the notebook. earlier: a base that was submitted and graded before.
    told: texts that the student's page must contain. never: texts that no output may contain.
    tried: whether the code in `before` must run to its end. sha: hash of the submission.
    """

    name: str
    title: str
    why: str
    kind: str
    state: tuple[str, ...] = ("graded",)
    score: float = 0
    base: str = "stub"
    student: str = ""
    signed: str | None = None
    before: str = ""
    after: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    everywhere: str = ""
    build: str = ""
    files: dict[str, str] = field(default_factory=dict)
    earlier: str = ""
    told: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    tried: bool = True
    corpus: str = ""
    sha: str = ""

    @property
    def id(self) -> str:
        """The student's id."""
        return self.student or self.name

    def notebook(self) -> NotebookNode:
        """The notebook, before `build` changes it."""
        nb = base_notebook(self.base)
        where = places(nb)
        answers = {q: self.everywhere and f"{_variable(nb, q)} = {self.everywhere}" for q in where}
        for question, code in {**answers, **self.answers}.items():
            if code:
                nb.cells[where[question].answer].source = code.strip()
        nb = named(nb, self.id if self.signed is None else self.signed)
        for code, at in ((self.before, 0), (self.after, len(nb.cells) + 1)):
            if code:
                source = f"{code.strip()}\nprint({TRIED!r})"
                nb.cells.insert(at, nbformat.v4.new_code_cell(source, id=f"own-{at}"))
        return nb

    def write(self, folder: Path) -> None:
        """Write the submission into `folder`, the student's folder for the assignment."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        nb = self.notebook()
        if self.build:
            nb = _builder(self.corpus, self.build)(nb, folder)
        if nb is not None:
            (folder / f"{ASSIGNMENT}.ipynb").write_text(json.dumps(nb))


def base_notebook(base: str) -> NotebookNode:
    """A notebook to build on: "stub" as released; with all answers, "solution", or "half" of them.

    The locked cells are the released ones, as in a student's own copy.
    """
    released, solution = notebook(EXERCISES, ASSIGNMENT), notebook(SOLUTIONS, ASSIGNMENT)
    return answered(released, solution, {"stub": 0.0, "half": 0.5, "solution": 1.0}[base])


def _variable(nb: NotebookNode, question: str) -> str:
    return CHECK.search(nb.cells[places(nb)[question].check].source)[3]


def _builder(corpus: str, name: str) -> Any:
    """A function of the builders beside a corpus."""
    return getattr(importlib.import_module(f"tests.grading.{corpus}.builders"), name)


def load(folder: str) -> list[Case]:
    """The cases of a corpus, in the order of their names."""
    cases = []
    for path in sorted((Path(__file__).parent / folder).glob("*.toml")):
        row: dict[str, Any] = tomllib.loads(path.read_text())
        sent = {key: row[key] for key in sorted(row.keys() & RUN)}
        for name in ("state", "told", "never"):
            if name in row:
                row[name] = tuple([row[name]] if isinstance(row[name], str) else row[name])
        sha = hashlib.sha256(json.dumps(sent).encode())
        if "build" in row:
            sha.update(_code(_builder(folder, row["build"])).encode())
        cases.append(Case(path.stem, corpus=folder, sha=sha.hexdigest()[:16], **row))
    return cases


def _code(function: Callable[..., Any]) -> str:
    """The code of a function and of what it uses from its module, without docstrings."""
    top: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(inspect.getmodule(function))).body:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                top[name] = node
    used, waiting = {}, [function.__name__]
    while waiting:
        if (name := waiting.pop()) in top and name not in used:
            node = top[name]
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            used[name] = ast.unparse(node)
            waiting += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return "\n".join(used[name] for name in sorted(used))


def parameters(cases: dict[str, Case], quick: set[str]) -> list[Any]:
    """The names of the cases, for a fixture's params; cases that are not quick are exhaustive."""
    assert quick <= cases.keys(), quick - cases.keys()
    return [pytest.param(n, marks=() if n in quick else pytest.mark.exhaustive) for n in cases]


def selected(request: pytest.FixtureRequest, cases: dict[str, Case]) -> dict[str, Case]:
    """The cases that the tests of this module will ask for, in this session."""
    calls = [
        i.callspec
        for i in request.session.items
        if i.path == request.path and hasattr(i, "callspec")
    ]
    names = {call.params["case"] for call in calls if "case" in call.params}
    return {name: case for name, case in cases.items() if name in names}


def classmate() -> NotebookNode:
    """A good submission: the solution, signed."""
    return named(base_notebook("solution"), CLASSMATE)


class Ground:
    """A course in a temporary folder, with canaries: random texts that must not leak.

    They are in the grader's environment and home, in solutions/, in the classmate's notebook, in
    the gradebook and in git's objects; the grader's secret counts as one too.
    """

    def __init__(self, root: Path, package: bool = False) -> None:
        """root: a folder to make. package: put a copy of course_pkg into the course as well."""
        self.root, self.home = root, root.parent / f"{root.name}-home"
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
        self._enrol()

    def _enrol(self) -> None:
        """Put a student into the gradebook whose first name is a canary."""
        from nbgrader.api import Gradebook

        where = f"sqlite:///{self.root}/gradebook.db"
        with mock.patch.dict(os.environ, PATH=program_path()), Gradebook(where, COURSE) as book:
            book.add_student("zz-enrolled", first_name=self.canaries["gradebook"])

    def folder(self, student: str) -> Path:
        """The folder of a student's submission."""
        return self.root / "submitted" / student / ASSIGNMENT

    def submit(self, student: str, nb: NotebookNode) -> None:
        """Submit a plain notebook."""
        self.folder(student).mkdir(parents=True, exist_ok=True)
        (self.folder(student) / f"{ASSIGNMENT}.ipynb").write_text(json.dumps(nb))

    def write(self, case: Case) -> None:
        """Submit a case; it replaces the student's earlier submission."""
        shutil.rmtree(self.folder(case.id), ignore_errors=True)
        case.write(self.folder(case.id))

    def environment(self) -> dict[str, str]:
        """The grader's environment: its own home, and a canary."""
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
        """The canaries that `text` contains, and what an attack printed as its loot."""
        known = dict(self.canaries)
        key = self.root / ".grading" / "secret"
        if key.is_file():
            known["secret"] = key.read_bytes().strip().decode("latin-1")
        found = [place for place, canary in known.items() if _shows(text, canary)]
        found += ["reference"] * any(line in text for line in reference_lines())
        return found + sorted(set(re.findall(rf"(?:^|\n|>|\\n){GOT}([\w -]{{1,40}})", text)))


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
    checks = ROOT / "course_pkg" / "grading" / "checks" / "lora_math"
    paths = [ROOT / "course_pkg" / "adapters" / "lora.py", checks / "cases.py"]
    shared = (checks / "student.py").read_text()
    shared += "".join(cell.source for cell in notebook(SOLUTIONS, ASSIGNMENT).cells)
    lines = {line.strip() for path in paths for line in path.read_text().splitlines()}
    return [
        line for line in lines if len(line) > 40 and not set("\"'<>&") & set(line)
        and line not in shared and "import" not in line
    ]  # fmt: skip


@dataclass(frozen=True)
class Graded:
    """The results of one run of `course grade`: its exit code, its output, and every row.

    pid: the grader's process id.
    """

    ground: Ground
    pid: int
    code: int
    printed: str

    @cached_property
    def rows(self) -> dict[str, dict[str, str]]:
        """The rows of grades.csv by student."""
        with open(self.ground.root / "results" / ASSIGNMENT / "grades.csv", newline="") as file:
            return {row["student"]: row for row in csv.DictReader(file)}

    def row(self, student: str) -> dict[str, str] | None:
        """The student's row; an invalid id is escaped in it, and a formula is inert."""
        names = (student, shown(student), inert(student), inert(shown(student)))
        return next((self.rows[name] for name in names if name in self.rows), None)

    def page(self, student: str) -> str:
        """The student's page of results."""
        path = self.ground.root / "results" / ASSIGNMENT / f"{file_stem(student)}.html"
        return path.read_text() if path.is_file() else ""

    def autograded(self, student: str) -> str:
        """The text of the student's autograded notebook; empty if there is none."""
        folder = self.ground.root / "autograded" / student / ASSIGNMENT
        path = folder / f"{ASSIGNMENT}.ipynb"
        return path.read_text() if path.is_file() else ""

    def outputs(self, student: str) -> list[dict[str, Any]]:
        """Every output of the autograded notebook."""
        text = self.autograded(student)
        cells = json.loads(text)["cells"] if text else []
        return [output for cell in cells for output in cell.get("outputs", [])]

    def shown(self, student: str) -> str:
        """All text that this student's code could have written: outputs, page, row."""
        texts = [_text(output) for output in self.outputs(student)]
        return "\n".join([*texts, self.page(student), str(self.row(student))])

    def opened(self, student: str) -> str:
        """What an instructor opens in a browser: the page, the class's index, the outputs."""
        index = self.ground.root / "results" / ASSIGNMENT / "index.html"
        texts = [_text(output) for output in self.outputs(student)]
        return "\n".join([*texts, self.page(student), index.read_text()])

    def leaked(self, student: str) -> list[str]:
        """What leaked: canaries, reference code, and what an attack printed as its loot."""
        return self.ground.found_in(self.shown(student))


def _text(output: dict[str, Any]) -> str:
    parts = [output.get("text", ""), output.get("traceback", ""), output.get("evalue", "")]
    parts += output.get("data", {}).values()
    return "\n".join("".join(p) if isinstance(p, list) else str(p) for p in parts)


def grade(ground: Ground, *options: str, timeout: float = 3000) -> Graded:
    """Run `course grade` on all submissions."""
    command = [sys.executable, "-m", "course_pkg", "grade", ASSIGNMENT, *options]
    with (ground.home / "log").open("w+", errors="replace") as log:
        process = subprocess.Popen(
            command, cwd=ground.root, env=ground.environment(), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip
        code = process.wait(timeout)
        log.seek(0)
        return Graded(ground, process.pid, code, log.read())
