"""What every metric asks of its texts."""

import pytest

from course_pkg.metrics.texts import require_string, text_list


@pytest.mark.parametrize("value", [None, 3, b"text", ["a", "list"], {"a": 1}])
def test_what_is_no_string_is_refused_with_what_it_is(value):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^a text must be a string, got .* \({kind}\)$"):
        require_string(value)
    with pytest.raises(TypeError, match=r"^row 3 must be .*\); read it first$"):
        require_string(value, "row 3", "read it first")


def test_a_string_comes_back_as_it_is():
    assert require_string("") == ""
    assert require_string(" a b ") == " a b "


def test_a_long_value_is_cut_short_in_the_message():
    with pytest.raises(TypeError) as caught:
        require_string(list(range(10_000)))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("texts", ["one text", ("one text",), ["one text"]])
def test_one_text_is_a_list_of_one(texts):
    assert text_list(texts) == ["one text"]


def test_several_texts_come_from_whatever_can_be_gone_through():
    assert text_list(("a", "b")) == ["a", "b"]
    assert text_list(text for text in "ab") == ["a", "b"]
    assert text_list(["", ""]) == ["", ""]


def test_the_list_is_a_copy():
    given = ["a"]
    text_list(given).append("b")
    assert given == ["a"]


@pytest.mark.parametrize("texts", [None, 3, b"text", {"a": 1}])
def test_what_holds_no_texts_is_refused(texts):
    with pytest.raises(TypeError, match="references must be a string, or a list of strings, got"):
        text_list(texts, "reference")


def test_the_place_of_what_is_no_text_is_named():
    with pytest.raises(TypeError, match=r"reference 1 must be a string, got \['b'\] \(list\)"):
        text_list(["a", ["b"]], "reference")


@pytest.mark.parametrize("texts", [[], (), iter(())])
def test_no_text_at_all_is_refused(texts):
    with pytest.raises(ValueError, match="there is no reference: references is empty"):
        text_list(texts, "reference")
