"""Loading a public test set with the library `datasets`, and making items of its rows.

The commit that was loaded is part of the result, since sets are corrected on the hub. Nothing is
guessed: a missing column or an answer that isn't among the options is an error that names the row.
"""

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from course_pkg.evaluation.answer_extraction import known_rules
from course_pkg.evaluation.items import LETTERS, Item
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.evaluation.public_sets.catalog import PublicSet, find_public_set
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.task import CHOICE, Task

PREFIX = "public:"  # before a set's name, where a task's name is expected
_COMMIT = re.compile(r"[0-9a-f]{40}")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class LoadedSet:
    """A split of a public set: items, or rows of kind "rows"; revision: the commit, if known."""

    entry: PublicSet
    split: str
    revision: str
    items: tuple[Item, ...]
    rows: tuple[Row, ...]


def load_public_set(
    name: str,
    *,
    config: str | None = None,
    split: str | None = None,
    revision: str = "main",
) -> LoadedSet:
    """Load a set of the table from the hub, or from the cache of an earlier load. Raises TaskError.

    config, split: None for those of the table. revision: a commit, a tag or a branch.
    """
    entry = find_public_set(name)
    if config is not None:
        entry = replace(entry, config=config)
    chosen = split or entry.split
    rows = _load(entry, chosen, revision)
    if len(rows) == 0:
        raise TaskError(f"{name} ({entry.hub}), split {chosen!r}, has no rows: give another split")
    commit = _commit(rows) or revision
    made = []
    for number, row in enumerate(rows):
        try:
            if entry.kind == "rows":
                made.append({column: _column(row, column) for column in entry.columns})
            else:
                made.append(_item(entry, row, number))
        except (TypeError, ValueError) as error:
            place = f"{entry.name} ({entry.hub}), split {chosen!r}, row {number}"
            raise TaskError(f"{place}: {error}") from None
    items, plain = ((), made) if entry.kind == "rows" else (made, ())
    return LoadedSet(entry, chosen, commit, tuple(items), tuple(plain))


def public_task(name: str, **options: Any) -> Task:
    """A public set as a zero-shot task; its name may have "public:" before it, "/" and a config."""
    plain, _, config = name.removeprefix(PREFIX).partition("/")
    entry = find_public_set(plain)
    if entry.kind == "rows":
        raise TaskError(
            f"{plain} is scored by {entry.metric}, which `course eval` doesn't do: load its rows "
            "with course_pkg.evaluation.public_sets.load_public_set"
        )
    loaded = load_public_set(plain, **({"config": config} if config else {}), **options)
    licensed = entry.license or "see its card"
    return Task(
        name="-".join(filter(None, ("public", plain, config))),
        description=(
            f"{entry.title}: {entry.hub}, config {loaded.entry.config}, split {loaded.split}, "
            f"revision {loaded.revision}; license: {licensed}"
        ),
        kind=entry.kind,
        items=loaded.items,
        template=PromptTemplate(entry.prompt),
        chat=False,
        examples=(),
        seed=0,
        normalization=entry.normalization,
        options="letters" if entry.listed else "text",
        rules=() if entry.kind == CHOICE else tuple(known_rules(entry.rules)),
        stop=() if entry.kind == CHOICE else ("\nQuestion:",),
        max_new_tokens=entry.max_new_tokens,
    )


def _load(entry: PublicSet, split: str, revision: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise TaskError(
            "public sets are loaded by the library datasets, which isn't installed: "
            'pip install "course-pkg[public]"'
        ) from None
    try:
        return load_dataset(entry.hub, entry.config, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:  # ConnectionError is an OSError
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TaskError(
            f"{entry.name} ({entry.hub}, split {split!r}, revision {revision!r}) can't be loaded: "
            f"{reason[:300]}. It needs a network, or a cache that has the set: see `datasets`"
        ) from None


def _commit(data: Any) -> str | None:
    """The commit that a data set was loaded from: a folder in the paths of its cached files."""
    paths = [PurePath(file["filename"]) for file in data.cache_files]
    commits = {part for path in paths for part in path.parts if _COMMIT.fullmatch(part)}
    return commits.pop() if len(commits) == 1 else None


def _item(entry: PublicSet, row: Row, number: int) -> Item:
    """A row as an item of a task; the row's place in the split becomes its id."""
    fields = {"question": _fill(entry.question, row)}
    if entry.kind == "generation":
        return Item(str(number), fields, answers=(_written_answer(entry, row),), line=number)
    options = _options(entry, row)
    return Item(str(number), fields, options, _right_option(entry, row, options), line=number)


def _column(row: Row, path: str) -> Any:
    """The value of a column; "a.b" is column b inside column a."""
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            known = ", ".join(value) if isinstance(value, Mapping) else "none"
            raise ValueError(
                f"there is no column {path!r}; there are {known}. The set has changed since the "
                "course's table was written: give an older revision, or correct the table"
            )
        value = value[name]
    return value


def _fill(template: str, row: Row) -> str:
    """The template with the columns' values; the texts of a list are joined by line breaks."""
    parts = []
    for text, name, _, _ in string.Formatter().parse(template):
        parts.append(text)
        if name is not None:
            value = _column(row, name)
            parts.append("\n".join(map(str, value)) if isinstance(value, list) else str(value))
    return "".join(parts).strip()


def _options(entry: PublicSet, row: Row) -> tuple[str, ...]:
    if entry.labels:
        return entry.labels
    if entry.option_columns:
        options = [_column(row, name) for name in entry.option_columns]
    else:
        options = _column(row, entry.options)
    if (
        not isinstance(options, list)
        or len(options) < 2
        or not all(_is_text(option) for option in options)
    ):
        raise ValueError(f"the options are {options!r:.80}: expected two or more texts")
    return tuple(options)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _right_option(entry: PublicSet, row: Row, options: tuple[str, ...]) -> int:
    value = _column(row, entry.answer)
    if value in (-1, "", None) and value is not False:
        raise ValueError(
            f"column {entry.answer!r} is {value!r}: this split keeps its answers back. Use a split "
            f"with answers, such as {entry.split!r}"
        )
    index = None
    if entry.coding == "boolean" and isinstance(value, bool):
        index = int(value)
    elif entry.coding == "index" and isinstance(value, int) and not isinstance(value, bool):
        index = value
    elif entry.coding == "letter" and isinstance(value, str) and value in LETTERS:
        index = LETTERS.index(value)
    elif entry.coding == "text" and value in options:
        index = options.index(value)
    if index is None or not 0 <= index < len(options):
        raise ValueError(
            f"column {entry.answer!r} is {value!r}, which names none of the {len(options)} options "
            f"as {entry.coding}"
        )
    return index


def _written_answer(entry: PublicSet, row: Row) -> str:
    value = str(_column(row, entry.answer))
    if entry.pattern:
        match = re.search(entry.pattern, value)
        if match is None:
            raise ValueError(
                f"column {entry.answer!r} is {value!r:.80}, without what {entry.pattern!r} finds"
            )
        value = match[1]
    if not value.strip():
        raise ValueError(f"column {entry.answer!r} is empty: this split keeps its answers back")
    return value.strip()
