"""Submissions described by small files: read, and written as a student would.

A corpus is a folder of TOML files next to this module, one for each submission; `Case` lists the
fields of a file. `canary_course` grades the cases that pytest has selected.
"""

import importlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from course_pkg.grading.classroom.runs.sample_class import answered, named
from tests.exercises.assignments import CHECK, EXERCISES, SOLUTIONS, notebook, places

ASSIGNMENT = "lora-math"
POINTS = 24.0  # the automatically graded points of lora-math
TRIED = "TRIED IT ALL"  # printed after the code of `before` and `after`


@dataclass(frozen=True)
class Case:
    """One submission, as its file describes it.

    title: in a few words. why: what it tries. kind: at least one case of every kind is quick.
    quick: whether every run of the tests has it. state: the states in which it may end. score:
    points of its honest part, of POINTS. base: the notebook it starts from. student: the student's
    id; by default the file's name. signed: the name in the notebook; by default the id. before,
    after: code of a first and a last cell. answers: code by question. everywhere: an expression
    that answers every question. build: a function of the folder's `builders`. files: next to the
    notebook. earlier: a base that was submitted and graded before. told: texts that the student's
    page must contain. never: texts that no output may contain. tried: whether the code in `before`
    must run to its end.
    """

    name: str
    title: str
    why: str
    kind: str
    quick: bool = False
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

    @property
    def id(self) -> str:
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
    """A "stub" as released, the "solution", or "half" of it, with the locked cells as released."""
    released = notebook(EXERCISES, ASSIGNMENT)
    solution = notebook(SOLUTIONS, ASSIGNMENT)
    return answered(released, solution, {"stub": 0.0, "half": 0.5, "solution": 1.0}[base])


def _variable(nb: NotebookNode, question: str) -> str:
    return CHECK.search(nb.cells[places(nb)[question].check].source)[3]


def _builder(corpus: str, name: str) -> Any:
    return getattr(importlib.import_module(f"tests.grading.classroom.{corpus}.builders"), name)


def load(folder: str) -> list[Case]:
    cases = []
    for path in sorted((Path(__file__).parent / folder).glob("*.toml")):
        row: dict[str, Any] = tomllib.loads(path.read_text())
        for name in ("state", "told", "never"):
            if name in row:
                row[name] = tuple([row[name]] if isinstance(row[name], str) else row[name])
        cases.append(Case(path.stem, corpus=folder, **row))
    return cases


def selected(request: pytest.FixtureRequest, cases: list[Case]) -> dict[str, Case]:
    """Those of the cases that tests will ask for in this session, by name."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = [case for params in calls for case in params.get("cases", [])]
    return {case.name: case for case in cases if case in asked}
