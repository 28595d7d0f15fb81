"""Checks by hand; instructions and dialogues are what the README says, and no split leaks."""

import re
from collections import Counter
from itertools import chain

import pytest

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.near_duplicates import near_duplicates
from course_pkg.pages.datasets import load_examples
from course_pkg.studies.instructions.instruction_data import (
    KINDS,
    count_sentences,
    count_words,
    load_dialogues,
    load_instructions,
    unmet_checks,
)
from tests.tables import each_row

# kind, value, a text that meets the check, a text that does not
CASES = [
    ("words", [2, 4], "one two three four", "one two three four five"),
    ("words", [2, 4], "one two", "one"),
    ("words", [1, 5], "缓存省时间", "缓存更省时间"),
    ("words", [3, 3], "- a b — c", "a b — c d"),
    ("sentences", 2, "It costs 4.5 bits. Really?", "It costs 4.5 bits, really?"),
    ("sentences", 2, "好。为什么？", "好，为什么？"),
    ("sentences", 1, '"Stop!"', "Stop! Go on"),
    ("bullets", 2, "- a\n- b", "- a\n- b\n- c"),
    ("bullets", 2, "- 一\n- 二", "Sure:\n- 一\n- 二"),
    ("bullets", 2, "- a\n- b", "- a\n\n- b"),
    ("numbered", 2, "1. a\n2. b", "1. a\n3. b"),
    ("numbered", 10, "\n".join(f"{n}. x" for n in range(1, 11)), "1. x"),
    ("contains", "rank", "The RANK is 8.", "Ranking matters."),
    ("contains", "16", "It has 16 levels.", "It has 160 levels."),
    ("contains", "1.5", "(1.5)", "115"),
    ("contains", "梯度", "先算梯度再更新。", "先算误差再更新。"),
    ("contains", "GB", "共 8 GB显存", "8GBs"),
    ("contains", 'key": 1', '{"key": 1}', '{"key": 10}'),
    ("excludes", "mask", "The masked token counts.", "Use the mask."),
    ("excludes", "!", "Good.", "Good!"),
    ("ends_with", "0.6.", "It is 0.6.\n", "It is 0.6"),
    ("json_keys", ["a", "b"], '{"b": 1,\n "a": []}', '{"a": 1, "b": 2, "c": 3}'),
    ("json_keys", ["a"], '{"a": null}', '```json\n{"a": null}\n```'),
    ("json_keys", ["a"], '{"a": 1}', '["a"]'),
    ("case", "lower", "low rank: 8", "Low rank: 8"),
    ("case", "upper", "GOOD (2019)", "GOOD x"),
    ("case", "lower", "x", "123"),
    ("language", "zh", "LoRA 只训练两个矩阵。", "LoRA trains two matrices (矩阵)."),
    ("language", "en", "LoRA trains two matrices.", "LoRA trains 矩阵."),
    ("language", "en", "yes", "144"),
    ("matches", r"LoRA: \d+", "LoRA: 12", "LoRA: 12 or so"),
    ("matches", r"[^\n]+", "one line", "two\nlines"),
    ("equals", "Yes", " yes.\n", "yes, it is"),
    ("equals", "a b", "A\n b", "ab"),
    ("equals", "冗长偏差", "冗长偏差。", "冗长的偏差"),
]


@each_row(("kind", "value", "good", "bad"), CASES)
def test_a_check_accepts_one_text_and_rejects_another(kind, value, good, bad):
    check = {"kind": kind, "value": value}
    assert unmet_checks(good, [check]) == []
    assert unmet_checks(bad, [check]) == [check]


def test_unmet_checks_come_in_their_order_and_none_means_all_are_met():
    short = {"kind": "words", "value": [1, 2]}
    loud = {"kind": "case", "value": "upper"}
    assert unmet_checks("far too many words", [loud, short]) == [loud, short]
    assert unmet_checks("FAR TOO MANY", [loud, short]) == [short]
    assert unmet_checks("FAR", [loud, short]) == []
    assert unmet_checks("anything", []) == []


def test_an_empty_answer_meets_no_check_but_that_a_word_is_absent():
    for kind, value, *_ in CASES:
        check = {"kind": kind, "value": value}
        assert unmet_checks(" \n", [check]) == ([] if kind == "excludes" else [check])


@each_row(
    ("check", "message"),
    [
        ({"kind": "max_words", "value": 3}, "the kind of a check must be one of words, sent"),
        ({"kind": "words"}, "keys kind and value"),
        ("words", "keys kind and value"),
        ({"kind": "words", "value": 3}, "least, most"),
        ({"kind": "words", "value": [3, 2]}, "smaller number first"),
        ({"kind": "words", "value": [0, 2]}, "integer of at least 1"),
        ({"kind": "bullets", "value": True}, "the value of bullets must be an integer"),
        ({"kind": "contains", "value": ""}, "contains needs a string"),
        ({"kind": "ends_with", "value": 3}, "ends_with needs a string"),
        ({"kind": "json_keys", "value": "a"}, "json_keys needs a list"),
        ({"kind": "case", "value": "title"}, "the value of case must be one of lower, upper"),
        ({"kind": "matches", "value": "("}, "regular expression"),
    ],
)
def test_the_error_for_a_malformed_check_says_what_is_wanted(check, message):
    with pytest.raises(ValueError, match=message):
        unmet_checks("some text", [check])


def test_an_answer_must_be_a_string():
    with pytest.raises(TypeError, match="text must be a string"):
        unmet_checks(["a"], [])


@each_row(
    ("text", "words", "sentences"),
    [
        ("", 0, 0),
        ("4-bit weights", 2, 1),
        ("Don't stop", 2, 1),
        ("每个 token 占 2 字节。", 7, 1),
        ("查询、键和值，共3个。", 8, 1),
        ("“好！”他说。", 3, 2),
        ("Wait... what?!", 2, 2),
        ("...", 0, 0),
    ],
)
def test_words_and_sentences_of_both_languages_are_counted(text, words, sentences):
    assert (count_words(text), count_sentences(text)) == (words, sentences)


@pytest.mark.timeout(100)  # quadratic time would take hours
def test_long_output_is_checked_in_linear_time():
    for text in ("word " * 20000, "字" * 20000, "- a\n" * 20000, "." * 20000 + "x", '"' * 20000):
        for kind, value, *_ in CASES:
            unmet_checks(text, [{"kind": kind, "value": value}])


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
