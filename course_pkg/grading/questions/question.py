"""What a question is, as data, and how `questions.toml` is read. Nothing is run here."""

import tomllib
from dataclasses import MISSING, dataclass, fields
from typing import Any

from course_pkg.common.errors import CourseError
from course_pkg.grading.questions.plain_values import MAX_BYTES

DEADLINE_S = 60.0  # from the last look at the inputs to the last answer that counts
JUDGING_S = 2.0
GPU = ("none", "optional", "required")


class QuestionError(CourseError, RuntimeError):
    """A question is written wrongly: an author's mistake, never a student's."""


@dataclass(frozen=True)
class Property:
    """Something that must hold, worth `points`, earned only if all its cases pass.

    Attributes:
        says: what must hold, in the student's words.
        hint: what to look at on failure.
        draw: the function in `cases.py` that draws the inputs of one case; "" for a number worked
            by hand.
        options: what that function gets by name.
        cases: how many are drawn.
        unchanged: an answer must also leave its arguments unchanged.
        constant: one answer is right for everybody, as an example that students construct may be;
            then it is worth one point. `course author-check` finds any other.
        attested: part of it is only observed in the student's process, which a program there can
            forge.
        compare: the comparator, if it is not the question's.
    """

    name: str
    points: int
    says: str
    hint: str
    draw: str = ""
    options: dict[str, Any] | None = None
    cases: int = 3
    unchanged: bool = False
    constant: bool = False
    attested: bool = False
    compare: dict[str, Any] | None = None


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer: it filters draws, recognizes a mistake, and must lose exactly its points.

    Attributes:
        says: what the student is told after “It looks as if”, in place of the property's hint.
        loses: the properties that it loses.
        patch: pairs of the old text, whole words or lines that the model answer has exactly once,
            and the new one.
        wrap: instead, an expression of `answer` and the names of the inputs.
        answer: instead, the whole answer.
    """

    name: str
    says: str
    loses: tuple[str, ...]
    patch: tuple[tuple[str, str], ...] = ()
    wrap: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Question:
    """One question. Its points are the sum over its properties.

    Attributes:
        call: the names of the inputs that an answer gets, or the function of `student.py` that
            calls it, or () for a number worked by hand.
        variant: of a number worked by hand, the function of `cases.py` that draws the student's own
            case, by default the question's name up to the slash.
        given: of a number worked by hand, the case's name in the notebook.
        compare: the comparator, by default equal numbers.
        because: the reason for its tolerance.
        answer: the model answer's code.
        expected: the function of `cases.py` that gives the right value.
        judging: seconds to judge an answer, without recognizing mistakes.
        artifact: for files that the answer's program wrote, the bytes that they may have; `call`
            reads them, once for all properties, and the program gets no inputs.
        follows: the earlier questions on whose values a number worked by hand builds.
        setup: imports that its answers may use beside the assignment's; only with such a library
            can it be checked.
    """

    name: str
    answer: str
    compare: dict[str, Any]
    properties: tuple[Property, ...]
    wrong: tuple[WrongAnswer, ...] = ()
    call: tuple[str, ...] | str = ()
    variant: str = ""
    given: str = ""
    because: str = ""
    expected: str = ""
    judging: float = JUDGING_S
    artifact: int = 0
    follows: tuple[str, ...] = ()
    setup: str = ""

    @property
    def points(self) -> int:
        """The sum over the properties."""
        return sum(p.points for p in self.properties)

    def by_name(self, name: str) -> Property:
        """The property of that name. Raises KeyError."""
        return {p.name: p for p in self.properties}[name]

    def losing(self, name: str) -> list[WrongAnswer]:
        """The wrong answers that lose the property of that name."""
        return [wrong for wrong in self.wrong if name in wrong.loses]


@dataclass(frozen=True)
class Assignment:
    """The questions of an assignment by name, and what they share.

    Attributes:
        imports: libraries that answers need.
        masked: modules that would answer a question, which the grader hides from students.
        setup: the imports that every model answer may use.
        gpu: "none", "optional" (answers use a GPU if there is one) or "required" (they wait for
            one).
        models: the cached models that the checker judges with.
        cell_s: the seconds that a cell may take, if that is more than the grader allows anyway, for
            a cell that trains.
    """

    name: str
    questions: dict[str, Question]
    imports: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    setup: str = ""
    gpu: str = "none"
    models: tuple[str, ...] = ()
    cell_s: float = 0.0

    @property
    def artifacts_s(self) -> float:
        """The seconds that judging all artifacts may take."""
        return sum(q.judging for q in self.questions.values() if q.artifact)


def function_name(text: str) -> str:
    """The Python name for a question's or variant's name, as by_hand_codes for "by-hand/codes"."""
    return text.replace("-", "_").replace("/", "_")


def parse_questions(name: str, text: str) -> Assignment:
    """The assignment in the text of a `questions.toml`. Raises QuestionError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise QuestionError(str(error)) from None
    questions: dict[str, Question] = {}
    for key, row in table.pop("question", {}).items():
        questions[key] = _question(key, row)
        _validate(questions[key], earlier=questions)
    _require(bool(questions), "it has no questions; expected tables [question.NAME]")
    assignment = _build(Assignment, "the file", name=name, questions=questions, **table)
    expected = ", ".join(f'"{choice}"' for choice in GPU)
    wrong_gpu = f"the file: gpu is {assignment.gpu!r}; expected one of {expected}"
    _require(assignment.gpu in GPU, wrong_gpu)
    return assignment


