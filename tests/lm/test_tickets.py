"""Generated tickets: answers follow from prompts, and the files are as described."""

import json
import re
from random import Random

import pytest

from course_pkg.lm.tickets import draw_tickets, ticket_file


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


def test_another_split_is_refused():
    with pytest.raises(ValueError, match="no split 'test'; expected one of train, held-out"):
        ticket_file("test")
