"""Loading a public test set with the library `datasets`, which is needed only here.

The commit that was loaded is part of the result, since sets are corrected on the hub. Nothing of
the course's book, tests or exercises loads one. Chapter: evaluation/contamination.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from course_pkg.common.arguments import require_integer
from course_pkg.evaluation.answer_extraction import known_rules
from course_pkg.evaluation.items import Item
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.evaluation.public_sets.catalog import PublicSet, find_public_set
from course_pkg.evaluation.public_sets.rows import checked_row, item_of_row
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.task import CHOICE, Task

PREFIX = "public:"  # before a set's name, where a task's name is expected
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class LoadedSet:
    """A split of a public set: items for `course eval`, or rows of a set of kind "rows".

    revision: the commit on the hub, or what was asked for if unknown.
    """

    entry: PublicSet
    split: str
    revision: str
    items: tuple[Item, ...]
    rows: tuple[Mapping[str, Any], ...]


def load_public_set(
    name: str,
    *,
    config: str | None = None,
    split: str | None = None,
    revision: str = "main",
    limit: int | None = None,
) -> LoadedSet:
    """Load a set of the table from the hub, or from the cache of an earlier load. Raises TaskError.

    Args:
        config, split: None for those of the table; C-Eval's configs are its subjects.
        revision: a commit, a tag or a branch.
        limit: read so many rows only, the first ones.
    """
    entry = find_public_set(name)
    if config is not None:
        entry = replace(entry, config=config)
    if limit is not None:
        require_integer(limit, "limit")
    chosen = split or entry.split
    data = _load(entry, chosen, revision)
    rows = data if limit is None else data.select(range(min(limit, len(data))))
    if len(rows) == 0:
        raise TaskError(f"{name} ({entry.hub}), split {chosen!r}, has no rows: give another split")
    commit = _commit(data) or revision
    if entry.kind == "rows":
        checked = tuple(checked_row(entry, row, n, chosen) for n, row in enumerate(rows))
        return LoadedSet(entry, chosen, commit, (), checked)
    items = tuple(item_of_row(entry, row, n, chosen) for n, row in enumerate(rows))
    return LoadedSet(entry, chosen, commit, items, ())


def public_task(name: str, **options: Any) -> Task:
    """A public set as a task for `run_task`, zero-shot. Raises TaskError.

    Args:
        name: with or without "public:" before it, and with or without "/" and a config after it.
        options: of `load_public_set`.
    """
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
    load_dataset = _library()
    try:
        return load_dataset(entry.hub, entry.config, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:  # ConnectionError is an OSError
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TaskError(
            f"{entry.name} ({entry.hub}, split {split!r}, revision {revision!r}) can't be loaded: "
            f"{reason[:300]}. It needs a network, or a cache that has the set: see `datasets`"
        ) from None


def _library() -> Callable[..., Sequence[Mapping[str, Any]]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise TaskError(
            "public sets are loaded by the library datasets, which isn't installed: "
            'pip install "course-pkg[public]"'
        ) from None
    return load_dataset


def _commit(data: Any) -> str | None:
    """The commit that a data set was loaded from: a folder in the paths of its cached files."""
    paths = [PurePath(file["filename"]) for file in data.cache_files]
    commits = {part for path in paths for part in path.parts if _COMMIT.fullmatch(part)}
    return commits.pop() if len(commits) == 1 else None
