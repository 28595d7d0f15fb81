"""A file of one's own examples: every format, and one clear error for anything else."""

import json

import pandas
import pytest

from course_pkg.finetuning.conversations import Conversation
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import FORMATS, Columns, read_data
from tests.tables import each_row

ALPACA = {"instruction": "Say hi.", "output": "Hi!"}
RECORDS = {
    "Alpaca": ALPACA,
    "prompt and completion": {"prompt": "Say hi.", "completion": "Hi!"},
    "chat messages": {
        "messages": [
            {"role": "user", "content": "Say hi."},
            {"role": "assistant", "content": "Hi!"},
        ]
    },
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Say hi."}, {"from": "gpt", "value": "Hi!"}]
    },
    "plain text": {"text": "Say hi. Hi!"},
}


def write(folder, *records, name="mine.jsonl"):
    path = folder / name
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines))
    return path


@each_row("name", RECORDS)
def test_each_format_is_recognized_and_gives_the_same_conversation(tmp_path, name):
    data = read_data(write(tmp_path, RECORDS[name], "", RECORDS[name]))
    assert (data.format, data.lines) == (name, (1, 3))
    if name == "plain text":
        assert data.examples[0].text == "Say hi. Hi!"
    else:
        assert [(m.role, m.content) for m in data.examples[1].messages] == [
            ("user", "Say hi."),
            ("assistant", "Hi!"),
        ]
    assert {name for name, _ in FORMATS.values()} == set(RECORDS)


def test_a_json_array_and_a_text_file_are_read_with_the_lines_of_their_examples(tmp_path):
    array = write(tmp_path, json.dumps([ALPACA, ALPACA], indent=1), name="a.json")
    data = read_data(array)
    assert data.lines == (2, 6) and isinstance(data.examples[0], Conversation)
    text = write(tmp_path, "one", "one more", " ", "", "two", name="a.txt")
    data = read_data(text)
    assert [each.text for each in data.examples] == ["one\none more", "two"]
    assert (data.format, data.lines) == ("plain text", (1, 5))


@each_row(
    ("records", "says"),
    [
        ([ALPACA, {"text": "x"}], ["line 2", "it is plain text, and line 1 is Alpaca"]),
        ([ALPACA, RECORDS["ShareGPT"], {"a": 1}], ["line 2", "ShareGPT", "(1 more like this)"]),
        ([ALPACA, {"question": "x"}], ["line 2", "the fields are question", "messages", "text"]),
        ([{"question": "x"}], ["the fields are question", '--prompt "{subject}" --response']),
        ([ALPACA, "Hi"], ["line 2", "invalid JSON"]),
        ([ALPACA, "[1]"], ["line 2", "it is [1]"]),
        ([ALPACA, {"instruction": "x"}], ["line 2", "no output; found instruction"]),
        ([{"text": " "}], ["line 1", "blank text"]),
        ([{"text": 3}], ["line 1", "text must be a string"]),
        (['{"text": "\\ud800"}'], ["line 1", "half of a character at 0"]),
        ([], ["has no example", '"prompt"']),
    ],
)
def test_a_record_that_does_not_fit_is_one_error_with_its_line_and_what_is_wanted(
    tmp_path, records, says
):
    path = write(tmp_path, *records)
    with pytest.raises(FinetuneError) as error:
        read_data(path)
    assert [part for part in [str(path), *says] if part not in str(error.value)] == []


def test_an_array_and_any_case_of_the_suffix_are_read_whatever_the_name(tmp_path):
    for name, content in (("a.jsonl", json.dumps([ALPACA, ALPACA], indent=1)), ("B.JSON", "[]")):
        (tmp_path / name).write_text(content)
    assert read_data(tmp_path / "a.jsonl").lines == (2, 6)
    with pytest.raises(FinetuneError, match="has no example"):
        read_data(tmp_path / "B.JSON")
    assert read_data(write(tmp_path, "one", name="A.TXT")).examples[0].text == "one"


@each_row(
    ("content", "says"),
    [
        (json.dumps(ALPACA) + ",\n" + json.dumps(ALPACA), "the comma at column 44 is one too many"),
        (f"[{json.dumps(ALPACA)},]", "the comma in front of the ] at column 46 is one too many"),
        ("instruction,output\nSay hi,Hi!", "column 1; the line begins 'instruction,output'"),
        ('{"text": "caf\xe9"}', "byte 0xe9 at position 13; save the file as UTF-8"),
    ],
)
def test_the_usual_mistakes_in_a_file_are_named_with_what_to_change(tmp_path, content, says):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(FinetuneError, match="line 1: ") as error:
        read_data(path)
    assert says in str(error.value)


