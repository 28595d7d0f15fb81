"""Read instruction data as conversations, from files, lists and data sets, in the usual formats.

- "alpaca": `instruction`, perhaps `input`, `output` (Taori et al. 2023);
- "prompt": `prompt`, perhaps `input`, and `completion` or `response`, the form of this course;
- "messages": a list `messages` of objects with `role` and `content`;
- "sharegpt": a list `conversations` of objects with `from` (human, gpt, system) and `value`.

Each may have `id`, `system` and `history`. An answer of a list with `"weight": 0` or
`"train": false` is read and not learned.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_pkg.finetuning.conversations import (
    Conversation,
    Message,
    Problem,
    ProblemReport,
    RecordError,
)
from course_pkg.finetuning.record_files import file_records

# The field that tells the format; the first one that a record has decides.
MARKS = ("messages", "conversations", "instruction", "prompt")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
READ = {"id", "system", "history"}  # fields of a record of any format
UNLEARNED = "field that can't be learned"
TURN_MARKS = ("weight", "train", "loss")  # each says whether a turn is learned
# What an example means depends on these, and the text that is learned can't have them.
UNLEARNABLE = {
    *("tools", "functions", "tool_calls", "function_call", "documents", "chat_template_kwargs"),
    *("reasoning_content", "reasoning", "thinking", "train_detail"),
    *("image", "images", "video", "videos", "audio", "audios"),
    *("chosen", "rejected", "rejected_response"),
}


@dataclass(frozen=True)
class ReadResult:
    """The valid conversations in the source's order, and a report of everything left out.

    Attributes:
        unused: the names of fields that were not read, those of turns after their list's.
    """

    conversations: tuple[Conversation, ...]
    report: ProblemReport
    unused: tuple[str, ...] = ()


def read_conversations(
    source: str | os.PathLike | Iterable[Mapping[str, Any]], *, strict: bool = False
) -> ReadResult:
    """Read conversations, and report each record that isn't one.

    The report names lines of a file ("line 4", from 1) or indices of a list ("record 3", from 0);
    that is also the id of a conversation whose record has none.

    Args:
        source: a file (`record_files`), a list of dicts, or one split of a `datasets` data set. The
            fields of each record decide about its format; lists of messages come first.
        strict: raise a ValueError at the first problem.
    """
    name = f"{os.fspath(source)}, " if isinstance(source, str | os.PathLike) else ""
    return read_located(_located(source), strict=strict, name=name)


def read_located(
    records: Iterable[tuple[str, Any]], *, strict: bool = False, name: str = ""
) -> ReadResult:
    """Read conversations from pairs of a place and a record. name: of the source, for errors."""
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    unused: dict[str, None] = {}  # in the order of their occurrence
    for where, record in records:
        try:
            conversations.append(_conversation(record, where, unused))
        except RecordError as error:
            problem = Problem(where, error.kind, error.detail)
            if strict:
                raise ValueError(f"{name}{problem}") from None
            problems.append(problem)
    total = len(conversations) + len(problems)
    report = ProblemReport(total, len(conversations), tuple(problems))
    return ReadResult(tuple(conversations), report, tuple(unused))


def _located(source: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(source, str | os.PathLike):
        yield from ((f"line {number}", record) for number, record in file_records(source))
    elif isinstance(source, Mapping):
        raise TypeError(
            f"source must be a list of records, got a mapping with {', '.join(map(str, source))}; "
            'choose a split, such as source["train"], or put one record into a list'
        )
    elif isinstance(source, bytes) or not isinstance(source, Iterable):
        raise TypeError(f"source must be a file or a list of dicts, got {source!r:.80}")
    else:
        yield from ((f"record {index}", record) for index, record in enumerate(source))


def _conversation(record: Any, where: str, unused: dict[str, None]) -> Conversation:
    record = _fields(record, "a record")
    mark = next((field for field in MARKS if field in record), None)
    if mark is None:
        fields = ", ".join(map(str, record)) or "no field"
        raise RecordError("missing field", f"no {', '.join(MARKS)}; found {fields:.80}")
    turns = []
    if record.get("system"):
        turns.append(Message("system", _text(record, "system")))
    turns += _history(record)
    read = {mark, *READ}
    if mark == "messages":
        turns += _listed(record, mark, "role", "content", unused)
    elif mark == "conversations":
        turns += _listed(record, mark, "from", "value", unused)
    else:
        response = "output"
        if mark == "prompt":
            response = "completion" if "completion" in record else "response"
        turns += _single_turn(record, mark, response)
        read |= {"input", response}
    if record.get("label") is False:  # as in data for KTO
        raise RecordError(UNLEARNED, '"label": false marks an answer that nobody wants')
    if record.get("weight", 1) != 1:
        raise RecordError(UNLEARNED, f"weight {record['weight']!r:.80}: every record counts once")
    _check_unused(record, read, "", unused)
    name = record.get("id")
    return Conversation(tuple(turns), str(name) if isinstance(name, str | int) else where)


def _check_unused(
    fields: Mapping[str, Any], read: Iterable[str], place: str, unused: dict[str, None]
) -> None:
    """Note the fields that are not read. Raises RecordError for one that can't be left out."""
    for field in fields.keys() - set(read):
        if field in UNLEARNABLE and fields[field] not in ("", [], {}, False):
            raise RecordError(
                UNLEARNED,
                f"{place}{field} {fields[field]!r:.60} would change what is learned; take it out, "
                "or write it into the text of a turn",
            )
    for field in fields:
        if field not in read and field not in UNLEARNABLE:
            unused.setdefault(f"{place}{field}")


