"""The course's data sets contain what course_pkg/data/README.md describes, and tickets."""

import json
import re
from random import Random

import pytest

from course_pkg.datasets import (
    draw_tickets,
    follows_log_format,
    load_examples,
    load_rated_answers,
    load_texts,
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


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_every_answer_has_the_log_format_and_every_prompt_is_a_question(split):
    for example in load_examples("navigator", split):
        assert follows_log_format(example.response), example.id
        assert example.prompt.endswith("?") and not example.prompt.startswith("LOG")
        orders = example.response.rsplit("ORDERS: ", 1)[1]
        assert len(orders.split()) <= 10, example.id


def test_there_are_forty_passages_of_three_to_sixty_words():
    texts = load_texts("passages")
    lengths = [len(text.split()) for text in texts]
    assert len(set(texts)) == 40
    assert min(lengths) >= 3 and max(lengths) <= 60 and max(lengths) > 40


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row!", True),
        ("  LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.\n", True),
        ("LOG: Calm.\nORDERS: Row.\nCAUSE: No wind.", False),
        ("LOG: Calm.\nCAUSE: No wind.", False),
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.\nLOG: Calm.", False),
        ("Sure! LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.", False),
        ("LOG: \nCAUSE: No wind.\nORDERS: Row.", False),
        ("log: Calm.\ncause: No wind.\norders: Row.", False),
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row", False),
        ("", False),
    ],
)
def test_the_log_format_is_distinguished_from_similar_texts(text, follows):
    assert follows_log_format(text) is follows


@pytest.mark.parametrize("load_set", [load_examples, load_texts])
def test_the_error_for_an_unknown_set_or_split_lists_those_that_exist(load_set):
    with pytest.raises(ValueError, match=r"sets are (navigator/train|passages/test)"):
        load_set("navigator", "validation")


def test_every_part_of_an_answer_is_in_its_prompt():
    for example in draw_tickets(200, Random(0)):
        family, city, train, seat = re.fullmatch(
            r"(\w+) > (\w+) \| (\d{3}) \| (\d\d[A-D])", example["answer"]
        ).groups()
        for part in (family, city, train, seat):
            assert len(re.findall(rf"\b{part}\b", example["prompt"])) == 1, example


def test_prompts_hardly_ever_repeat():
    prompts = {example["prompt"] for example in draw_tickets(5_000, Random(1))}
    assert len(prompts) == 5_000


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


def test_another_split_of_tickets_is_refused():
    with pytest.raises(ValueError, match="no split 'test'; expected one of train, held-out"):
        ticket_file("test")


def test_every_question_has_one_rated_answer_of_each_kind_on_the_scale():
    answers = load_rated_answers()
    assert len(answers) == 12
    for question in {answer.question for answer in answers}:
        kinds = {answer.kind for answer in answers if answer.question == question}
        assert kinds == {"good", "short", "false", "shuffled"}
    assert all(1 <= rating <= 5 for answer in answers for rating in answer.ratings)
