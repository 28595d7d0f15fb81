"""Follow-through: one mistake should not cost the points of every number that builds on it.

A question that `follows` earlier ones is judged again, if it is wrong, with the student's own
values in place of the right ones. Those values are the student's to choose. So they count only if
they come from the student's own case, and leave the question as hard as it was:

- they have the form of the right values: as many numbers, whole where those are, and finite;
- at least half of the numbers are right, or all are what a known mistake gives in this case;
- with them, each wrong answer of the question still differs from the right one. Eight zeros, for
  which every rule gives zero, earn nothing.

Chapter: appendix/for-instructors.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .answer_key import AnswerKey, defined_name
from .draws import Case, undetected
from .questions import Question
from .values import Array

LARGEST = 1e12  # magnitude of a number that is followed


def own_case(
    key: AnswerKey, question: Question, case: Case, outcomes: Mapping[str, Any]
) -> Case | None:
    """A case of a question with the student's own values of those that it follows.

    outcomes: what was recorded, by question. None if one of the values is missing, or can't count.
    """
    followed: dict[str, Any] = {}
    for name in question.follows:
        earlier = key[name]
        right = key.expected(earlier, case.inputs)
        try:
            value = same_form(right, outcomes[name][0]["value"])
        except (KeyError, ValueError):  # not answered, an error, or another form
            return None
        if not (_half_right(key, earlier, right, value) or _known(key, earlier, case, value)):
            return None
        followed[defined_name(earlier.answer)] = value
    try:
        expected = key.expected(question, case.inputs, followed)
        own = replace(case, expected=expected, followed=followed)
        itself = key.difference(question, case.property, expected, expected)
        missed = undetected(key, question, question.by_name(case.property), [own])
    except Exception:  # no value comes from these: a division by zero, or a code above 15
        return None
    return own if itself is None and not missed else None


def same_form(right: Any, given: Any) -> Any:
    """A given value as numbers, in lists as long as those of the right value, of its types.

    Raises ValueError for anything else, and for a number that is not finite or above LARGEST.

    >>> same_form([7, 0.5], (7.0, 1))
    [7, 1.0]
    >>> same_form([7, 12], [7])
    Traceback (most recent call last):
    ...
    ValueError: not of the form of the right value
    """
    if isinstance(given, Array) and given.shape == ():
        given = given.numpy().item()
    if isinstance(right, list | tuple) and isinstance(given, list | tuple):
        if len(given) == len(right):
            return type(right)(same_form(*pair) for pair in zip(right, given, strict=True))
    elif _is_number(right) and _is_number(given) and abs(given) <= LARGEST:
        number = type(right)(given)
        if number == given:
            return number
    raise ValueError("not of the form of the right value")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _half_right(key: AnswerKey, question: Question, right: Any, value: Any) -> bool:
    """Whether at least half of the items of a list are right."""
    if not isinstance(right, list | tuple):
        return _agree(key, question, right, value)
    count = 0
    for i, item in enumerate(value):
        mixed = [*right[:i], item, *right[i + 1 :]]
        count += _agree(key, question, right, mixed)
    return 2 * count >= len(right)


def _known(key: AnswerKey, question: Question, case: Case, value: Any) -> bool:
    """Whether one of the question's wrong answers gives the value in this case."""
    for wrong in question.wrong:
        ran = key.outcome(question, case.inputs, wrong)
        if "value" in ran and _agree(key, question, ran["value"], value):
            return True
    return False


def _agree(key: AnswerKey, question: Question, expected: Any, value: Any) -> bool:
    """Whether a value earns every property of a question whose right value is `expected`."""
    return all(
        key.difference(question, p.name, expected, value) is None for p in question.properties
    )
