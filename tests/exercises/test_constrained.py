"""`constrained`: expressions are judged by their texts, in time, and the mark scheme."""

import pytest

from course_pkg.grading.assignments.constrained import cases
from course_pkg.grading.assignments.constrained.student import RAISED
from course_pkg.serving.constrained.guide import FINISHED
from tests.exercises.assignments import SOLUTIONS, notebook

EXPRESSIONS = (  # for the texts "a" and "b", and what is told; None if it is right
    ('"a"|"b"', None),
    ('"[ab]"', None),
    ('(?:"(a|b)")', None),
    ('"a"', '"b": the expression is wrong'),
    ('"[a-c]"', '"c": the expression is wrong'),
    ('"a|b"', "the expression is wrong"),
    ('^"[ab]"$', "the anchor ^ is not supported"),
    ('"[ab]', "the expression is wrong"),
    ('"[ab"', "there is no ]"),
    ('"(a*)*"', "far more texts"),
    ('".{0,999}"', "far more texts"),
    ('"(a|b|ab){0,5000}"', "your expression"),
    ("a" * 30_000, "at most 1000 are read"),
    ("a" * 999, "the expression is wrong"),
    ("(" * 200, "groups inside each other"),
    ("", "the expression is wrong"),
    (b'"a"', "expected a text"),
    (RAISED, "expected a text"),
)


def test_an_expression_is_judged_by_its_texts():
    for given, told in EXPRESSIONS:
        reason = cases.same_texts(['"a"', '"b"'], given)
        assert reason is None if told is None else told in str(reason), (given, reason)


def test_only_a_value_error_is_a_value_error():
    assert cases.same_texts(RAISED, RAISED) is None
    assert "expected a ValueError" in cases.same_texts(RAISED, "null")


def test_the_mark_scheme_has_the_numbers_of_the_formulas():
    scheme = notebook(SOLUTIONS, "constrained").cells[-2].source
    first = {"Yes": 0.30, "No": 0.55}
    then = {"Yes": 0.90, "No": 0.10}
    joint = {word: first[word] * then[word] for word in first}
    total = sum(joint.values())
    masked = {word: first[word] / sum(first.values()) for word in first}
    for word, p in joint.items():
        assert f"{p:.3f}".rstrip("0") in scheme
        assert f"{p / total:.2f}" in scheme
        assert f"{masked[word]:.2f}" in scheme
        assert masked[word] == pytest.approx(p / (sum(first.values()) * then[word]))
    for number in (f"{total:.3f}", f"{1 / total:.1f}", f"{joint['Yes'] / joint['No']:.1f}"):
        assert number in scheme
    assert max(joint, key=joint.get) == "Yes"
    assert max(masked, key=masked.get) == "No"
    assert FINISHED == cases.FINISHED
