import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.text_files import TextFileError, read_records, read_scored

LINES = st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=5)


def written(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@given(LINES)
def test_json_lines_give_back_every_text(tmp_path_factory, texts):
    rows = [json.dumps({"prediction": text, "references": text}) for text in texts]
    path = written(tmp_path_factory.getbasetemp(), "any", "\n".join(rows))
    scored = read_scored(path)
    assert list(scored.hypotheses) == texts
    assert scored.references == tuple((text,) for text in texts)


def test_only_a_line_break_divides_texts_and_what_only_looks_like_json_is_text(tmp_path):
    path = written(tmp_path, "texts", "one\u2028two \r\n\n three\n")
    texts = [record.text("text") for record in read_records(path)]
    assert texts == ["one\u2028two", "", " three"]
    for line in ("{", '{"name": "x"}', "[1]", "3", "null"):
        [record] = read_records(written(tmp_path, "texts", line))
        assert record.text("prediction") == line


def test_the_ending_decides_and_blank_lines_between_objects_are_skipped(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "x"}\n\n{"text": "y"}\n')
    assert [record.place for record in read_records(path)] == [f"{path}, line {n}" for n in (1, 3)]
    with pytest.raises(TextFileError, match=r"line 1, is not JSON"):
        read_records(written(tmp_path, "b.jsonl", "a text"))
    with pytest.raises(TextFileError, match="is not a JSON object, but 3"):
        read_records(written(tmp_path, "c.jsonl", "3"))


def test_references_may_differ_in_number_and_come_from_files_too(tmp_path):
    rows = '{"prediction": "a", "references": ["b", "c"]}\n{"prediction": "d", "reference": "e"}'
    assert read_scored(written(tmp_path, "x", rows)).references == (("b", "c"), ("e",))
    rows = '{"prediction": "a"}\n{"prediction": "d"}'
    columns = [written(tmp_path, name, text) for name, text in (("r", "b\ne\n"), ("s", "c\nf"))]
    scored = read_scored(written(tmp_path, "y", rows), columns)
    assert scored.references == (("b", "c"), ("e", "f"))
