"""Files of records: JSON in the usual shapes, and tables with a line of column names.

What is read: one JSON value on each line; values over several lines, one after the other; an array;
`{"data": […]}`, or another name for the only field; CSV and TSV.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_pkg.finetuning.conversations import RecordError

BOM = b"\xef\xbb\xbf"  # some editors write these bytes in front of UTF-8
BLANKS = re.compile(r"[ \t\r\n]*")  # what JSON allows between values
CHATS = {"messages", "conversations"}  # fields with the turns of one record
JSON_FILES = (".jsonl", ".json", ".ndjson")
TABLES = (".csv", ".tsv")
SUFFIXES = (*JSON_FILES, *TABLES)
FIELD = 10 * 2**20  # characters of a cell


def file_records(path: str | os.PathLike) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each record in a file; lines count from 1.

    In place of a record that can't be read, or that has a field twice, the value is a RecordError,
    so a broken record doesn't hide the others. Nothing after a syntax error in an array can be
    read.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        expected = ", ".join(SUFFIXES)
        raise ValueError(f"{path} must be one of {expected}; rename or convert it")
    data = path.read_bytes().removeprefix(BOM)
    yield from _table(data, suffix) if suffix in TABLES else _json(data)


def _table(data: bytes, suffix: str) -> Iterator[tuple[int, Any]]:
    """The rows of a table, by the names in its first line."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, _unreadable(error)
        return
    head = text.partition("\n")[0]
    comma = "\t" if suffix == ".tsv" else max(",;\t", key=head.count)
    csv.field_size_limit(FIELD)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=comma, strict=True)
    names: list[str] | None = None
    line = 1
    try:
        for row in rows:
            if names is None:
                names = [name.strip() for name in row]
            elif row:
                yield line, _row(names, row)
            line = rows.line_num + 1
    except csv.Error as error:
        yield line, RecordError("invalid table", f"{error}; the rest of the file can't be read")


def _row(names: list[str], row: list[str]) -> dict[str, str] | RecordError:
    if len(row) != len(names):
        counts = f"{len(row)} cells, and the first line names {len(names)} columns"
        return RecordError("invalid table", f"{counts}; put quotes around a cell with separators")
    return _object(list(zip(names, row, strict=True)))


def _json(data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if data.lstrip().startswith(b"["):
            yield data.count(b"\n", 0, error.start) + 1, _unreadable(error)
            return
        yield from _lines(data)  # which may be right except for one
        return
    start = _skip(text, 0)
    if text[start : start + 1] == "[":
        yield from _values(text, start + 1, closing="]")
        return
    try:
        first, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        yield from _lines(data)
        return
    if _is_wrapped(first) and not text[end:].strip():
        yield from _values(text, text.index("[") + 1, closing="]}")
    elif "\n" in text[start:end]:
        yield from _values(text, start)
    else:
        yield from _lines(data)


def _is_wrapped(value: Any) -> bool:
    """Whether an object is `{"data": […]}`, under any name but those of a chat's turns."""
    if not isinstance(value, dict) or len(value) != 1 or value.keys() & CHATS:
        return False
    [inner] = value.values()
    return isinstance(inner, list) and all(isinstance(item, dict) for item in inner)


def _lines(data: bytes) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, _value(line.rstrip(b"\r"))


def _values(text: str, start: int, closing: str = "") -> Iterator[tuple[int, Any]]:
    """The values from `start` on; closing: the brackets at the end of an array of them."""
    position = _skip(text, start)
    line = 1
    counted = 0  # the characters before which line breaks have been counted
    more = not text.startswith("]", position) if closing else position < len(text)
    while more:
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, position = DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield getattr(error, "lineno", line), _end(_unreadable(error).detail)
            return
        yield line, value
        position = _skip(text, position)
        more = position < len(text)
        if closing:
            following = text[position : position + 1]
            if following not in ("]", ","):
                yield text.count("\n", 0, position) + 1, _end("expected ',' or ']'")
                return
            more = following == ","
            position = _skip(text, position + 1) if more else position
    for bracket in closing:
        if text.startswith(bracket, position):
            position = _skip(text, position + 1)
    if position < len(text):
        yield text.count("\n", 0, position) + 1, _end("expected the end of the file")


def _value(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return _unreadable(error)


def _skip(text: str, position: int) -> int:
    return BLANKS.match(text, position).end()


def _end(detail: str) -> RecordError:
    return RecordError("invalid JSON", f"{detail}; the rest of the file can't be read")


def _unreadable(error: Exception) -> RecordError:
    if isinstance(error, UnicodeDecodeError):
        detail = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        return RecordError("invalid UTF-8", detail)
    if isinstance(error, json.JSONDecodeError):
        return RecordError("invalid JSON", _syntax(error))
    if isinstance(error, RecursionError):
        return RecordError("invalid JSON", "nested too deeply")
    return RecordError("invalid JSON", "a number has too many digits; put it in quotes")


def _syntax(error: json.JSONDecodeError) -> str:
    """What is wrong, with the usual causes: a comma too many, and a line that is no JSON at all."""
    rest = error.doc[error.pos :].strip()
    if rest == ",":
        return f"the comma at column {error.colno} is one too many"
    if rest.startswith("]") and error.doc[: error.pos].rstrip().endswith(","):
        return f"the comma in front of the ] at column {error.colno} is one too many"
    detail = f"{error.msg} at column {error.colno}"
    return f"{detail}; the line begins {rest[:20]!r}" if error.pos == 0 else detail


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RecordError:
    """A JSON object; if it has a field twice, an error, because a dict would lose one of them."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return RecordError("duplicate field", f"{twice!r:.80} occurs twice")
    return fields


DECODER = json.JSONDecoder(object_pairs_hook=_object)
