"""Public test sets, by name: where they are, their licenses, and their rows as items of a task.

>>> from course_pkg.evaluation.public_sets import find_public_set
>>> find_public_set("gsm8k").hub
'openai/gsm8k'
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.evaluation.public_sets.catalog": (
        "PublicSet find_public_set public_set_names public_sets"
    ),
    "course_pkg.evaluation.public_sets.loading": "LoadedSet load_public_set public_task",
    "course_pkg.evaluation.public_sets.rows": "item_of_row",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
