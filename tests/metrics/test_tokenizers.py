"""Tokenizers split texts by their rules; tests/parity compares them with sacrebleu's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.tokenizers import porter_stem, tokenize, tokenizer

NAMES = ["13a", "whitespace", "none", "char", "zh", "rouge", "unicode"]
CHINESE = "大语言模型的评测。"

TOKENIZED = {
    ("The cat is on the mat.", "13a"): "The cat is on the mat .",
    ("It's 3.5%, or 1,000.", "13a"): "It's 3.5 % , or 1,000 .",
    ("a-b 5-4 x/y (z)", "13a"): "a-b 5 - 4 x / y ( z )",
    ("&lt;b&gt; &amp;lt; &quot;x&quot;", "13a"): '< b > < " x "',
    ("hyphen-\nated\nline", "13a"): "hyphenated line",
    ("  The  cat. ", "whitespace"): "The cat.",
    ("the cat.", "char"): "t h e c a t .",
    ("猫坐在mat上。", "zh"): "猫 坐 在 mat 上 。",
    ("猫坐在mat上。", "13a"): "猫坐在mat上。",
    ("“3.5”, 对", "zh"): "“ 3.5 ” , 对",
}


@pytest.mark.parametrize("case", TOKENIZED, ids=str)
def test_texts_are_tokenized_by_the_rules(case):
    assert tokenize(*case) == TOKENIZED[case].split()


@given(st.text(max_size=40), st.sampled_from(NAMES))
def test_tokens_are_never_empty_and_contain_no_space(text, name):
    tokens = tokenize(text, name)
    assert all(token and token.split() == [token] for token in tokens)


@given(st.text(max_size=40), st.sampled_from(["whitespace", "char", "zh"]))
def test_these_tokenizers_neither_drop_nor_add_characters(text, name):
    if "&" not in text:
        assert "".join(tokenize(text, name)) == "".join(text.split())


def test_none_and_whitespace_are_two_names_of_one_tokenizer():
    assert tokenizer("none") is tokenizer("whitespace")


def test_an_unknown_name_raises_an_error_that_lists_the_known_ones():
    known = "13a, whitespace, none, char, zh, rouge, unicode"
    with pytest.raises(ValueError, match=f"tokenizer must be one of {known}, got '14a'"):
        tokenize("a", "14a")


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"]])
def test_a_text_that_is_not_a_string_raises_an_error(text):
    with pytest.raises(TypeError, match="must be a string"):
        tokenize(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_unicode_equals_rouge_on_ascii_text(text):
    assert tokenize(text, "unicode") == tokenize(text, "rouge")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (CHINESE, list("大语言模型的评测")),
        ("用BLEU-4评估", ["用", "bleu", "4", "评", "估"]),
        ("Naïve Straße, żółw", ["naïve", "straße", "żółw"]),
        ("カタカナとひらがな", list("カタカナとひらがな")),
        ("한국어 요약", ["한국어", "요약"]),
        ("हिन्दी में सारांश", ["हिन्दी", "में", "सारांश"]),  # vowel signs are combining marks
        ("𠀀𠀁", ["𠀀", "𠀁"]),
        ("«— …»", []),
    ],
)
def test_unicode_keeps_every_script(text, tokens):
    assert tokenize(text, "unicode") == tokens


@pytest.mark.parametrize(
    ("word", "stem"),
    [("flies", "fli"), ("running", "run"), ("Running", "Run"), ("a", "a"), ("", "")],
)
def test_porter_stems_keep_the_case(word, stem):
    assert porter_stem(word) == stem
