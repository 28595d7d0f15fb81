"""The course's data sets contain what course_pkg/data/README.md describes, and tickets."""

import json
import re
from random import Random

import pytest

from course_pkg.pages.datasets import (
    FOLDER,
    draw_tickets,
    first_of_groups,
    follows_log_format,
    load_examples,
    load_rated_answers,
    load_texts,
    read_records,
    ticket_file,
)


def test_the_navigator_set_has_the_documented_sizes_and_no_duplicates():
    train = load_examples("navigator", "train")
    held_out = load_examples("navigator", "held-out")
    assert (len(train), len(held_out)) == (120, 30)
    everything = train + held_out
    for field in ("id", "prompt", "response"):
        assert len({getattr(example, field) for example in everything}) == 150
    assert {example.topic for example in held_out} == {example.topic for example in train}


def test_no_sentence_of_the_held_out_answers_is_in_the_training_answers():
    def sentences(split):
        lines = (example.response.splitlines() for example in load_examples(split=split))
        return {line.split(": ", 1)[1] for answer in lines for line in answer}

    assert len(sentences("train")) == 360
    assert not sentences("train") & sentences("held-out")


def test_every_answer_has_the_log_format_and_every_prompt_is_a_question():
    for split in ("train", "held-out"):
        for example in load_examples(split=split):
            assert follows_log_format(example.response), example.id
            assert example.prompt.endswith("?") and not example.prompt.startswith("LOG")
            orders = example.response.rsplit("ORDERS: ", 1)[1]
            assert len(orders.split()) <= 10, example.id


ENTRY = "LOG: Calm.\nCAUSE: No wind.\nORDERS: Row."


def test_an_entry_of_the_log_is_recognized():
    for text in (ENTRY, ENTRY.replace("Row.", "Row!"), f"  {ENTRY}\n"):
        assert follows_log_format(text)


def test_a_similar_text_is_no_entry_of_the_log():
    for text in (
        "LOG: Calm.\nORDERS: Row.\nCAUSE: No wind.",
        "LOG: Calm.\nCAUSE: No wind.",
        f"{ENTRY}\nLOG: Calm.",
        f"Sure! {ENTRY}",
        ENTRY.replace("Calm.", ""),
        ENTRY.lower(),
        ENTRY.removesuffix("."),
        "",
    ):
        assert not follows_log_format(text)


def test_the_error_for_an_unknown_set_or_split_lists_those_that_exist():
    for load in (load_examples, load_texts):
        with pytest.raises(ValueError, match=r"sets are (navigator/train|passages/test)"):
            load("navigator", "validation")
    with pytest.raises(ValueError, match="no split 'test'; expected one of train, held-out"):
        ticket_file("test")


def test_every_part_of_an_answer_is_in_its_prompt_and_prompts_hardly_ever_repeat():
    examples = draw_tickets(2_000, Random(1))
    answer = re.compile(r"(\w+) > (\w+) \| (\d{3}) \| (\d\d[A-D])")
    for example in examples:
        for part in answer.fullmatch(example["answer"]).groups():
            assert len(re.findall(rf"\b{part}\b", example["prompt"])) == 1, example
    assert len({example["prompt"] for example in examples}) == len(examples)


def test_the_training_file_has_faults_and_nothing_of_the_held_out_file():
    lines = ticket_file("train").split("\n")[:-1]
    records = [json.loads(line) for line in lines if line]
    empty = [r for r in records if not r["answer"].strip()]
    prompts = [r["prompt"] for r in records if r not in empty]
    held_out = [json.loads(line) for line in ticket_file("held-out").splitlines()]
    assert len(lines) == 252 and len(set(prompts)) == 240 and len(held_out) == 20
    assert "" in lines and empty and len(prompts) > 240
    assert not set(prompts) & {r["prompt"] for r in held_out}
    assert ticket_file("train") == ticket_file("train")


def test_every_question_has_one_rated_answer_of_each_kind_on_the_scale():
    answers = load_rated_answers()
    assert len(answers) == 12
    for question in {answer.question for answer in answers}:
        kinds = {answer.kind for answer in answers if answer.question == question}
        assert kinds == {"good", "short", "false", "shuffled"}
    assert all(1 <= rating <= 5 for answer in answers for rating in answer.ratings)
    assert (answers[2].kind, answers[2].ratings, answers[2].mean) == ("shuffled", (1, 2), 1.5)


def test_every_file_has_a_record_for_each_line_and_another_name_lists_the_names():
    for path in FOLDER.glob("*.jsonl"):
        records = read_records(path.stem)
        assert len(records) == len(path.read_text("utf-8").splitlines())
        assert all("id" in record for record in records)
    with pytest.raises(ValueError, match=r"no evaluation data 'choice'; there are .*short-answers"):
        read_records("choice")


def test_the_first_of_each_group_keep_their_order():
    records = [{"group": group, "at": at} for at, group in enumerate("abaabcb")]
    assert [record["at"] for record in first_of_groups(records)] == [0, 1, 2, 4, 5]
    assert first_of_groups(records, count=9) == records
    with pytest.raises(ValueError, match="count"):
        first_of_groups(records, count=0)
