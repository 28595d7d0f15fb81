"""JSON and JSON Lines files, record by record, each with its line number.

A broken record does not hide the others: it comes out as a RecordError in place of its value.

Chapter: finetuning/instructions.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_pkg.finetuning.problems import RecordError

BOM = b"\xef\xbb\xbf"  # some editors write these bytes in front of UTF-8
BLANKS = re.compile(r"[ \t\r\n]*")  # what JSON allows between values


def json_records(path: str | os.PathLike) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each record in a file; lines count from 1.

    path: a .jsonl file has one record on each line; a .json file has that too, or one array of
    records. Blank lines are skipped. In place of a record that can't be read, or that has a field
    twice, the value is a RecordError. Nothing after a syntax error in an array can be read.
    Raises ValueError for another suffix, OSError if the file can't be read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.jsonl")
    ...     _ = path.write_text('{"id": 1}\\n\\n{"id": \\n')
    ...     list(json_records(path))
    [(1, {'id': 1}), (3, RecordError('invalid JSON: Expecting value at column 8'))]
    """
    path = Path(path)
    if path.suffix not in (".json", ".jsonl"):
        raise ValueError(f"{path} must be a .json or a .jsonl file; rename or convert it")
    data = path.read_bytes().removeprefix(BOM)
    if path.suffix == ".json" and data.lstrip().startswith(b"["):
        yield from _array(data)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, _value(line.rstrip(b"\r"))


def _value(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return _record_error(error)


def _array(data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, _record_error(error)
        return
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    position, line, counted = _skip(text, text.index("[") + 1), 1, 0
    following = text[position : position + 1]
    if following == "]":
        position = _skip(text, position + 1)
    while following != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield getattr(error, "lineno", line), _unreadable(_record_error(error).detail)
            return
        yield line, value
        position = _skip(text, position)
        following = text[position : position + 1]
        if following not in ("]", ","):
            yield text.count("\n", 0, position) + 1, _unreadable("expected ',' or ']'")
            return
        position = _skip(text, position + 1)
    if position < len(text):
        yield text.count("\n", 0, position) + 1, _unreadable("expected the end of the file")


def _skip(text: str, position: int) -> int:
    return BLANKS.match(text, position).end()


def _unreadable(detail: str) -> RecordError:
    return RecordError("invalid JSON", f"{detail}; the rest of the file can't be read")


def _record_error(error: Exception) -> RecordError:
    if isinstance(error, UnicodeDecodeError):
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        return RecordError("invalid UTF-8", found)
    if isinstance(error, json.JSONDecodeError):
        return RecordError("invalid JSON", f"{error.msg} at column {error.colno}")
    return RecordError("invalid JSON", "nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RecordError:
    """A JSON object; if it has a field twice, an error, because a dict would lose one of them."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return RecordError("duplicate field", f"{twice!r:.80} occurs twice")
    return fields
