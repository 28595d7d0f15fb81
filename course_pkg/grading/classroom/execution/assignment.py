"""An assignment as the grader of a class sees it: resolved once, and then passed on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_pkg.grading.classroom.execution.grade_key import checks_hash
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.question import Assignment


@dataclass(frozen=True)
class ClassAssignment:
    """An assignment with its checks, or a plain nbgrader assignment, which has none.

    Attributes:
        folder, files: of the checks; the contents by relative path.
        hash: `checks_hash`.
        student_files: what a student's sandbox may read of them.
        student_module: the module of them that a student's kernel imports, "" for none.
    """

    name: str
    checks: Assignment | None = field(default=None, repr=False)
    folder: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    hash: str = ""
    student_files: tuple[Path, ...] = ()
    student_module: str = ""

    @property
    def gpu(self) -> str:
        """Whether its answers use a GPU: "none", "optional" or "required"."""
        return self.checks.gpu if self.checks else "none"

    @property
    def models(self) -> tuple[str, ...]:
        """The cached models that its checker judges with."""
        return self.checks.models if self.checks else ()

    @property
    def cell_s(self) -> float:
        """The seconds that it asks for a cell; 0 for no more than any other."""
        return self.checks.cell_s if self.checks else 0.0

    @property
    def artifacts_s(self) -> float:
        """The seconds that judging all files of an answer may take."""
        return self.checks.artifacts_s if self.checks else 0.0


def resolve(name: str) -> ClassAssignment:
    """The assignment of that name; without checks of that name, it is a plain one."""
    if name not in registry.assignments():
        return ClassAssignment(name)
    files = registry.assignment_files(name)
    checks = registry.load(name)
    return ClassAssignment(
        name,
        checks,
        folder=registry.folder(name),
        files=files,
        hash=checks_hash(checks, files),
        student_files=registry.student_files(name),
        student_module=registry.module_name(name, "student"),
    )
