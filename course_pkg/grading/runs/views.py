"""Which files the two sandboxes of a submission show: the student's and the checker's.

Chapter: appendix/threat-model.
"""

from pathlib import Path

from course_pkg.lm.cache import cache_root
from course_pkg.sandbox import policy
from course_pkg.sandbox.policy import View

from ..contract import registry

PACKAGE = Path(__file__).resolve().parents[2]
MASKED = "raise ImportError('{name} is not available during grading: use your own code')\n"


def student_view(assignment: str, course: Path, disk_bytes: int) -> View:
    """What a student's sandbox can see: this Python, the models, and no answer.

    course: the folder of submissions and solutions, which stays hidden wherever it is.
    """
    models = tuple(path.parent for path in cache_root().glob("*/manifest.json"))
    checked = registry.has_checks(assignment)
    own = registry.student_files(assignment) if checked else ()
    masked = registry.load(assignment).masked if checked else ()
    return View(
        policy.python_folders() + models + own,
        hidden=(course.resolve(), PACKAGE.parent, registry.CHECKS, *policy.unused_packages()),
        masks=policy.module_masks(masked, MASKED),
        writable=dict.fromkeys(("/home/student", "/tmp", "/dev/shm"), disk_bytes),
    )


def checker_view(assignment: str, course: Path) -> View | None:
    """What a checker can see: this Python, the answer key and its models; None if there is no key.

    course: as for `student_view`.
    """
    if not registry.has_checks(assignment):
        return None
    models = (cache_root() / name for name in registry.load(assignment).models)
    return View(
        (*policy.python_folders(), registry.folder(assignment), *models),
        hidden=(course.resolve(), PACKAGE.parent),
    )
