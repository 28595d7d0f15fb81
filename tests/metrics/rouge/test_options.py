import warnings

import pytest

from course_pkg.metrics.rouge import RougeOptions, options, rouge_n, rouge_tokens


def test_only_a_text_with_letters_of_which_no_token_is_left_warns():
    with pytest.warns(UserWarning, match='use tokenize="unicode"'):
        assert rouge_tokens("大语言模型的评测。") == []
    for text in ("", " \n", "...", "a"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rouge_tokens(text)


def test_a_tokenizer_is_a_name_and_modes_have_defaults():
    assert rouge_tokens("A cat.", "13a") == ["A", "cat", "."]
    assert rouge_tokens("猫 cat", "char") == ["猫", "c", "a", "t"]
    with pytest.raises(ValueError, match=r"tokenizer must be one of .*rouge, unicode, got 'words'"):
        rouge_tokens("a", "words")
    assert RougeOptions().multi == "best"
    assert RougeOptions(mode="rouge155").multi == "pooled"
    assert RougeOptions(mode="rouge155", multi="average").multi == "average"


def test_irregular_forms_are_looked_up_before_the_rules_apply():
    # "ate" has three letters, so it is not looked up. The form found is stemmed like any other
    # word, so that "mice" matches "mouse". The Perl tool does not stem it, and there they differ.
    text = "mice ate running mouse"
    forms = {"mice": "mouse", "ate": "eat", "running": "jogs"}
    assert rouge_tokens(text, stem=forms) == ["mous", "ate", "jog", "mous"]
    assert rouge_tokens(text, stem=forms, mode="rouge155") == ["mouse", "ate", "jogs", "mous"]
    # Stemming does not change words of three letters.
    assert rouge_tokens("was dogs running flies", stem=True) == ["was", "dog", "run", "fli"]


def test_a_score_says_how_words_were_stemmed(monkeypatch):
    def stemming(stem, mode="rouge155"):
        return rouge_n("my feet", "a foot", stem=stem, mode=mode).stemming

    assert stemming(False) == "none"
    assert stemming(True, "paper") == stemming({}) == "Porter"
    assert stemming({"feet": "foot"}) == "given forms, then Porter"
    monkeypatch.setattr(options, "irregular_forms", lambda: {"feet": "foot"})
    assert stemming(True) == "WordNet's irregular forms, then Porter"
    monkeypatch.setattr(options, "irregular_forms", lambda: None)
    with pytest.warns(UserWarning, match="WordNet is not installed.* wordnet-base") as caught:
        assert stemming(True) == "Porter; WordNet not found"
    assert len(caught) == 1  # not one for each text
