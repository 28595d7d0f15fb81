"""What the sandboxes of a submission show, and what is imported before a kernel is forked."""

import os
from pathlib import Path

from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.questions import registry
from course_pkg.lm.cache import cache_root
from course_pkg.sandbox import policy
from course_pkg.sandbox.policy import View

PACKAGE = Path(__file__).resolve().parents[3]
MASKED = "raise ImportError('{name} is not available during grading: use your own code')\n"
MODELS = (
    "torch",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "course_pkg.lm.load",
    "course_pkg.lm.tiny",
)
NOTEBOOKS = (
    "IPython",
    "ipykernel.kernelapp",
    "nbclient",
    "matplotlib_inline.backend_inline",
    # A kernel imports these only when it starts, such as the debugger that ipykernel always loads.
    "ipykernel.debugger",
    "IPython.core.debugger",
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
    "psutil",
    "faulthandler",
    "encodings.cp437",
    "encodings.unicode_escape",
    "encodings.latin_1",
    "encodings.idna",
    "course_pkg.grading.check",
)
DEBUGGER = {"PYDEVD_USE_FRAME_EVAL": "NO"}  # what importing the debugger adds to the environment
QUIET_DEBUGGER = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # or its import warns on stderr


def kernel_modules(assignment: ClassAssignment) -> list[str]:
    """The modules that the fork server of an assignment's kernels imports."""
    modules = [*NOTEBOOKS]
    if assignment.checks and "torch" in assignment.checks.imports:
        modules = [*MODELS, *modules]
    if assignment.student_module:
        modules.append(assignment.student_module)
    return modules


def student_view(assignment: ClassAssignment, course: Path, disk_bytes: int) -> View:
    """What a student's sandbox can see: this Python, the models, and no answer.

    Args:
        course: the folder of submissions and solutions, which stays hidden wherever it is.
    """
    models = tuple(path.parent for path in cache_root().glob("*/manifest.json"))
    masked = assignment.checks.masked if assignment.checks else ()
    return View(
        policy.python_folders() + models + assignment.student_files,
        hidden=(
            course.resolve(),
            PACKAGE.parent,
            registry.ASSIGNMENTS,
            *stale_bytecode(PACKAGE),
            *policy.unused_packages(),
        ),
        masks=policy.module_masks(masked, MASKED),
        writable=dict.fromkeys(("/home/student", "/tmp", "/dev/shm"), disk_bytes),
    )


def stale_bytecode(package: Path) -> list[Path]:
    """The `__pycache__` folders with a module that has no source any more.

    An upgrade leaves them behind, and no mask or hidden folder would cover the answers in them.
    """
    return [
        folder
        for folder in sorted(package.rglob("__pycache__"))
        if not {file.name.partition(".")[0] for file in folder.glob("*.pyc")}
        <= {file.stem for file in folder.parent.glob("*.py")}
    ]


def checker_view(assignment: ClassAssignment, course: Path) -> View:
    """What a checker can see: this Python, the answer key and its models, but not the course."""
    models = (cache_root() / name for name in assignment.models)
    return View(
        (*policy.python_folders(), assignment.folder, *models),
        hidden=(course.resolve(), PACKAGE.parent),
    )


def known_places() -> dict[str, str]:
    """Environment variables that say where the package, the models and received checks are."""
    places = {"PYTHONPATH": str(PACKAGE.parent), "COURSE_CACHE": str(cache_root())}
    if received := os.environ.get(registry.RECEIVED):
        places[registry.RECEIVED] = received
    return places
