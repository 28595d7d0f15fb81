"""A file of your own examples: its format is recognized, and every record must have it.

`records` leaves out what it can't read, and reports it. Here the first record that doesn't fit is
an error with its line, so that no example is lost unnoticed.
"""

import hashlib
import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from course_pkg.finetuning.conversations import Conversation, RecordError
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.record_files import BOM, SUFFIXES, file_records
from course_pkg.finetuning.records import MARKS, read_located

PLAIN = "plain text"
TEXT = "text"  # the field of a record of plain text
# Each format by the field that tells it, in the order of `records`, and how a record looks.
FORMATS = {
    "messages": ("chat messages", '{"messages": [{"role": "user", "content": "…"}, …]}'),
    "conversations": ("ShareGPT", '{"conversations": [{"from": "human", "value": "…"}, …]}'),
    "instruction": ("Alpaca", '{"instruction": "…", "input": "…", "output": "…"}'),
    "prompt": ("prompt and completion", '{"prompt": "…", "completion": "…"}'),
    TEXT: (PLAIN, '{"text": "…"}'),
}
assert tuple(FORMATS) == (*MARKS, TEXT)
OTHER_FIELDS = 'or name its fields: --prompt "{subject}" --response "{reply}"'
SHOWN = 80  # characters of a record in a message
CONVERT = (
    "In Python: import pandas; pandas.read_{kind}({path!r}).to_json({new!r}, orient='records', "
    "lines=True)"
)
CONVERTED = {".parquet": "parquet", ".xlsx": "excel", ".feather": "feather"}


class Columns:
    """Two texts with the names of fields in braces: what is asked, and what is answered.

    `\\n` in a template is a line break, because a shell passes it on as it is. A field that is null
    or absent is an error; one may be a number.
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
    return [(text.replace("\\n", "\n").replace("\\t", "\t"), name) for text, name, _, _ in parts]


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    names = ", ".join(map(str, record))
    if value is None:
        raise RecordError("missing field", f"no {name}; found {names:.80}")
    raise RecordError("wrong type", f"{name} must be a text or a number, got {value!r:.80}")


@dataclass(frozen=True)
class PlainText:
    """A text whose every token is learned."""

    text: str


FileExample = Conversation | PlainText


@dataclass(frozen=True)
class DataFile:
    """A file's examples in their order, and the line of each.

    Attributes:
        sha256: of the file's bytes.
        unused: the names of fields that were not read.
    """

    path: Path
    format: str
    examples: tuple[FileExample, ...]
    lines: tuple[int, ...]
    sha256: str
    unused: tuple[str, ...] = ()


def read_data(path: str | os.PathLike, columns: Columns | None = None) -> DataFile:
    """Read a file of which all records have one format.

    It has one of the SUFFIXES, or is plain text (.txt), with empty lines between the examples.
    Nothing is left out: a FinetuneError names the line of the first record that doesn't fit.

    Args:
        columns: how a prompt and a response are made of a record's fields.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*SUFFIXES, ".txt") and not path.is_dir():
        raise FinetuneError(_other_kind(path, suffix))
    try:
        content = path.read_bytes()
        if suffix == ".txt":
            if columns is not None:
                raise FinetuneError("line 1: a text has no columns for --prompt and --response")
            format, examples, lines, unused = PLAIN, *_text_file(content), ()
        else:
            format, examples, lines, unused = _record_file(path, columns)
    except FileNotFoundError:
        raise FinetuneError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise FinetuneError(f"{path} is a folder: give a file") from None
    except FinetuneError as error:
        raise FinetuneError(f"{path}, {error}") from None
    if not examples:
        raise FinetuneError(f"{path} has no example; one record on each line, such as\n{_wanted()}")
    sha256 = hashlib.sha256(content).hexdigest()
    return DataFile(path, format, tuple(examples), tuple(lines), sha256, unused)


def _other_kind(path: Path, suffix: str) -> str:
    text = f"{path}: expected a {', '.join(SUFFIXES)} or .txt file"
    if kind := CONVERTED.get(suffix):
        new = str(path.with_suffix(".jsonl"))
        return f"{text}. {CONVERT.format(kind=kind, path=str(path), new=new)}"
    return f"{text}; one record on each line, such as\n{_wanted()}"


def _record_file(
    path: Path, columns: Columns | None
) -> tuple[str, Sequence[FileExample], Sequence[int], tuple[str, ...]]:
    """The format, the examples and the lines of a file of records, and the fields not read."""
    records: list[tuple[int, Any]] = []
    first: tuple[int, str] | None = None  # the line and the mark of the first record
    problems: list[str] = []
    for line, record in file_records(path):
        try:
            if columns is not None:
                record = columns.fill(record)
            mark = _mark(record)
            if first is None:
                first = line, mark
            if mark != first[1]:
                raise RecordError(
                    "another format",
                    f"it is {FORMATS[mark][0]}, and line {first[0]} is {FORMATS[first[1]][0]}; "
                    "put one format into one file",
                )
            records.append((line, _plain_text(record) if mark == TEXT else record))
        except RecordError as error:
            fix = "; save the file as UTF-8" if error.kind == "invalid UTF-8" else ""
            problems.append(f"line {line}: {error}{fix}")
    if problems:
        raise _first_of(problems)
    if first is None:
        return "", (), (), ()
    name = FORMATS[first[1]][0]
    lines = [line for line, _ in records]
    if first[1] == TEXT:
        return name, [text for _, text in records], lines, ()
    read = read_located((f"line {line}", record) for line, record in records)
    if read.report.problems:
        raise _first_of([str(problem) for problem in read.report.problems])
    unused = columns.unused if columns is not None else read.unused
    return name, read.conversations, lines, unused


def _mark(record: Any) -> str:
    if isinstance(record, RecordError):
        raise record
    fields = record if isinstance(record, Mapping) else {}
    mark = next((field for field in FORMATS if fields.get(field) is not None), None)
    if mark is None:
        raise RecordError("no format is recognized", f"{_short(record)}; expected\n{_wanted()}")
    return mark


def _plain_text(record: Mapping[str, Any]) -> PlainText:
    text = record[TEXT]
    if not isinstance(text, str):
        raise RecordError("wrong type", f"{TEXT} must be a string, got {text!r:.80}")
    if not text.strip():
        raise RecordError("blank text", f"it is {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError("invalid text", f"half of a character at {error.start}") from None
    return PlainText(text)


def _text_file(content: bytes) -> tuple[list[PlainText], list[int]]:
    """The examples of plain text, one between empty lines, and the first line of each."""
    try:
        text = content.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FinetuneError(f"line {line}: not UTF-8; save the file as UTF-8") from None
    texts: list[PlainText] = []
    firsts: list[int] = []
    numbered = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    for has_text, group in groupby(numbered, key=lambda pair: bool(pair[1].strip())):
        if has_text:
            numbers, lines = zip(*group, strict=True)
            firsts.append(numbers[0])
            texts.append(PlainText("\n".join(lines)))
    return texts, firsts


def _first_of(problems: list[str]) -> FinetuneError:
    more = len(problems) - 1
    return FinetuneError(problems[0] + (f"\n({more} more like this)" if more else ""))


def _short(value: Any) -> str:
    content = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)
    kind = "the fields are " if isinstance(value, Mapping) else "it is "
    return f"{kind}{content:.{SHOWN}}"


def _wanted() -> str:
    """The formats, a line for each, and the options for fields of other names."""
    return "\n".join([*(f"  {example}" for _, example in FORMATS.values()), OTHER_FIELDS])
