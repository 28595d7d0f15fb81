"""The package checks arguments before it uses them."""

import pytest

from course_pkg.arguments import (
    require_choice,
    require_integer,
    require_list,
    require_number,
    require_string,
    text_list,
)


@pytest.mark.parametrize("value", [None, 3, b"text", ["a", "list"], {"a": 1}])
def test_a_value_that_is_not_a_string_raises_an_error_with_its_type(value):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^a text must be a string, got .* \({kind}\)$"):
        require_string(value)
    with pytest.raises(TypeError, match=r"^row 3 must be .*\); read it first$"):
        require_string(value, "row 3", "read it first")


def test_valid_values_are_returned_unchanged():
    assert [require_string(text) for text in ("", " a b ")] == ["", " a b "]
    assert require_list(("a",), "texts", "") == ("a",)
    assert require_choice("a", "letter", "ab") == "a"
    assert (require_integer(1, "n"), require_integer(0, "n", least=0)) == (1, 0)
    assert (require_number(3, "x"), require_number(0.5, "x")) == (3, 0.5)


def test_a_long_value_is_truncated_in_the_message():
    with pytest.raises(TypeError) as caught:
        require_string(list(range(10_000)))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("value", ["a", b"a", None, 3, {"a": 1}, iter("a")])
def test_a_value_that_is_not_a_list_raises_an_error_that_says_how_to_fix_it(value):
    with pytest.raises(TypeError, match=r"^texts must be a list, got .*; use \[ \]$"):
        require_list(value, "texts", "use [ ]")


@pytest.mark.parametrize("texts", ["one text", ("one text",), ["one text"]])
def test_one_text_becomes_a_list_of_one(texts):
    assert text_list(texts) == ["one text"]


def test_any_iterable_of_texts_is_accepted_and_copied():
    given = ["a", "b"]
    text_list(given).append("c")
    assert text_list(tuple(given)) == text_list(text for text in "ab") == given == ["a", "b"]
    assert text_list(["", ""]) == ["", ""]


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


@pytest.mark.parametrize("value", ["c", "", 1, None, ["a"]])
def test_only_the_choices_are_accepted(value):
    with pytest.raises(ValueError, match="letter must be one of a, b, got"):
        require_choice(value, "letter", ["a", "b"])


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
def test_only_integers_of_at_least_the_minimum_are_accepted(value):
    with pytest.raises(ValueError, match="n must be an integer of at least 1, got"):
        require_integer(value, "n")
    with pytest.raises(ValueError, match="at least 2, got 1"):
        require_integer(1, "n", least=2)


@pytest.mark.parametrize("value", [True, "1", None, 1j])
def test_only_numbers_are_accepted(value):
    with pytest.raises(TypeError, match="x must be a number, got"):
        require_number(value, "x")
