"""Records of the evaluation data, and the first of each group."""

import pytest

from course_pkg.pages.datasets import FOLDER, first_of_groups, read_records


def test_every_file_has_a_record_for_each_line_and_another_name_lists_the_names():
    for path in FOLDER.glob("*.jsonl"):
        records = read_records(path.stem)
        assert len(records) == len(path.read_text("utf-8").splitlines())
        assert all("id" in record for record in records)
    with pytest.raises(ValueError, match=r"no evaluation data 'choice'; there are .*short-answers"):
        read_records("choice")


def test_the_first_of_each_group_keep_their_order():
    records = [{"group": group, "at": at} for at, group in enumerate("abaabcb")]
    assert [each["at"] for each in first_of_groups(records)] == [0, 1, 2, 4, 5]
    assert first_of_groups(records, count=9) == records
    with pytest.raises(ValueError, match="count"):
        first_of_groups(records, count=0)
