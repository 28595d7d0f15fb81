"""Reads questions from `questions.toml`, and refuses what is written wrongly, naming the place.

Chapter: appendix/for-instructors.
"""

import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from .questions import Assignment, ChecksError, Property, Question, WrongAnswer, function_name
from .values import MAX_BYTES

GPU = ("none", "optional", "required")


def read_questions(name: str, path: Path) -> Assignment:
    """The assignment that a `questions.toml` describes. Raises ChecksError, naming the place."""
    try:
        return parse_questions(name, path.read_text("utf-8"))
    except ChecksError as error:
        raise ChecksError(f"{path}: {error}") from None


def parse_questions(name: str, text: str) -> Assignment:
    """The assignment in the text of a `questions.toml`. Raises ChecksError.

    >>> parse_questions("demo", '[question.double]\\nanswer = "pass"')
    Traceback (most recent call last):
    ...
    course_pkg.grading.contract.questions.ChecksError: question double: it has no properties
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ChecksError(str(error)) from None
    rows = table.pop("question", {})
    questions = {key: _question(key, row) for key, row in rows.items()}
    for question in questions.values():
        _validate_follows(question, questions)
    if not questions:
        raise ChecksError("it has no questions; expected tables [question.NAME]")
    assignment = _build(Assignment, "the file", name=name, questions=questions, **table)
    if assignment.gpu not in GPU:
        expected = ", ".join(f'"{choice}"' for choice in GPU)
        raise ChecksError(f"the file: gpu is {assignment.gpu!r}; expected one of {expected}")
    return assignment


def _question(name: str, row: dict[str, Any]) -> Question:
    place, row = f"question {name}", dict(row)
    properties = tuple(_property(name, *item, row) for item in row.pop("property", {}).items())
    if not properties:
        raise ChecksError(f"{place}: it has no properties")
    every = tuple(p.name for p in properties)
    wrong = tuple(
        _build(WrongAnswer, f"{place}, wrong answer {key}", name=key, **({"loses": every} | one))
        for key, one in row.pop("wrong", {}).items()
    )
    row = {"compare": {"kind": "number"}, "expected": f"{function_name(name)}_expected"} | row
    if "call" not in row:  # a number worked by hand
        row = {"variant": name.partition("/")[0], "given": "case"} | row
    question = _build(Question, place, name=name, properties=properties, wrong=wrong, **row)
    _validate(question)
    return question


def _property(question: str, name: str, row: dict[str, Any], of: dict[str, Any]) -> Property:
    if "call" in of:
        row = {"draw": function_name(f"{question}/{name}")} | row
    else:
        row = {**row, "cases": 1}
    return _build(Property, f"question {question}, property {name}", name=name, **row)


def _build(kind: type, place: str, **row: Any) -> Any:
    """A dataclass of `row`, lists as tuples; ChecksError if a key is unknown or missing."""
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(row) - known):
        raise ChecksError(f"{place}: unknown key {unknown[0]!r}; expected {sorted(known)}")
    if missing := [f.name for f in fields(kind) if f.default is MISSING and f.name not in row]:
        raise ChecksError(f"{place}: {missing[0]!r} is missing")
    return kind(**{key: _frozen(value) for key, value in row.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _validate(q: Question) -> None:
    for p in q.properties:
        if type(p.points) is not int or p.points < 1 or p.cases < 1:
            raise ChecksError(f"question {q.name}/{p.name}: expected at least 1 point and 1 case")
        if p.constant and p.points > 1:
            raise ChecksError(f"question {q.name}/{p.name}: what is constant is worth 1 point")
    if bool(q.variant) == bool(q.call):
        raise ChecksError(f"question {q.name}: expected either `call` or `variant`")
    if not 0 <= q.artifact < MAX_BYTES or (q.artifact and not isinstance(q.call, str)):
        size = f"{q.artifact} bytes, called by {q.call!r}"
        kind = f"below {MAX_BYTES}, read by a function of student.py"
        raise ChecksError(f"question {q.name}: an artifact of {size}; expected one {kind}")
    if q.artifact and q.wrong:
        raise ChecksError(f"question {q.name}: the wrong answers of an artifact are files: test it")
    if _has_tolerance([q.compare, *(p.compare for p in q.properties)]) and not q.because:
        raise ChecksError(f"question {q.name}: a tolerance needs a reason: add `because`")
    for wrong in q.wrong:
        place = f"question {q.name}, wrong answer {wrong.name}"
        names = [p.name for p in q.properties]
        if not wrong.loses or not set(wrong.loses) <= set(names):
            raise ChecksError(f"{place}: `loses` is {list(wrong.loses)}; expected some of {names}")
        if sum(map(bool, (wrong.patch, wrong.wrap, wrong.answer))) != 1:
            raise ChecksError(f"{place}: expected one of `patch`, `wrap` and `answer`")
        if wrong.wrap and isinstance(q.call, str):
            raise ChecksError(f"{place}: `wrap` needs inputs with names, not `call = {q.call!r}`")


def _validate_follows(q: Question, questions: dict[str, Question]) -> None:
    """Raise ChecksError unless what a question follows comes earlier, by hand, in its variant."""
    before = list(questions)[: list(questions).index(q.name)]
    fitting = [name for name in before if q.variant and questions[name].variant == q.variant]
    for name in q.follows:
        if name not in fitting:
            expected = f"expected earlier questions by hand with its variant: {fitting}"
            raise ChecksError(f"question {q.name}: `follows` names {name!r}; {expected}")


def _has_tolerance(spec: Any) -> bool:
    if isinstance(spec, dict):
        return any(
            bool(value) if key in ("rtol", "atol") else _has_tolerance(value)
            for key, value in spec.items()
        )
    return isinstance(spec, list | tuple) and any(map(_has_tolerance, spec))