def _history(record: Mapping[str, Any]) -> Iterator[Message]:
    """Earlier questions and answers, as LLaMA-Factory has them."""
    history = record.get("history", ())
    pairs = history if isinstance(history, list | tuple) else [history]
    for pair in pairs:
        fits = isinstance(pair, list | tuple) and len(pair) == 2
        if not fits or not all(isinstance(text, str) for text in pair):
            raise RecordError(
                "wrong type", f"history must have [question, answer], got {pair!r:.80}"
            )
        yield Message("user", pair[0])
        yield Message("assistant", pair[1])


def _single_turn(record: Mapping[str, Any], prompt: str, response: str) -> list[Message]:
    question = _text(record, prompt)
    answer = Message("assistant", _text(record, response))
    context = _text(record, "input") if "input" in record else ""
    if context.strip():
        question = f"{question}\n\n{context}" if question.strip() else context
    return [Message("user", question), answer]


def _listed(
    record: Mapping[str, Any], field: str, role: str, content: str, unused: dict[str, None]
) -> Iterator[Message]:
    turns = record[field]
    if not isinstance(turns, list | tuple):
        raise RecordError("wrong type", f"{field} must be a list, got {turns!r:.80}")
    for number, turn in enumerate(turns, start=1):
        fields = _fields(turn, f"turn {number}")
        place = f"turn {number}: "
        speaker = _text(fields, role, place)
        if field == "conversations":
            speaker = SHAREGPT_ROLES.get(speaker, speaker)
        try:
            _check_unused(fields, (role, content, *TURN_MARKS), f"{field}[].", unused)
            learned = _learned(fields, speaker)
        except RecordError as error:
            raise RecordError(error.kind, f"{place}{error.detail}") from None
        yield Message(speaker, _text(fields, content, place), learned)


def _learned(fields: Mapping[str, Any], speaker: str) -> bool:
    """What a turn says of whether it is learned. Raises RecordError for anything but yes and no."""
    marks = {name: fields[name] for name in TURN_MARKS if name in fields}
    for name, value in marks.items():
        if value not in (0, 1):
            raise RecordError(UNLEARNED, f"{name} {value!r:.80}: expected 0 or 1, false or true")
        if value and speaker != "assistant" and name != "weight":
            raise RecordError(UNLEARNED, f"{name} {value!r}: only answers are learned")
    return all(marks.values())


def _fields(value: Any, name: str) -> dict[str, Any]:
    """The fields of a record or a turn; a data set fills the absent ones with None."""
    if isinstance(value, RecordError):
        raise value
    if not isinstance(value, Mapping):
        raise RecordError("wrong type", f"{name} must be an object, got {value!r:.80}")
    return {field: content for field, content in value.items() if content is not None}


def _text(fields: Mapping[str, Any], field: str, place: str = "") -> str:
    if field not in fields:
        names = ", ".join(map(str, fields)) or "no field"
        raise RecordError("missing field", f"{place}no {field}; found {names:.80}")
    value = fields[field]
    if not isinstance(value, str):
        raise RecordError("wrong type", f"{place}{field} must be a string, got {value!r:.80}")
    return value