def test_the_conversion_that_a_refused_table_is_told_makes_a_file_that_is_read(tmp_path):
    table = tmp_path / "a.parquet"
    pandas.DataFrame([ALPACA, ALPACA]).to_parquet(table)
    with pytest.raises(
        FinetuneError, match=r"expected a \.jsonl, .*\.csv, \.tsv or \.txt file"
    ) as error:
        read_data(table)
    exec(str(error.value).partition("In Python: ")[2])
    assert len(read_data(tmp_path / "a.jsonl").examples) == 2


def test_a_table_and_wrapped_records_are_read_as_the_same_records_on_lines(tmp_path):
    table = write(tmp_path, "instruction;output;note", "Say hi.;Hi!;x", name="a.csv")
    wrapped = write(tmp_path, json.dumps({"data": [ALPACA]}, indent=2), name="a.json")
    lone = write(tmp_path, json.dumps(ALPACA, indent=2), name="b.json")
    lines = write(tmp_path, ALPACA, name="a.ndjson")
    read = [read_data(path) for path in (table, wrapped, lone, lines)]
    assert {each.examples[0].messages for each in read} == {read[3].examples[0].messages}
    assert [each.lines for each in read] == [(2,), (3,), (1,), (1,)]
    assert [each.unused for each in read] == [("note",), (), (), ()]


MAIL = {"subject": "Rent", "body": "When?", "reply": "On the 1st.", "number": 7, "id": 3}


def test_two_templates_make_prompts_and_responses_of_fields_of_any_names(tmp_path):
    columns = Columns("{{{subject}}}\\n\\n{body} ({number})", "{reply}")
    data = read_data(write(tmp_path, MAIL, MAIL), columns)
    assert data.format == "prompt and completion" and data.unused == ("id",)
    question, answer = data.examples[1].messages
    assert (question.content, answer.content) == ("{Rent}\n\nWhen? (7)", "On the 1st.")
    head, row = (",".join(map(str, part)) for part in (MAIL, MAIL.values()))
    table = read_data(write(tmp_path, head, row, name="a.csv"), columns)
    assert table.examples[0].messages == data.examples[0].messages


@each_row(
    ("prompt", "response", "says"),
    [
        ("{subject", "{reply}", "--prompt '{subject': expected '}' .*write {{ for a brace"),
        ("{}", "{reply}", "--prompt '{}': expected names of fields"),
        (
            "{subject.__class__}",
            "{reply}",
            "line 1: missing field: no subject.__class__; found subj",
        ),
        ("{subject!r}", "{reply}", "expected names of fields in braces"),
        ("{subject:>3000000000}", "{reply}", "expected names of fields in braces"),
        ("{subject}", "reply", "--response 'reply': it names no field"),
        ("{subject}", "{answer}", "line 1: missing field: no answer; found subject, body"),
        ("{tags}", "{reply}", "line 1: wrong type: tags must be a text or a number, got \\['a'\\]"),
        ("{blank}", "{reply}", "line 1: blank text: the user's text is ' '"),
    ],
)
def test_a_template_that_can_not_be_filled_says_so(tmp_path, prompt, response, says):
    path = write(tmp_path, MAIL | {"tags": ["a"], "blank": " "})
    with pytest.raises(FinetuneError, match=says):
        read_data(path, Columns(prompt, response))


def test_another_kind_of_file_is_refused(tmp_path):
    for path, says in (
        (write(tmp_path, "a,b", name="a.doc"), "expected a .jsonl, .* or .txt file; one record"),
        (tmp_path / "absent.jsonl", "there is no file"),
        (tmp_path / "folder.jsonl", "is a folder"),
        (tmp_path / "folder", "is a folder"),
    ):
        if path.name.startswith("folder"):
            path.mkdir()
        with pytest.raises(FinetuneError, match=says):
            read_data(path)
    latin = tmp_path / "a.txt"
    latin.write_bytes(b"one\n\ncaf\xe9")
    with pytest.raises(FinetuneError, match="line 3: not UTF-8"):
        read_data(latin)
