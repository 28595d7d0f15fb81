"""Read instruction data as conversations, from files, lists and data sets, in the usual formats.

- "alpaca": `instruction`, perhaps `input`, `output` (Taori et al. 2023);
- "prompt": `prompt`, perhaps `input`, and `completion` or `response`, the form of this course;
- "messages": a list `messages` of objects with `role` and `content`;
- "sharegpt": a list `conversations` of objects with `from` (human, gpt, system) and `value`.

Each may have `id` and `system`, the text of a system turn. An input follows its instruction after
an empty line. A field that is null counts as absent; other fields are ignored.

Chapter: finetuning/instructions.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_pkg.finetuning.conversations import (
    Conversation,
    Message,
    Problem,
    ProblemReport,
    RecordError,
)

# The field that tells the format; the first one that a record has decides.
MARKS = ("messages", "conversations", "instruction", "prompt")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
BOM = b"\xef\xbb\xbf"  # some editors write these bytes in front of UTF-8
BLANKS = re.compile(r"[ \t\r\n]*")  # what JSON allows between values


@dataclass(frozen=True)
class ReadResult:
    """The valid conversations in the source's order, and a report of everything left out."""

    conversations: tuple[Conversation, ...]
    report: ProblemReport


def read_conversations(
    source: str | os.PathLike | Iterable[Mapping[str, Any]], *, strict: bool = False
) -> ReadResult:
    """Read conversations, and report each record that isn't one.

    source: a .json or .jsonl file, a list of dicts, or one split of a `datasets` data set. The
    fields of each record decide about its format; lists of messages come first.
    strict: raise an error at the first problem.
    The report names lines of a file ("line 4", from 1) or indices of a list ("record 3", from 0);
    that is also the id of a conversation whose record has none.
    Raises ValueError for a problem in strict mode, TypeError for another kind of source, OSError if
    the file can't be read.

    >>> print(read_conversations([{"prompt": "Why?", "response": " "}]).report)
    1 record: 0 kept, 1 problem
      1 × empty answer
          record 0: the assistant's text is ' '
    """
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    for where, record in _located(source):
        try:
            conversations.append(_conversation(record, where))
        except RecordError as error:
            problem = Problem(where, error.kind, error.detail)
            if strict:
                file = f"{os.fspath(source)}, " if isinstance(source, str | os.PathLike) else ""
                raise ValueError(f"{file}{problem}") from None
            problems.append(problem)
    total = len(conversations) + len(problems)
    report = ProblemReport(total, len(conversations), tuple(problems))
    return ReadResult(tuple(conversations), report)


