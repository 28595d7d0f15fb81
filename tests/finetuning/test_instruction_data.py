"""The instructions and dialogues are what course_pkg/data/README.md says, and no split leaks."""

import re
from collections import Counter
from itertools import chain

import pytest

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.near_duplicates import near_duplicates
from course_pkg.pages.datasets import load_examples
from course_pkg.studies.instructions.instruction_data import (
    KINDS,
    count_words,
    load_dialogues,
    load_instructions,
    unmet_checks,
)
from tests.tables import each_row

SIZES = {"train": 300, "validation": 40, "test": 60}
DIALOGUES = {"train": 30, "test": 10}
TASKS = {
    *("answer", "calculate", "classify", "compare", "complete", "convert", "correct", "explain"),
    *("extract", "list", "plan", "rewrite", "summarize", "translate", "write"),
}
# Two texts are near duplicates if their resemblance, of character 5-grams, is above this. The
# most similar pair of this set has 0.33, and it differs in a number and a verb.
SIMILAR = 0.4

INSTRUCTIONS = {split: load_instructions(split) for split in SIZES}
CHATS = {split: load_dialogues(split) for split in DIALOGUES}
ITEMS = list(chain(*INSTRUCTIONS.values()))
ALL = ITEMS + list(chain(*CHATS.values()))


def turns(item) -> list[tuple[str, str]]:
    """The roles and texts of an instruction or a dialogue."""
    if hasattr(item, "messages"):
        return [(message["role"], message["content"]) for message in item.messages]
    return [("user", item.user_turn), ("assistant", item.response)]


def questions(item) -> list[str]:
    return [text for role, text in turns(item) if role != "assistant"]


def answers(item) -> list[str]:
    return [text for role, text in turns(item) if role == "assistant"]


def texts(item) -> list[str]:
    """The texts of the turns, with an instruction's prompt and input apart."""
    if getattr(item, "input", ""):
        return [item.prompt, item.input, item.response]
    return [text for _, text in turns(item)]


def crossing_pairs(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Near duplicates with different owners, of at least 20 characters.

    entries: an owner and a text each.
    """
    long = [(owner, text) for owner, text in entries if len(text) >= 20]
    pairs = near_duplicates([text for _, text in long], SIMILAR)
    return [
        (long[pair.first][1], long[pair.second][1])
        for pair in pairs
        if long[pair.first][0] != long[pair.second][0]
    ]


@each_row("split", SIZES)
def test_the_splits_have_the_documented_sizes_shares_and_languages(split):
    items = INSTRUCTIONS[split]
    assert len(items) == SIZES[split]
    domains, languages = (Counter(getattr(i, f) for i in items) for f in ("domain", "language"))
    assert domains.keys() == {"course", "everyday"} and languages.keys() == {"en", "zh"}
    assert 0.59 <= domains["course"] / len(items) <= 0.61
    assert 0.14 <= languages["zh"] / len(items) <= 0.17
    assert sum(bool(item.input) for item in items) >= len(items) / 4


def test_tasks_and_dialogues_are_the_documented_ones():
    assert {item.task for item in ITEMS} == {item.task for item in INSTRUCTIONS["train"]} == TASKS
    assert {split: len(chats) for split, chats in CHATS.items()} == DIALOGUES
    for split, chats in CHATS.items():
        assert sum(chat.messages[0]["role"] == "system" for chat in chats) == DIALOGUES[split] / 2
        assert sum(chat.language == "zh" for chat in chats) == DIALOGUES[split] / 5
        assert {chat.domain for chat in chats} == {"course", "everyday"}
    # The turns of a dialogue alternate and end with an answer.
    for chat in chain(*CHATS.values()):
        assert all(set(message) == {"role", "content"} for message in chat.messages), chat.id
        turns = tuple(Message(**message) for message in chat.messages)
        assert 2 <= len(Conversation(turns).answers) <= 4, chat.id


def test_ids_are_unique_and_name_split_and_topic():
    assert len({item.id for item in ALL}) == len(ALL)
    for prefix, group in (("", INSTRUCTIONS), ("dialogue-", CHATS)):
        for split, items in group.items():
            for item in items:
                topic = item.topic.replace(" ", "-")
                assert re.fullmatch(rf"{prefix}{split}-{topic}-\d\d", item.id)


def test_every_answer_meets_its_own_checks_which_are_of_every_kind():
    assert [item.id for item in ALL if unmet_checks(answers(item)[-1], item.checks)] == []
    assert [item.id for item in ALL if not item.checks] == []
    for split in ("train", "test"):
        used = {check["kind"] for item in INSTRUCTIONS[split] for check in item.checks}
        assert used == set(KINDS)


def test_answers_are_short():
    lengths = [count_words(item.response) for item in ITEMS]
    assert max(lengths) <= 80
    assert sum(length >= 10 for length in lengths) >= 0.6 * len(lengths)


def test_no_topic_is_in_two_splits_and_dialogues_keep_to_the_same_division():
    topics = {split: {item.topic for item in items} for split, items in INSTRUCTIONS.items()}
    for split, chats in CHATS.items():
        topics[split] |= {chat.topic for chat in chats}
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not topics[first] & topics[second]


@each_row("part", [questions, answers])
def test_no_two_texts_are_near_duplicates_within_or_across_splits(part):
    entries = [(item.id, text) for item in ALL for text in part(item)]
    for example in load_examples(split="held-out"):
        entries.append((example.id, example.prompt if part is questions else example.response))
    assert crossing_pairs(entries) == []


def test_no_text_crosses_splits_not_even_a_short_answer():
    def plain(items, part):
        return {" ".join(text.lower().split()).rstrip(".。") for i in items for text in part(i)}

    for part in (questions, answers):
        held_out = plain(INSTRUCTIONS["validation"], part)
        test = plain(INSTRUCTIONS["test"] + CHATS["test"], part)
        train = plain(INSTRUCTIONS["train"] + CHATS["train"], part)
        assert (train & test, train & held_out, held_out & test) == (set(), set(), set())


@each_row("constant", ["No.", "Yes, because it is so.", "1", "好的。", "1. a", "- a\n- b\n- c"])
def test_a_constant_or_repeated_prompt_follows_almost_no_test_instruction(constant):
    followed = [i.id for i in INSTRUCTIONS["test"] if not unmet_checks(constant, i.checks)]
    assert len(followed) <= 2, followed
    repeated = [i.id for i in INSTRUCTIONS["test"] if not unmet_checks(i.prompt, i.checks)]
    assert len(repeated) <= 6, repeated


def test_texts_have_no_stray_blanks_and_english_has_ascii_punctuation():
    for item in ALL:
        for text in texts(item):
            assert text and text == text.strip(), item.id
            assert not re.search(r"[ \t]\n|\n\n|  |\t|\r", text), item.id
            if not unmet_checks(text, [{"kind": "language", "value": "zh"}]):
                assert not re.search(r"[一-鿿][,;:?!.](\s|$)", text), item.id
            elif not re.search("[一-鿿]", text):
                # Only a foreign word may have other letters; no mark may.
                assert all(c.isascii() or c.isalpha() for c in text), item.id


def test_the_input_follows_the_prompt_below_an_empty_line():
    with_input = next(item for item in ITEMS if item.input)
    assert with_input.user_turn == f"{with_input.prompt}\n\n{with_input.input}"
    without = next(item for item in ITEMS if not item.input)
    assert without.user_turn == without.prompt


def test_the_error_for_an_unknown_split_lists_those_that_exist():
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        load_instructions("dev")
