"""Files of texts to score: one text a line, or JSON lines::

    {"prediction": "a cat sat", "references": ["the cat sat", "a cat was sitting"]}
    {"text": "Any text."}
    {"prompt": "What is ice?", "answer": "Frozen water."}

A name that ends in .jsonl means JSON lines; so does a first line that is an object with one of
"prediction", "text" and "prompt". White space at a line's end is dropped, as in sacrebleu.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_pkg.common.errors import CourseError
from course_pkg.common.json_reading import parse_json

JSON_LINES = (".jsonl", ".ndjson")
FIELDS = ("prediction", "text", "prompt")
STANDARD_INPUT = "standard input"
TYPING = "reading texts from the terminal, until Ctrl-D; -i names a file instead"


class TextFileError(CourseError, ValueError):
    """A file of texts can't be used; the message names the file, and the line."""


@dataclass(frozen=True)
class FileLine:
    """One line of a file. place: file and line, for messages. fields: of a JSON object."""

    place: str
    fields: Mapping[str, Any]

    def text(self, field: str) -> str:
        """The text of a field. Raises TextFileError if it is absent or something else."""
        value = self.fields.get(field)
        if not isinstance(value, str):
            problem = f"it is {value!r:.60}" if field in self.fields else "it has none"
            raise TextFileError(f'{self.place}: the field "{field}" must be a text, but {problem}')
        return value

    def texts(self, *names: str) -> tuple[str, ...] | None:
        """The text or list of texts of the first of these fields that it has; None without one."""
        value = next((self.fields[name] for name in names if name in self.fields), None)
        if value is None:
            return None
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            raise TextFileError(
                f'{self.place}: "{names[0]}" must be a text or a list of texts, got {value!r:.60}'
            )
        return tuple(texts)


@dataclass(frozen=True)
class ScoredTexts:
    """What one system wrote: n texts, and n lists of references or n prompts, if there are any."""

    name: str
    hypotheses: tuple[str, ...]
    references: tuple[tuple[str, ...], ...] = ()
    prompts: tuple[str, ...] = ()


def read_scored(
    source: Path | None, references: Sequence[Path] = (), encoding: str = "utf-8"
) -> ScoredTexts:
    """Read a system's texts (None: standard input) and references, in files or its JSON lines."""
    name = _name(source)
    records = read_records(source, encoding)
    hypotheses = tuple(record.text("prediction") for record in records)
    own = [record.texts("references", "reference") for record in records]
    if not references:
        if None in own:
            raise TextFileError(
                f"{records[own.index(None)].place}, has no references: give files of references "
                'before -i, or JSON lines with "prediction" and "references"'
            )
        return ScoredTexts(name, hypotheses, tuple(own))
    if any(own):
        raise TextFileError(f"{name} has references of its own: give no files of references")
    columns = [_lines(path, encoding) for path in references]
    for path, column in zip(references, columns, strict=True):
        if len(column) != len(hypotheses):
            raise TextFileError(
                f"{name} has {len(hypotheses)} texts, but {path} has {len(column)}: give each "
                "text's reference on the same line"
            )
    return ScoredTexts(name, hypotheses, tuple(zip(*columns, strict=True)))


def read_texts(source: Path | None, encoding: str = "utf-8") -> ScoredTexts:
    """Read texts without references: lines, or JSON lines with "text", or prompt and answer."""
    records = read_records(source, encoding)
    answers = "prompt" in records[0].fields
    texts = tuple(record.text("answer" if answers else "text") for record in records)
    prompts = tuple(record.text("prompt") for record in records) if answers else ()
    return ScoredTexts(_name(source), texts, prompts=prompts)


def read_records(source: Path | None, encoding: str = "utf-8") -> list[FileLine]:
    """Read the lines of a file. A plain line is the text of the fields "prediction" and "text"."""
    name = _name(source)
    lines = _lines(source, encoding)
    as_json = _is_json(source, lines[0])
    records = []
    for number, line in enumerate(lines, start=1):
        place = f"{name}, line {number}"
        if not as_json:
            records.append(FileLine(place, {"prediction": line, "text": line}))
        elif line:
            records.append(FileLine(place, _object(line, place)))
    return records


def _name(source: Path | None) -> str:
    return STANDARD_INPUT if source is None else str(source)


def _is_json(source: Path | None, first: str) -> bool:
    if source is not None and source.suffix in JSON_LINES:
        return True
    try:
        record = parse_json(first)
    except ValueError:
        return False
    return isinstance(record, dict) and any(field in record for field in FIELDS)


def _lines(source: Path | None, encoding: str) -> list[str]:
    name = _name(source)
    try:
        if source is None and sys.stdin.isatty():
            print(TYPING, file=sys.stderr, flush=True)
        data = sys.stdin.buffer.read() if source is None else source.read_bytes()
        text = data.decode(encoding)
    except FileNotFoundError:
        raise TextFileError(f"there is no file {name}") from None
    except IsADirectoryError:
        raise TextFileError(f"{name} is a folder: give a file") from None
    except LookupError:
        raise TextFileError(f"there is no encoding {encoding!r}: utf-8 is usual") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TextFileError(
            f"{name}, line {line}, is not {encoding}: save it as UTF-8, or name its encoding"
        ) from None
    if not text.strip():
        raise TextFileError(f"{name} is empty: it must have one text on each line")
    lines = text.removesuffix("\n").split("\n")
    return [line.rstrip() for line in lines]


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise TextFileError(f"{place}, is not JSON ({error}): write one object a line") from None
    if not isinstance(record, dict):
        raise TextFileError(f"{place}, is not a JSON object, but {line:.40}")
    return record
