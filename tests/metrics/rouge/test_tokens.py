"""What ROUGE takes for a token: tokenizers, stemming, sentences, and what isn't text."""

import warnings

import pytest

from course_pkg.metrics.rouge.tokens import rouge_tokens, sentences

CHINESE = "大语言模型的评测。"


def test_rouge_lowercases_and_keeps_letters_and_digits_of_ascii():
    text = "The state-of-the-art: 3.5 BLEU, naïve_café!"
    expected = "the state of the art 3 5 bleu na ve caf"
    assert " ".join(rouge_tokens(text)) == expected
    assert " ".join(rouge_tokens(text, mode="rouge155")) == expected


def test_a_text_of_which_nothing_is_left_warns():
    with pytest.warns(UserWarning, match='use tokenize="unicode"'):
        assert rouge_tokens(CHINESE) == []


@pytest.mark.parametrize("text", ["", " \n", "...", "a"])
def test_a_text_without_letters_or_with_tokens_does_not_warn(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rouge_tokens(text)


def test_names_of_ngrams_and_functions_are_tokenizers_too():
    assert rouge_tokens("A cat.", "13a") == ["A", "cat", "."]
    assert rouge_tokens("A cat.", "whitespace") == ["A", "cat."]
    assert rouge_tokens("猫 cat", "char") == ["猫", "c", "a", "t"]
    assert rouge_tokens("a|b", lambda text: text.split("|")) == ["a", "b"]
    with pytest.raises(ValueError, match=r"no tokenizer is called 'words'.*rouge, unicode"):
        rouge_tokens("a", "words")


def test_stemming_leaves_words_of_three_letters_alone():
    assert rouge_tokens("was dogs running flies", stem=True) == ["was", "dog", "run", "fli"]


def test_irregular_forms_go_before_the_rules():
    # "ate" has three letters, so it is not looked up. A form is stemmed like any word, so that it
    # meets its other forms; the Perl tool leaves it as it is, and "mice" misses "mouse" there.
    text, forms = "mice ate running mouse", {"mice": "mouse", "ate": "eat", "running": "jogs"}
    assert rouge_tokens(text, stem=forms) == ["mous", "ate", "jog", "mous"]
    assert rouge_tokens(text, stem=forms, mode="rouge155") == ["mouse", "ate", "jogs", "mous"]


def test_sentences_are_the_lines_that_are_not_empty():
    assert sentences("one\n\ntwo\n") == ["one", "two"]
    assert sentences("") == []


@pytest.mark.parametrize("value", [None, 3, b"text", ["a", "list"], {"a": 1}])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(TypeError, match="must be a string"):
        rouge_tokens(value)
    with pytest.raises(TypeError, match="must be a string"):
        sentences(value)
