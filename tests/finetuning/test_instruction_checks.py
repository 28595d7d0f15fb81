"""Each kind of check accepts and rejects what its description says; expected values are by hand."""

import pytest

from course_pkg.studies.instructions.instruction_data import (
    count_sentences,
    count_words,
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
