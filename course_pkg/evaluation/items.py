"""Items of a task: JSON lines, each one question with its options or its accepted answers::

    {"id": "a1", "question": "What is ice?", "options": ["water", "air"], "answer": 0}
    {"id": "b1", "question": "What is 2 + 3?", "answers": ["5", "five"]}

`answer` is the index of the right option, from 0. `id` is optional, and so is `group`, which
related items share. All fields with a text or a number fill the task's template.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_pkg.common.arguments import require_integer, require_list, require_string
from course_pkg.common.json_reading import parse_json
from course_pkg.evaluation.run_errors import TaskError

LETTERS = "ABCDEFGHIJ"  # of options that are listed in a prompt


@dataclass(frozen=True)
class Item:
    """A question of a task: fields for the template; options and answer, or accepted answers."""

    id: str
    fields: Mapping[str, str]
    options: tuple[str, ...] = ()
    answer: int | None = None
    answers: tuple[str, ...] = ()
    group: str | None = None
    line: int = 0

    @property
    def solution(self) -> str:
        """The right option, or the first of the accepted answers: what an example shows."""
        return self.answers[0] if self.answer is None else self.options[self.answer]

    @property
    def content(self) -> dict[str, Any]:
        """All that was asked, as JSON has it; the place in the file is left out."""
        return {
            "id": self.id,
            "group": self.group,
            "fields": dict(self.fields),
            "options": list(self.options),
            "answer": self.answer,
            "answers": list(self.answers),
        }


def read_items(path: Path, multiple_choice: bool) -> tuple[Item, ...]:
    """Read a file of items with options, or with accepted answers. Raises TaskError with a line."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except FileNotFoundError:
        raise TaskError(f"there is no file of items {path}: correct `items`") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from None
    items: dict[str, Item] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = _item(_record(line), number, multiple_choice)
            if other := items.get(item.id):
                raise ValueError(f"the id {item.id!r} is also in line {other.line}: change one")
        except (TypeError, ValueError) as error:
            raise TaskError(f"{path}, line {number}: {error}") from None
        items[item.id] = item
    if not items:
        raise TaskError(f"{path} has no items: write one JSON object on each line")
    return tuple(items.values())


def _record(line: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"the line is not JSON ({error}): write one object on each line") from None
    if not isinstance(record, dict):
        raise ValueError(f'expected an object such as {{"question": "…"}}, got {record!r:.80}')
    return record


def _item(record: dict[str, Any], line: int, multiple_choice: bool) -> Item:
    group = record.get("group")
    number = require_string(str(record.get("id", line)), "id")
    if group is not None:
        require_string(group, "group", "write a text, or leave it out")
    fields = {}
    for name, value in record.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, str) or is_number:
            fields[name] = str(value)
    fields.pop("answer", None)  # a template must not show it
    if not multiple_choice:
        answers = _texts(record, "answers", least=1)
        return Item(number, fields, answers=answers, group=group, line=line)
    options = _texts(record, "options", least=2)
    if "answer" not in record:
        raise ValueError("the item has no 'answer': give the index of the right option, from 0")
    answer = require_integer(record["answer"], "answer, the index of the right option", 0)
    if answer >= len(options):
        raise ValueError(
            f"answer is {answer}, but there are {len(options)} options: count them from 0"
        )
    return Item(number, fields, options, answer, group=group, line=line)


def _texts(record: dict[str, Any], name: str, least: int) -> tuple[str, ...]:
    fix = f"write a list of {least} or more texts"
    if name not in record:
        raise ValueError(f"the item has no {name!r}: {fix}")
    texts = require_list(record[name], name, fix)
    for number, text in enumerate(texts):
        if not require_string(text, f"{name}[{number}]", fix).strip():
            raise ValueError(f"{name}[{number}] is blank: {fix}")
    if len(texts) < least:
        raise ValueError(f"{name} has {len(texts)}: {fix}")
    if len(set(texts)) < len(texts):
        raise ValueError(f"{name} has the same text twice: {fix}, all different")
    return tuple(texts)
