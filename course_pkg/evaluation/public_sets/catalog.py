"""A table of public test sets: one entry each, in `data/public_sets/sets.toml`.

kind "multiple-choice" and "generation" become items of `course eval`. "rows" are sets that need
more than a text to compare, such as a sandbox or a judge; their columns are checked, and given as
they are.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from course_pkg.evaluation.run_errors import TaskError

TABLE = resources.files("course_pkg") / "data/public_sets/sets.toml"
PROMPT = "Question: {question}\nAnswer:"
LISTED_PROMPT = "{question}\n{options}\nAnswer:"


@dataclass(frozen=True)
class PublicSet:
    """One public test set, with options in a list (options), columns (option_columns) or labels.

    Attributes:
        hub, config, split: for `datasets.load_dataset`.
        rows, license: 0 and "" if not checked.
        question: a template of columns, which may be nested ("context.contexts").
        coding: how `answer` names the right one: "index", "letter", "boolean" or "text".
        listed: the prompt lists the options, and letters are scored.
        pattern: its first group is the answer in the column.
        columns: of kind "rows".
        checked: where the columns were looked up.
    """

    name: str
    title: str
    hub: str
    split: str
    rows: int
    license: str
    metric: str
    kind: str
    checked: str
    config: str | None = None
    question: str = ""
    options: str = ""
    option_columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    answer: str = ""
    coding: str = ""
    listed: bool = False
    pattern: str = ""
    rules: tuple[str, ...] = ()
    normalization: str = "sum"
    max_new_tokens: int = 0
    prompt: str = PROMPT
    columns: tuple[str, ...] = ()


@cache
def public_sets() -> tuple[PublicSet, ...]:
    """All sets of the table, in its order."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    sets = []
    for name, entry in table.items():
        fields = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
        if entry.get("listed"):
            fields.setdefault("prompt", LISTED_PROMPT)
        sets.append(PublicSet(name=name, **fields))
    return tuple(sets)


def find_public_set(name: str) -> PublicSet:
    """The set with this name. Raises TaskError, with the names that there are."""
    by_name = {entry.name: entry for entry in public_sets()}
    if name not in by_name:
        raise TaskError(
            f"there is no public set {name!r} in the course's table: give one of "
            f"{', '.join(by_name)}"
        )
    return by_name[name]