def _question(name: str, row: dict[str, Any]) -> Question:
    place = f"question {name}"
    row = {"compare": {"kind": "number"}, "expected": f"{function_name(name)}_expected"} | row
    by_hand = "call" not in row
    if by_hand:
        row = {"variant": name.partition("/")[0], "given": "case"} | row
    properties = []
    for key, one in row.pop("property", {}).items():
        how = {"cases": 1} if by_hand else {"draw": function_name(f"{name}/{key}")}
        one = one | how if by_hand else how | one
        properties.append(_build(Property, f"{place}, property {key}", name=key, **one))
    _require(bool(properties), f"{place}: it has no properties")
    every = [p.name for p in properties]
    wrong = [
        _build(WrongAnswer, f"{place}, wrong answer {key}", name=key, **({"loses": every} | one))
        for key, one in row.pop("wrong", {}).items()
    ]
    return _build(Question, place, name=name, properties=properties, wrong=wrong, **row)


def _build(kind: type, place: str, **row: Any) -> Any:
    """A dataclass of `row`, lists as tuples; QuestionError if a key is unknown or missing."""
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(row) - known):
        raise QuestionError(f"{place}: unknown key {unknown[0]!r}; expected {sorted(known)}")
    if missing := [f.name for f in fields(kind) if f.default is MISSING and f.name not in row]:
        raise QuestionError(f"{place}: {missing[0]!r} is missing")
    return kind(**{key: _frozen(value) for key, value in row.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _validate(q: Question, earlier: dict[str, Question]) -> None:
    """Raise QuestionError for a question that contradicts itself, or follows what isn't earlier."""
    for p in q.properties:
        place = f"question {q.name}/{p.name}"
        enough = type(p.points) is int and p.points >= 1 and p.cases >= 1
        _require(enough, f"{place}: expected at least 1 point and 1 case")
        _require(not p.constant or p.points == 1, f"{place}: what is constant is worth 1 point")
    place = f"question {q.name}"
    _require(bool(q.variant) != bool(q.call), f"{place}: expected either `call` or `variant`")
    readable = not q.artifact or isinstance(q.call, str)
    wrong_size = f"{place}: an artifact of {q.artifact} bytes, called by {q.call!r}; expected one "
    wrong_size += f"below {MAX_BYTES}, read by a function of student.py"
    _require(0 <= q.artifact < MAX_BYTES and readable, wrong_size)
    files = f"{place}: the wrong answers of an artifact are files: test it"
    _require(not (q.artifact and q.wrong), files)
    tolerant = _has_tolerance([q.compare, *(p.compare for p in q.properties)])
    _require(not tolerant or bool(q.because), f"{place}: a tolerance needs a reason: add `because`")
    names = [p.name for p in q.properties]
    for wrong in q.wrong:
        place = f"question {q.name}, wrong answer {wrong.name}"
        loses = f"`loses` is {list(wrong.loses)}; expected some of {names}"
        _require(bool(wrong.loses) and set(wrong.loses) <= set(names), f"{place}: {loses}")
        kinds = [kind for kind in (wrong.patch, wrong.wrap, wrong.answer) if kind]
        _require(len(kinds) == 1, f"{place}: expected one of `patch`, `wrap` and `answer`")
        named = f"{place}: `wrap` needs inputs with names, not `call = {q.call!r}`"
        _require(not wrong.wrap or not isinstance(q.call, str), named)
    before = [other.name for other in earlier.values() if other is not q]
    fitting = [name for name in before if q.variant and earlier[name].variant == q.variant]
    for name in q.follows:
        follows = f"`follows` names {name!r}; expected earlier questions by hand with its variant"
        _require(name in fitting, f"question {q.name}: {follows}: {fitting}")


def _require(good: bool, message: str) -> None:
    if not good:
        raise QuestionError(message)


def _has_tolerance(spec: Any) -> bool:
    if isinstance(spec, dict):
        return any(
            bool(value) if key in ("rtol", "atol") else _has_tolerance(value)
            for key, value in spec.items()
        )
    return isinstance(spec, list | tuple) and any(map(_has_tolerance, spec))
