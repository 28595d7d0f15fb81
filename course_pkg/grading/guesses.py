"""Guesses: answers that need no work, and for how many students they are right.

A guess knows the order of the cases and what other students' right values are. For each case, and
for each part of an answer by itself, it gives everybody the same value, or passes on something of
the input. A boolean is guessed in every second case: a property is safe if several cases vary.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any

from course_pkg.grading.questions.answer_key import AnswerKey, answer_key
from course_pkg.grading.questions.display import shorten
from course_pkg.grading.questions.draws import Case, draw_case
from course_pkg.grading.questions.plain_values import encode
from course_pkg.grading.questions.question import Property, Question

STUDENTS = 32
MOST = STUDENTS // 4  # students for whom a guess may be right: 3 booleans that vary give an eighth
TRIES = 8  # students for one of whom a guess must be right, to be tried on all others
ITEMS = 6  # of an argument that are tried, and parts of an answer
Source = Callable[[int], Any]  # what a guess gives for a student's case


@dataclass(frozen=True)
class Guess:
    """The best guess that was found. right: for how many students; text: what it gives."""

    right: int
    text: str


def problems(assignment: str) -> Iterator[str]:
    """What guesses earn in an assignment, and what is called constant but is not, in sentences."""
    answers = answer_key(assignment)
    for question in answers.assignment.questions.values():
        if question.artifact or question.variant:  # files; a case that its student knows
            continue
        for prop in question.properties:
            if prop.attested:  # what is observed can be claimed anyway: the threat model lists it
                continue
            best = best_guess(answers, question, prop)
            if (best.right > MOST) == prop.constant:
                continue
            what = f"a guess is right for {best.right} of {STUDENTS} students ({best.text})"
            if prop.constant:
                what = "it is called constant, but no guess is right for most students"
            yield f"{question.name}/{prop.name}: {what}: draw more, or correct `constant`"


def best_guess(answers: AnswerKey, question: Question, prop: Property) -> Guess:
    """The best guess for a property, chosen case by case and part by part.

    Once it is right for too few students, the rest is neither tried nor drawn.
    """
    rngs = [Random(f"{question.name}/{prop.name}/{i}") for i in range(STUDENTS)]
    told: list[str] = []
    for place in range(prop.cases):
        cases = [draw_case(answers, question, prop, rng, place) for rng in rngs]
        values = [_right(answers, question, case) for case in cases]
        left = list(range(len(cases)))
        for part in _parts(values):

            def fits(source: Source, i: int, cases=cases, values=values, part=part) -> bool:
                given = _replaced(values[i], part, source(i))
                return answers.difference(question, prop.name, cases[i].expected, given) is None

            chosen, left = _best(_sources(question, cases, values, part), fits, left)
            told.append(chosen)
            if len(left) <= MOST:
                return Guess(len(left), "")
        rngs = [rngs[i] for i in left]
    return Guess(len(rngs), "; ".join(told))


def _right(answers: AnswerKey, question: Question, case: Case) -> Any:
    """The expected value; or what the model answer gives, if that says only what it must do."""
    value = copy(case.expected)
    if answers.difference(question, case.property, case.expected, value) is not None:
        value = answers.outcome(question, case.inputs, None, case.unchanged).get("value")
    return value


def _parts(values: list[Any]) -> list[Any]:
    """The keys or indices of parts that are guessed by themselves; [None] for the whole value."""
    first = values[0]
    if isinstance(first, dict):
        same = all(isinstance(value, dict) and list(value) == list(first) for value in values)
        return list(first) if same and first else [None]
    if not isinstance(first, list | tuple) or not 0 < len(first) <= ITEMS:
        return [None]
    same = all(type(value) is type(first) and len(value) == len(first) for value in values)
    return list(range(len(first))) if same else [None]


def _replaced(value: Any, part: Any, new: Any) -> Any:
    if part is None:
        return new
    items = value.items() if isinstance(value, dict) else enumerate(value)
    changed = {key: new if key == part else item for key, item in items}
    return changed if isinstance(value, dict) else type(value)(changed.values())


def _sources(
    question: Question, cases: list[Case], values: list[Any], part: Any
) -> Iterator[tuple[str, Source, int]]:
    """What a guess can give: its description, and the student whose right value it is, or -1."""
    seen = set()
    for i, value in enumerate(values):
        constant = value if part is None else value[part]
        if (key := encode(constant)) not in seen:
            seen.add(key)
            yield shorten(constant, 40), lambda _, constant=constant: constant, i
    for name, echo in _echoes(question, cases[0].inputs):
        yield name, lambda i, echo=echo: echo(cases[i].inputs), -1


def _echoes(
    question: Question, inputs: dict[str, Any]
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Ways to get a value out of the input."""
    for name in question.call if isinstance(question.call, tuple) else inputs:
        if name.startswith("_"):  # for the caller in `student.py` alone
            continue
        yield name, lambda given, name=name: given[name]
        if isinstance(inputs[name], list | tuple | dict | str):
            yield f"len({name})", lambda given, name=name: len(given[name])
        if isinstance(inputs[name], list | tuple | dict):
            yield f"list({name})", lambda given, name=name: list(given[name])
            for at in range(min(len(inputs[name]), ITEMS)):
                text = f"list({name})[{at}]"
                yield text, lambda given, name=name, at=at: list(given[name])[at]
                yield f"[{text}]", lambda given, name=name, at=at: [list(given[name])[at]]


def _best(
    sources: Iterator[tuple[str, Source, int]],
    fits: Callable[[Source, int], bool],
    left: list[int],
) -> tuple[str, list[int]]:
    """The source that is right for most of the students, and those."""
    best: tuple[str, list[int]] = ("", [])
    for text, source, owner in sources:
        right: list[int] = []
        others = [i for i in left if i != owner]
        for tried, i in enumerate(others):
            if len(right) + len(others) - tried < len(best[1]) or (tried == TRIES and not right):
                break
            with suppress(LookupError):
                if fits(source, i):
                    right.append(i)
        else:
            right += [owner] if owner in left else []
            if len(right) > len(best[1]):
                best = text, sorted(right)
        if len(best[1]) == len(left):
            break
    return best
