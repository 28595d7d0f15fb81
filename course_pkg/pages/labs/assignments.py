"""What of the course runs in a browser, where Python has its standard library alone.

`ASSIGNMENTS` names the assignments whose questions can be checked there, and which of their
questions; `setup` in `questions.toml` says which need numpy or torch. The other assignments are
about tensors or models as a whole, down to what their cases are drawn from.
"""

import ast
import sys

from course_pkg.common.fingerprints.reach import all_imports
from course_pkg.grading.questions import registry

NAMES = (
    "bleu",
    "rouge",
    "concepts",
    "constrained",
    "scheduling",
    "paged-attention",
    "evaluation-plan",
    "benchmarks",
)


def questions_without_libraries(assignment: str) -> tuple[str, ...]:
    """The questions of an assignment whose answers import the standard library alone."""
    checks = registry.load(assignment)
    return tuple(
        name
        for name, question in checks.questions.items()
        if not libraries(f"{checks.setup}\n{question.setup}")
    )


def libraries(code: str) -> set[str]:
    """The packages that code imports beside the standard library."""
    packages = {module.split(".")[0] for module, _ in all_imports(ast.parse(code))}
    return packages - sys.stdlib_module_names


ASSIGNMENTS = {name: questions_without_libraries(name) for name in NAMES}
