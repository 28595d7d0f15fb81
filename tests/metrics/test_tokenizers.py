import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.tokenizers import porter_stem, tokenize

NAMES = ["13a", "whitespace", "none", "char", "zh", "rouge", "unicode"]


@given(st.text(max_size=40), st.sampled_from(NAMES))
def test_tokens_are_never_empty_and_contain_no_space(text, name):
    tokens = tokenize(text, name)
    assert all(token and token.split() == [token] for token in tokens)


def test_an_unknown_name_and_a_text_that_is_not_a_string_raise_an_error():
    known = "13a, whitespace, none, char, zh, rouge, unicode"
    with pytest.raises(ValueError, match=f"tokenizer must be one of {known}, got '14a'"):
        tokenize("a", "14a")
    for text in (None, b"bytes", ["a"]):
        with pytest.raises(TypeError, match="must be a string"):
            tokenize(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_unicode_equals_rouge_on_ascii_text(text):
    assert tokenize(text, "unicode") == tokenize(text, "rouge")


def test_unicode_keeps_every_script(subtests):
    for text, tokens in (
        ("大语言模型的评测。", list("大语言模型的评测")),
        ("用BLEU-4评估", ["用", "bleu", "4", "评", "估"]),
        ("Naïve Straße, żółw", ["naïve", "straße", "żółw"]),
        ("カタカナとひらがな", list("カタカナとひらがな")),
        ("한국어 요약", ["한국어", "요약"]),
        ("हिन्दी में सारांश", ["हिन्दी", "में", "सारांश"]),  # vowel signs are combining marks
        ("𠀀𠀁", ["𠀀", "𠀁"]),
        ("«— …»", []),
    ):
        with subtests.test(text=text, tokens=tokens):
            assert tokenize(text, "unicode") == tokens


def test_porter_stems_keep_the_case():
    for word, stem in (
        ("flies", "fli"),
        ("running", "run"),
        ("Running", "Run"),
        ("a", "a"),
        ("", ""),
    ):
        assert porter_stem(word) == stem
