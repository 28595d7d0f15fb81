"""From a row of a public set to an item: the question, the options, and the right answer.

Nothing is guessed: a missing column or an answer that isn't among the options is an error that
names the row and the column. Test splits without answers have labels such as -1 or "". Chapter:
evaluation/contamination.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

from course_pkg.evaluation.items import LETTERS, Item
from course_pkg.evaluation.public_sets.catalog import PublicSet
from course_pkg.evaluation.run_errors import TaskError

Row = Mapping[str, Any]


def item_of_row(entry: PublicSet, row: Row, number: int, split: str) -> Item:
    """A row as an item of a task. number: the row's place in the split, which becomes its id.

    >>> from course_pkg.evaluation.public_sets.catalog import find_public_set
    >>> row = {"question": "Is ice water?", "answer": True}
    >>> item_of_row(find_public_set("strategyqa"), row, 0, "test").solution
    'yes'
    """
    place = f"{entry.name} ({entry.hub}), split {split!r}, row {number}"
    try:
        fields = {"question": _fill(entry.question, row)}
        if entry.kind == "generation":
            return Item(str(number), fields, answers=(_written_answer(entry, row),), line=number)
        options = _options(entry, row)
        answer = _right_option(entry, row, options)
    except (TypeError, ValueError) as error:
        raise TaskError(f"{place}: {error}") from None
    return Item(str(number), fields, options, answer, line=number)


def checked_row(entry: PublicSet, row: Row, number: int, split: str) -> dict[str, Any]:
    """The columns of a set of kind "rows". Raises TaskError if one is missing."""
    try:
        return {name: _column(row, name) for name in entry.columns}
    except ValueError as error:
        place = f"{entry.name} ({entry.hub}), split {split!r}, row {number}"
        raise TaskError(f"{place}: {error}") from None


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
