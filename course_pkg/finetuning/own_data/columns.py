"""Records with fields of any names as prompts and responses, by two templates.

Chapter: finetuning/chat.
"""

import string
from collections.abc import Mapping
from typing import Any

from course_pkg.finetuning.conversations import RecordError
from course_pkg.finetuning.own_data.errors import FinetuneError


class Columns:
    """Two texts with the names of fields in braces: what is asked, and what is answered.

    `\\n` in a template is a line break, because a shell passes it on as it is. A field that is null
    or absent is an error; one may be a number. Raises FinetuneError for a template that is not well
    formed or has no field.

    >>> columns = Columns("{subject}\\n{body}", "{reply}")
    >>> columns.fill({"subject": "Hi", "body": "Why?", "reply": "So.", "id": 3})
    {'prompt': 'Hi\\nWhy?', 'completion': 'So.'}
    >>> columns.unused
    ('id',)
    """

    def __init__(self, prompt: str, response: str):
        self._templates = {"prompt": _parts(prompt, "--prompt")}
        self._templates["completion"] = _parts(response, "--response")
        self._names = {name for parts in self._templates.values() for _, name in parts if name}
        self._unused: dict[str, None] = {}

    @property
    def unused(self) -> tuple[str, ...]:
        """The fields of the records so far that no template names."""
        return tuple(self._unused)

    def fill(self, record: Any) -> dict[str, str]:
        """The record in the format of prompts and completions.

        Raises RecordError for one that lacks a field, or is no object.
        """
        if isinstance(record, RecordError):
            raise record
        if not isinstance(record, Mapping):
            raise RecordError("wrong type", f"a record must be an object, got {record!r:.80}")
        self._unused |= dict.fromkeys(name for name in record if name not in self._names)
        return {
            field: "".join(text + (_text(record, name) if name else "") for text, name in parts)
            for field, parts in self._templates.items()
        }


def _parts(template: str, option: str) -> list[tuple[str, str | None]]:
    """Texts, each with the name of the field behind it."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise FinetuneError(f"{option} {template!r:.80}: {error}; write {{{{ for a brace") from None
    for _, name, how, conversion in parts:
        if how or conversion or name == "":
            raise FinetuneError(f"{option} {template!r:.80}: expected names of fields in braces")
    if not any(name for _, name, _, _ in parts):
        raise FinetuneError(f"{option} {template!r:.80}: it names no field, such as {{question}}")
    return [(_unescaped(text), name) for text, name, _, _ in parts]


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    found = ", ".join(map(str, record))
    if value is None:
        raise RecordError("missing field", f"no {name}; found {found:.80}")
    raise RecordError("wrong type", f"{name} must be a text or a number, got {value!r:.80}")
