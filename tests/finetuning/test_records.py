"""Instruction data in every format, from every source; what can't be read is reported."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

import course_pkg
from course_pkg.finetuning.conversations import Message, RecordError
from course_pkg.finetuning.record_files import file_records
from course_pkg.finetuning.records import read_conversations
from course_pkg.pages.datasets import load_examples
from tests.tables import each_row

ALPACA = {"instruction": "Translate", "input": "你好", "output": "Hello"}
CHAT = {
    "messages": [
        {"role": "system", "content": "Rhyme."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Pie"},
    ]
}
SHAREGPT = {
    "id": 7,
    "conversations": [
        {"from": "system", "value": "Rhyme."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Pie"},
    ],
}
RHYME = (Message("system", "Rhyme."), Message("user", "Hi"), Message("assistant", "Pie"))
HI = (Message("user", "Hi"), Message("assistant", "Yo"))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(result):
    return [(problem.where, problem.kind) for problem in result.report.problems]


@each_row(
    ("record", "messages"),
    [
        (ALPACA, (Message("user", "Translate\n\n你好"), Message("assistant", "Hello"))),
        ({"instruction": "Hi", "output": "Yo"}, HI),
        ({"prompt": "Hi", "completion": "Yo"}, HI),
        ({"prompt": "Hi", "input": " \n", "response": "Yo", "topic": "any"}, HI),
        ({"prompt": "Hi", "response": "Pie", "system": "Rhyme."}, RHYME),
        ({"prompt": "Hi", "response": "Yo", "system": ""}, HI),
        (CHAT, RHYME),
        ({"instruction": "", "input": "Hi", "output": "Yo"}, HI),
        ({"instruction": "Hi", "output": "Yo", "history": []}, HI),
        (
            {"instruction": "Bye", "output": "So long", "history": [["Hi", "Yo"]]},
            (*HI, Message("user", "Bye"), Message("assistant", "So long")),
        ),
        ({"prompt": "Hi", **CHAT}, RHYME),  # messages are preferred to a prompt
        (SHAREGPT, RHYME),
        (SHAREGPT | {"conversations": SHAREGPT["conversations"][1:], "system": "Rhyme."}, RHYME),
    ],
)
def test_every_format_is_recognized(record, messages):
    result = read_conversations([record])
    assert [each.messages for each in result.conversations] == [messages]
    assert result.report.problems == ()


def turns(marks, answers=("wrong", "right")):
    """A chat whose answers have these fields."""
    found = []
    for answer, mark in zip(answers, marks, strict=True):
        found += [{"role": "user", "content": "?"}]
        found += [{"role": "assistant", "content": answer, **mark}]
    return {"messages": found}


@each_row(
    ("marks", "learned"),
    [
        ([{}, {}], [True, True]),
        ([{"weight": 0}, {"weight": 1}], [False, True]),
        ([{"train": False}, {"train": True}], [False, True]),
        ([{"loss": False}, {}], [False, True]),
        ([{}, {"weight": 0.0}], [True, False]),
        ([{"weight": None}, {"weight": 1, "train": False}], [True, False]),
    ],
)
def test_an_answer_that_is_not_to_be_learned_is_marked(marks, learned):
    [read] = read_conversations([turns(marks)], strict=True).conversations
    assert [answer.learned for answer in read.answers] == learned
    assert [answer.content for answer in read.answers] == ["wrong", "right"]


def test_fields_that_do_not_matter_are_named_once_in_their_order():
    rows = [{"prompt": "Hi", "response": "Yo", "topic": "x", "id": 1, "tools": []}] * 2
    rows += [CHAT | {"source": "y", "prompt": "old"}, turns([{"name": "Eve"}] * 2)]
    read = read_conversations(rows, strict=True)
    assert read.unused == ("topic", "source", "prompt", "messages[].name")


UNLEARNED = "field that can't be learned"
TOOL = {"type": "function", "function": {"name": "get_weather"}}


def test_texts_are_kept_exactly():
    [conversation] = read_conversations([{"prompt": " Hi\n", "response": "\tYo "}]).conversations
    assert [message.content for message in conversation.messages] == [" Hi\n", "\tYo "]


def test_ids_come_from_the_record_or_from_its_place(tmp_path):
    rows = [{"prompt": "Hi", "response": "Yo", "id": id} for id in ("a", 5, None)]
    assert [each.id for each in read_conversations(rows).conversations] == ["a", "5", "record 2"]
    lines = "\n\n".join(json.dumps(row) for row in rows)
    read = read_conversations(write(tmp_path / "a.jsonl", lines))
    assert [each.id for each in read.conversations] == ["a", "5", "line 5"]


def test_the_courses_own_examples_can_be_read():
    path = Path(course_pkg.__file__).parent / "data/navigator/train.jsonl"
    result = read_conversations(path, strict=True)
    assert [
        (each.id, each.messages[0].content, each.messages[1].content)
        for each in result.conversations
    ] == [(each.id, each.prompt, each.response) for each in load_examples()]


def test_all_sources_give_the_same_conversations(tmp_path):
    rows = [ALPACA, {"instruction": "Hi", "output": "Yo"}]
    expected = read_conversations(rows).conversations
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sources = [
        iter(rows),
        Dataset.from_list(rows),  # has None in place of the second input
        Dataset.from_list(rows).to_iterable_dataset(),
        write(tmp_path / "a.jsonl", lines),
        str(write(tmp_path / "lines.json", lines)),
        write(tmp_path / "array.json", json.dumps(rows, indent=1)),
        write(tmp_path / "bom.json", b"\xef\xbb\xbf" + json.dumps(rows).encode()),
    ]
    for source in sources:
        result = read_conversations(source)
        assert [each.messages for each in result.conversations] == [e.messages for e in expected]
        assert result.report.problems == () and result.report.total == 2
    [nested] = read_conversations(Dataset.from_list([CHAT])).conversations
    assert nested.messages == RHYME


@each_row(
    ("record", "kind", "says"),
    [
        ({}, "missing field", "no messages, conversations, instruction, prompt; found no field"),
        ({"instruction": "Hi"}, "missing field", "no output; found instruction"),
        ({"prompt": "Hi", "response": None}, "missing field", "no response; found prompt"),
        ({"prompt": ["Hi"], "response": "Yo"}, "wrong type", r"prompt must be a string, got \['H"),
        ({**ALPACA, "input": {}}, "wrong type", "input must be a string, got {}"),
        ({**ALPACA, "system": 1}, "wrong type", "system must be a string, got 1"),
        ({**ALPACA, "output": "\n"}, "empty answer", "the assistant's text is"),
        ("Hi", "wrong type", "a record must be an object, got 'Hi'"),
        ({"messages": "Hi"}, "wrong type", "messages must be a list, got 'Hi'"),
        ({"messages": ["Hi"]}, "wrong type", "turn 1 must be an object, got 'Hi'"),
        ({"messages": [{"role": "user"}]}, "missing field", "turn 1: no content; found role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "wrong type", "turn 1: content must be"),
        ({"messages": [{"role": 1, "content": "Hi"}]}, "wrong type", "turn 1: role must be a stri"),
        ({"messages": CHAT["messages"][:2]}, "no final answer", "by the user"),
        ({**CHAT, "system": "Be kind."}, "second system turn", "turn 2"),
        ({"conversations": CHAT["messages"]}, "missing field", "turn 1: no from; found role"),
        *(
            (CHAT | {field: [TOOL]}, UNLEARNED, f"{field} .*learned; take it")
            for field in ("tools", "functions", "documents", "images", "rejected")
        ),
        *(
            (turns([{}, {field: "x"}]), UNLEARNED, rf"turn 4: .*\[\]\.{field} ")
            for field in ("tool_calls", "function_call", "reasoning_content", "thinking")
        ),
        ({"prompt": "Hi", "completion": "x", "label": False}, UNLEARNED, "want"),
        ({**ALPACA, "weight": 0.5}, UNLEARNED, "weight 0.5"),
        (turns([{}, {"weight": 0.5}]), UNLEARNED, "weight 0.5: expected 0 or 1"),
        (turns([{}, {"train": "no"}]), UNLEARNED, "train 'no'"),
        (turns([{"weight": 0}, {"train": False}]), "nothing to learn", "every answer"),
        (
            {"messages": [{"role": "user", "content": "?", "train": True}]},
            UNLEARNED,
            "only answers are learned",
        ),
        ({**ALPACA, "history": [["Hi"]]}, "wrong type", r"history must have \[question, answer\]"),
        (
            {"messages": CHAT["messages"][2:]},
            "roles out of order",
            "turn 1 is by the assistant, .* greeting into a system turn",
        ),
        ({"conversations": [{"from": "bot", "value": "Hi"}]}, "unknown role", "'bot'"),
    ],
)
def test_each_problem_is_reported_and_the_other_records_are_kept(record, kind, says):
    good = {"prompt": "Hi", "response": "Yo"}
    result = read_conversations([good, record, good])
    assert [each.messages for each in result.conversations] == [HI, HI]
    assert (result.report.total, result.report.kept) == (3, 2)
    assert problems(result) == [("record 1", kind)]
    with pytest.raises(ValueError, match=f"^record 1: {kind}: .*{says}"):
        read_conversations([good, record], strict=True)


def test_problems_in_json_lines_have_their_line_numbers(tmp_path):
    good = b'{"prompt": "Hi", "response": "Yo"}'
    lines = [
        good,
        b'{"prompt": "Hi", "response": "Yo"',
        b"",
        b'{"prompt": "Hi", "response": "caf\xe9"}',
        b'{"prompt": "Hi", "prompt": "Ho", "response": "Yo"}',
        b'{"messages": [{"role": "user", "role": "system", "content": "Hi"}]}',
        b"[" * 100_000,
        b'{"prompt": "Hi", "response": "\\ud800"}',
        '{"prompt": "one\u2028line", "response": "Yo"}'.encode(),
    ]
    path = write(tmp_path / "a.jsonl", b"\n".join(lines) + b"\n")
    result = read_conversations(path)
    assert problems(result) == [
        ("line 2", "invalid JSON"),
        ("line 4", "invalid UTF-8"),
        ("line 5", "duplicate field"),
        ("line 6", "duplicate field"),
        ("line 7", "invalid JSON"),
        ("line 8", "invalid text"),
    ]
    assert [problem.detail for problem in result.report.problems][:5] == [
        "Expecting ',' delimiter at column 34",
        "byte 0xe9 at position 33",
        "'prompt' occurs twice",
        "'role' occurs twice",
        "nested too deeply",
    ]
    assert len(result.conversations) == 2 and result.report.total == 8
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: invalid JSON: Expecting"):
        read_conversations(path, strict=True)


@each_row(
    ("text", "found"),
    [
        ("[]", []),
        ("\n[ ]\n", []),
        ('[{"a": 1},\n\n {"a":\n 2}\n]\n', [(1, {"a": 1}), (3, {"a": 2})]),
        ('[1,\n2,\n{"a" 3},\n4]', [(1, 1), (2, 2), (3, "Expecting ':' delimiter at column 6; ")]),
        ('[{"a":\n1\n"b"}]', [(3, "Expecting ',' delimiter at column 1")]),
        ("[1,\n2", [(1, 1), (2, 2), (2, "expected ',' or ']'; the rest of the file can't be re")]),
        ("[1]\n[2]", [(1, 1), (2, "expected the end of the file")]),
        ('{"a":\n 1}\n\n{\n"a": 2}\n', [(1, {"a": 1}), (4, {"a": 2})]),
        (
            '{"a":\n 1}\n{"a" 2}',
            [(1, {"a": 1}), (3, "Expecting ':' delimiter at column 6; the re")],
        ),
        ('{"data": [{"a": 1},\n {"a": 2}]}\n', [(1, {"a": 1}), (2, {"a": 2})]),
        ('\n{\n"train":\n[\n{"a": 1}]\n}', [(5, {"a": 1})]),
        ('{"data": [{"a": 1}], "n": 1}', [(1, {"data": [{"a": 1}], "n": 1})]),
        ('{"messages": [{"a": 1}]}', [(1, {"messages": [{"a": 1}]})]),
        ('{"data": [{"a": 1}]}\n{"data": []}', [(1, {"data": [{"a": 1}]}), (2, {"data": []})]),
        (f'{{"a": {"1" * 5000}}}', [(1, "a number has too many digits; put it in quotes")]),
        ("[1,]", [(1, 1), (1, "the comma in front of the ] at column 4 is one too many; ")]),
        (b'[1,\n"\xff"]', [(2, "byte 0xff at position 5")]),
    ],
)
def test_records_of_an_array_have_the_line_where_they_start(tmp_path, text, found):
    read = list(file_records(write(tmp_path / "a.json", text)))
    assert [line for line, _ in read] == [line for line, _ in found]
    for (_, value), (_, expected) in zip(read, found, strict=True):
        if isinstance(expected, str):
            assert isinstance(value, RecordError) and value.detail.startswith(expected)
        else:
            assert value == expected


@each_row(
    ("name", "text", "found"),
    [
        ("a.csv", 'q,a\nHi,"Yo,\nyou"\n\nBye,Ciao\n', [(2, "Hi", "Yo,\nyou"), (5, "Bye", "Ciao")]),
        ("a.csv", "\ufeffq; a\r\nHi, all;Yo\r\n", [(2, "Hi, all", "Yo")]),
        ("A.TSV", "q\ta\nHi, you\tYo\n", [(2, "Hi, you", "Yo")]),
        ("a.csv", "q,a\n", []),
        (
            "a.csv",
            "q,a\nHi\n1,2",
            [(2, "1 cells, and the first line names 2 columns"), (3, "1", "2")],
        ),
        ("a.csv", 'q,a\nHi,"Yo\n', [(2, "unexpected end of data; the rest")]),
        ("a.csv", "q,q\nHi,Yo\n", [(2, "'q' occurs twice")]),
        ("a.csv", b"q,a\nHi,caf\xe9\n", [(2, "byte 0xe9 at position 10")]),
        ("a.ndjson", '{"q": "Hi", "a": "Yo"}\n', [(1, "Hi", "Yo")]),
    ],
)
def test_tables_have_a_record_for_each_row_with_the_line_where_it_starts(
    tmp_path, name, text, found
):
    read = list(file_records(write(tmp_path / name, text)))
    assert [line for line, _ in read] == [line for line, *_ in found]
    for (_, value), (_, *expected) in zip(read, found, strict=True):
        if isinstance(value, RecordError):
            assert value.detail.startswith(expected[0])
        else:
            assert list(value.items()) == [("q", expected[0]), ("a", expected[1])]


def test_sources_that_are_no_list_of_records_are_refused(tmp_path):
    splits = DatasetDict(train=Dataset.from_list([CHAT]), test=Dataset.from_list([CHAT]))
    with pytest.raises(TypeError, match=r"a mapping with train, test; choose a split, such as"):
        read_conversations(splits)
    with pytest.raises(TypeError, match="source must be a file or a list of dicts, got 3"):
        read_conversations(3)
    with pytest.raises(
        ValueError, match=r"must be one of \.jsonl, \.json, \.ndjson, \.csv, \.tsv;"
    ):
        read_conversations(tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError):
        read_conversations(tmp_path / "a.json")
