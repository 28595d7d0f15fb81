"""The package checks arguments before it uses them."""

import math
import re

import pytest

from course_pkg.common.arguments import (
    require_between,
    require_bool,
    require_choice,
    require_integer,
    require_list,
    require_number,
    require_string,
    text_list,
)


def test_valid_values_are_returned_unchanged():
    assert [require_string(text) for text in ("", " a b ")] == ["", " a b "]
    assert require_list(("a",), "texts", "") == ("a",)
    assert require_choice("a", "letter", "ab") == "a"
    assert (require_integer(1, "n"), require_integer(0, "n", least=0)) == (1, 0)
    assert (require_number(3, "x"), require_number(0.5, "x")) == (3, 0.5)
    assert (require_between(0.5, "x", 0, 1), require_between(0, "x", 0, 1, closed=True)) == (0.5, 0)
    assert require_bool(False, "x") is False


def test_one_text_or_any_iterable_of_texts_becomes_a_new_list():
    given = ["a", ""]
    assert text_list("one text") == ["one text"]
    assert text_list(given) == text_list(tuple(given)) == text_list(iter(given)) == given
    assert text_list(given) is not given


def test_a_long_value_is_truncated_in_the_message():
    with pytest.raises(TypeError) as caught:
        require_string(list(range(10_000)))
    assert len(str(caught.value)) < 150


def test_another_value_is_refused_with_what_is_wanted(subtests):
    for require, arguments, values, error in (
        (require_string, [], [None, b"text", ["a"]], r"TypeError: a text must be a string, got"),
        (require_string, ["row 3", "read it"], [3], r"TypeError: row 3 must .* \(int\); read it$"),
        (
            require_list,
            ["x", "use [ ]"],
            ["a", b"a", None, {}, iter("a")],
            "TypeError: x must be a l",
        ),
        (text_list, ["word"], [None, 3, b"text", {"a": 1}], "TypeError: words must be a string or"),
        (text_list, ["word"], [["a", ["b"]]], r"TypeError: word 1 must .* got \['b'\] \(list\)"),
        (text_list, ["word"], [[], (), iter(())], "ValueError: words is empty; give at least one"),
        (
            require_choice,
            ["x", ["a", "b"]],
            ["c", "", 1, ["a"]],
            "ValueError: x must be one of a, b",
        ),
        (
            require_integer,
            ["n"],
            [0, -1, 1.0, True, "2"],
            "ValueError: n must be .* at least 1, got",
        ),
        (require_integer, ["n", 2], [1], "ValueError: n must be an integer of at least 2, got 1"),
        (require_number, ["x"], [True, "1", None, 1j], "TypeError: x must be a number, got"),
        (require_between, ["x", 0, 1], [True, "1"], "TypeError: x must be a number, got"),
        (
            require_between,
            ["x", 0, math.inf],
            [0, math.nan, math.inf],
            "ValueError: x .* and finite",
        ),
        (
            require_between,
            ["x", 0, 1, True],
            [-0.1, 1],
            "ValueError: x must be at least 0 and below",
        ),
        (require_bool, ["x"], [0, "yes", None], "TypeError: x must be True or False, got"),
    ):
        with subtests.test(require=require.__name__):
            for value in values:
                with pytest.raises((TypeError, ValueError)) as caught:
                    require(value, *arguments)
                assert re.match(error, f"{caught.typename}: {caught.value}")
