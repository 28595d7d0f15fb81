"""Metrics check their arguments before they score."""

import pytest

from course_pkg.metrics.arguments import require_integer, require_string, text_list


@pytest.mark.parametrize("value", [None, 3, b"text", ["a", "list"], {"a": 1}])
def test_a_value_that_is_not_a_string_raises_an_error_with_its_type(value):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^a text must be a string, got .* \({kind}\)$"):
        require_string(value)
    with pytest.raises(TypeError, match=r"^row 3 must be .*\); read it first$"):
        require_string(value, "row 3", "read it first")


def test_a_string_is_returned_unchanged():
    assert require_string("") == ""
    assert require_string(" a b ") == " a b "


def test_a_long_value_is_truncated_in_the_message():
    with pytest.raises(TypeError) as caught:
        require_string(list(range(10_000)))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("texts", ["one text", ("one text",), ["one text"]])
def test_one_text_becomes_a_list_of_one(texts):
    assert text_list(texts) == ["one text"]


def test_any_iterable_of_texts_is_accepted():
    assert text_list(("a", "b")) == ["a", "b"]
    assert text_list(text for text in "ab") == ["a", "b"]
    assert text_list(["", ""]) == ["", ""]


def test_the_list_is_a_copy():
    given = ["a"]
    text_list(given).append("b")
    assert given == ["a"]


@pytest.mark.parametrize("texts", [None, 3, b"text", {"a": 1}])
def test_a_value_that_is_not_a_list_of_texts_raises_an_error(texts):
    with pytest.raises(TypeError, match="references must be a string or a list of strings, got"):
        text_list(texts, "reference")


def test_the_error_says_which_entry_is_not_a_string():
    with pytest.raises(TypeError, match=r"reference 1 must be a string, got \['b'\] \(list\)"):
        text_list(["a", ["b"]], "reference")


@pytest.mark.parametrize("texts", [[], (), iter(())])
def test_an_empty_list_raises_an_error(texts):
    with pytest.raises(ValueError, match="references is empty; give at least one reference"):
        text_list(texts, "reference")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
def test_only_integers_of_at_least_the_minimum_are_accepted(value):
    assert require_integer(1, "n") == 1
    with pytest.raises(ValueError, match="n must be an integer of at least 1, got"):
        require_integer(value, "n")


def test_the_minimum_can_be_set():
    assert require_integer(0, "n", least=0) == 0
    with pytest.raises(ValueError, match="at least 2, got 1"):
        require_integer(1, "n", least=2)