def _located(source: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(source, str | os.PathLike):
        yield from ((f"line {number}", record) for number, record in json_records(source))
    elif isinstance(source, Mapping):
        raise TypeError(
            f"source must be a list of records, got a mapping with {', '.join(map(str, source))}; "
            'choose a split, such as source["train"], or put one record into a list'
        )
    elif isinstance(source, bytes) or not isinstance(source, Iterable):
        raise TypeError(f"source must be a file or a list of dicts, got {source!r:.80}")
    else:
        yield from ((f"record {index}", record) for index, record in enumerate(source))


def json_records(path: str | os.PathLike) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each record in a file; lines count from 1.

    path: a .jsonl or .json file, in any case, with one record on each line, or with one array of
    records. Blank lines are skipped. In place of a record that can't be read, or that has a field
    twice, the value is a RecordError, so a broken record doesn't hide the others. Nothing after a
    syntax error in an array can be read.
    Raises ValueError for another suffix, OSError if the file can't be read.
    """
    path = Path(path)
    if path.suffix.lower() not in (".json", ".jsonl"):
        raise ValueError(f"{path} must be a .json or a .jsonl file; rename or convert it")
    data = path.read_bytes().removeprefix(BOM)
    if data.lstrip().startswith(b"["):
        yield from _array(data)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, _value(line.rstrip(b"\r"))


def _value(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return _unreadable(error)


def _array(data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, _unreadable(error)
        return
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    position = _skip(text, text.index("[") + 1)
    line = 1
    counted = 0  # the characters before which line breaks have been counted
    following = text[position : position + 1]
    if following == "]":
        position = _skip(text, position + 1)
    while following != "]":
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield getattr(error, "lineno", line), _end(_unreadable(error).detail)
            return
        yield line, value
        position = _skip(text, position)
        following = text[position : position + 1]
        if following not in ("]", ","):
            yield text.count("\n", 0, position) + 1, _end("expected ',' or ']'")
            return
        position = _skip(text, position + 1)
    if position < len(text):
        yield text.count("\n", 0, position) + 1, _end("expected the end of the file")


def _skip(text: str, position: int) -> int:
    return BLANKS.match(text, position).end()


def _end(detail: str) -> RecordError:
    return RecordError("invalid JSON", f"{detail}; the rest of the file can't be read")


def _unreadable(error: Exception) -> RecordError:
    if isinstance(error, UnicodeDecodeError):
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        return RecordError("invalid UTF-8", found)
    if isinstance(error, json.JSONDecodeError):
        return RecordError("invalid JSON", _syntax(error))
    deep = isinstance(error, RecursionError)
    return RecordError(
        "invalid JSON", "nested too deeply" if deep else "an integer has too many digits"
    )


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


def _conversation(record: Any, where: str) -> Conversation:
    record = _fields(record, "a record")
    mark = next((field for field in MARKS if field in record), None)
    if mark is None:
        found = ", ".join(map(str, record)) or "no field"
        raise RecordError("missing field", f"no {', '.join(MARKS)}; found {found:.80}")
    turns = []
    if record.get("system"):
        turns.append(Message("system", _text(record, "system")))
    if mark == "messages":
        turns += _listed(record, mark, "role", "content")
    elif mark == "conversations":
        turns += _listed(record, mark, "from", "value")
    elif mark == "instruction":
        turns += _single_turn(record, mark, "output")
    else:
        turns += _single_turn(record, mark, "completion" if "completion" in record else "response")
    name = record.get("id")
    return Conversation(tuple(turns), str(name) if isinstance(name, str | int) else where)


def _single_turn(record: Mapping[str, Any], prompt: str, response: str) -> list[Message]:
    question = _text(record, prompt)
    turns = [Message("user", question), Message("assistant", _text(record, response))]
    context = _text(record, "input") if "input" in record else ""
    if context.strip():
        turns[0] = Message("user", f"{question}\n\n{context}")
    return turns


def _listed(record: Mapping[str, Any], field: str, role: str, content: str) -> Iterator[Message]:
    turns = record[field]
    if not isinstance(turns, list | tuple):
        raise RecordError("wrong type", f"{field} must be a list, got {turns!r:.80}")
    for number, turn in enumerate(turns, start=1):
        fields = _fields(turn, f"turn {number}")
        speaker = _text(fields, role, number)
        if field == "conversations":
            speaker = SHAREGPT_ROLES.get(speaker, speaker)
        yield Message(speaker, _text(fields, content, number))


def _fields(value: Any, name: str) -> dict[str, Any]:
    """The fields of a record or a turn; a data set fills the absent ones with None."""
    if isinstance(value, RecordError):
        raise value
    if not isinstance(value, Mapping):
        raise RecordError("wrong type", f"{name} must be an object, got {value!r:.80}")
    return {field: content for field, content in value.items() if content is not None}


def _text(fields: Mapping[str, Any], field: str, turn: int | None = None) -> str:
    place = "" if turn is None else f"turn {turn}: "
    if field not in fields:
        found = ", ".join(map(str, fields)) or "no field"
        raise RecordError("missing field", f"{place}no {field}; found {found:.80}")
    value = fields[field]
    if not isinstance(value, str):
        raise RecordError("wrong type", f"{place}{field} must be a string, got {value!r:.80}")
    return value
