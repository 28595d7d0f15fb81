"""The answer key of an assignment: right values, comparisons, and what wrong answers give.

The model answer and the wrong answers are run exactly as a student's answer is.
"""

import ast
import re
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.calling import outcome, with_tensors
from course_pkg.grading.questions.comparators import Comparator, comparator
from course_pkg.grading.questions.plain_values import as_plain, encode
from course_pkg.grading.questions.question import (
    Assignment,
    Question,
    QuestionError,
    WrongAnswer,
    function_name,
)

AnswerName = tuple[str, str]  # of a question and a wrong answer to it; "" is the model answer


class AnswerKey:
    """What is needed to judge the answers to an assignment.

    Args:
        cases: the object that has the functions for draws and right values.
        callers: the one that has those for calling answers, `student.py`.

    Raises:
        QuestionError: a function is missing.

    Example:

        >>> answers = answer_key("bleu")
        >>> inputs = {"hypothesis_length": 5, "reference_lengths": [4, 6]}
        >>> answers.expected(answers["closest-length"], inputs)
        4
    """

    def __init__(self, assignment: Assignment, cases: Any, callers: ModuleType | None = None):
        self.assignment = assignment
        self.cases = cases
        self.callers = callers
        self._comparators: dict[tuple[str, str], Comparator] = {}
        self._code: dict[AnswerName, CodeType] = {}
        self._answers: dict[AnswerName, Any] = {}
        self._outcomes: dict[tuple[AnswerName, int, bool, bytes], tuple[Any, dict[str, Any]]] = {}
        for q in assignment.questions.values():
            names = [p.draw for p in q.properties if p.draw]
            if q.variant:
                names.append(function_name(q.variant))
            for name in names:
                self._function(q, name)
            self._right_value(q)
            for wrong in (None, *q.wrong):
                self._code[_name(q, wrong)] = self._compiled(q, wrong)

    def __getitem__(self, name: str) -> Question:
        """The question of that name. Raises UnknownQuestion."""
        return registry.find(self.assignment.questions, name, f"question of {self.assignment.name}")

    def draw(self, question: Question, draw: str, rng: Any, *size: int, **options: Any) -> Any:
        """The inputs that a function of `cases.py` draws, as plain values."""
        return self._called(question, draw, self._function(question, draw), rng, *size, **options)

    def expected(
        self, question: Question, inputs: Any, followed: dict[str, Any] | None = None
    ) -> Any:
        """The right value for the inputs, from the reference implementation.

        followed: the values of the questions that this one follows, by the names that their model
        answers define; by default the right ones.
        """
        if followed is None:
            followed = self._right_values(question, inputs)
        function = self._right_value(question)
        return self._called(question, question.expected, function, with_tensors(inputs), **followed)

    def _right_value(self, question: Question) -> Callable[..., Any]:
        """The question's own function or, for a number by hand, the variant's: all by name."""
        if not question.variant or hasattr(self.cases, question.expected):
            return self._function(question, question.expected)
        variant = self._function(question, f"{function_name(question.variant)}_expected")
        name = question.name.partition("/")[2]
        return lambda case: variant(case)[name]

    def _right_values(self, question: Question, inputs: Any) -> dict[str, Any]:
        earlier = [self[name] for name in question.follows]
        return {defined_name(q.answer): self.expected(q, inputs) for q in earlier}

    def difference(
        self, question: Question, property_name: str, expected: Any, given: Any
    ) -> str | None:
        """How a value differs from the expected one, by that property's comparator; or None."""
        cache_key = question.name, property_name
        if cache_key not in self._comparators:
            spec = question.by_name(property_name).compare or question.compare
            try:
                self._comparators[cache_key] = comparator(spec, self.cases)
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                place = f"question {question.name}, property {property_name}"
                raise QuestionError(f"{place}: the comparator: {error}") from None
        try:
            return self._comparators[cache_key](expected, given)
        except Exception as error:  # a value of parts that can't even be compared is not equal
            return f"the value can't be compared with the expected one ({type(error).__name__})"

    def outcome(
        self,
        question: Question,
        inputs: Any,
        wrong: WrongAnswer | None = None,
        unchanged: bool = False,
        followed: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What the model answer, or a wrong one, gives for the inputs of a case; run only once."""
        cache_key = _name(question, wrong), id(inputs), unchanged, encode(followed)
        if cache_key not in self._outcomes:
            answer = self.answer(question, inputs, wrong, followed)
            result = outcome(question.call, answer, inputs, unchanged, self.callers)
            self._outcomes[cache_key] = inputs, result  # inputs: so that its id stays its own
        return self._outcomes[cache_key][1]

    def answer(
        self,
        question: Question,
        inputs: Any,
        wrong: WrongAnswer | None = None,
        followed: dict[str, Any] | None = None,
    ) -> Any:
        """The model answer or a wrong one: a function or class, or a number worked by hand."""
        cache_key = _name(question, wrong)
        if question.variant:
            if followed is None:
                followed = self._right_values(question, inputs)
            names = {question.given: inputs, **followed}
            value = self._run(question, cache_key, names)
            if wrong and wrong.wrap:
                return self._evaluate(question, wrong.wrap, {**names, "answer": value})
            return value
        if cache_key not in self._answers:
            answer = self._run(question, cache_key, {})
            if wrong and wrong.wrap:
                answer = self._wrapped(wrong, question, answer)
            self._answers[cache_key] = answer
        return self._answers[cache_key]

    def source(self, question: Question, wrong: WrongAnswer | None = None) -> str:
        """The code of the model answer, or of a wrong one without its wrapping expression."""
        if wrong and wrong.answer:
            return wrong.answer
        code = question.answer
        for old, new in wrong.patch if wrong else ():
            place = f"question {question.name}, wrong answer {wrong.name}"
            if (count := code.count(old)) != 1:
                raise QuestionError(f"{place}: {old!r} occurs {count} times; expected once")
            before, after = code.split(old)
            if _share_a_word(before, old) or _share_a_word(old, after):
                raise QuestionError(f"{place}: {old!r} cuts a word; expected whole words or lines")
            code = code.replace(old, new)
        return code

    def setup(self, question: Question) -> str:
        """The imports that the answers to a question may use."""
        return f"{self.assignment.setup}\n{question.setup}"

    def _compiled(self, question: Question, wrong: WrongAnswer | None) -> CodeType:
        kind = f"wrong answer {wrong.name}" if wrong else "the model answer"
        file = f"<{'/'.join(_name(question, wrong))}>"
        try:
            return compile(self.source(question, wrong), file, "exec")
        except SyntaxError as error:
            text = f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
            raise QuestionError(f"question {question.name}: {kind} is not Python: {text}") from None

    def _called(
        self, question: Question, name: str, function: Any, *arguments: Any, **named: Any
    ) -> Any:
        try:
            return as_plain(function(*arguments, **named))
        except Exception as error:
            what = f"{name} raised {type(error).__name__}: {error}"
            raise QuestionError(f"question {question.name}: {what}") from error

    def _run(self, question: Question, name: AnswerName, names: dict[str, Any]) -> Any:
        """Run the code of an answer; its value is the last name that it defines."""
        names = {"__name__": "answer", **names}
        exec(self.setup(question), names)
        exec(self._code[name], names)
        return names[defined_name(question.answer)]

    def _wrapped(self, wrong: WrongAnswer, question: Question, answer: Any) -> Any:
        def wrapped(*values: Any) -> Any:
            names = dict(zip(question.call, values, strict=True), answer=answer)
            return self._evaluate(question, wrong.wrap, names)

        return wrapped

    def _evaluate(self, question: Question, expression: str, names: dict[str, Any]) -> Any:
        names = dict(names)
        exec(self.setup(question), names)
        return eval(expression, names)  # the author's own, from questions.toml

    def _function(self, question: Question, name: str) -> Any:
        function = getattr(self.cases, name, None)
        if not callable(function):
            raise QuestionError(f"question {question.name}: cases.py has no function {name}")
        return function


def answer_key(assignment: str) -> AnswerKey:
    """The answer key of an assignment. Raises UnknownQuestion and QuestionError."""
    cases = registry.module(assignment, "cases")
    return AnswerKey(registry.load(assignment), cases, registry.module(assignment, "student"))


def defined_name(code: str) -> str:
    """The last name that a piece of code defines or assigns at its top level."""
    names = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.append(statement.name)
        targets = getattr(statement, "targets", ())
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    if not names:
        raise QuestionError(f"an answer defines nothing: {code[:80]!r}")
    return names[-1]


def _share_a_word(left: str, right: str) -> bool:
    """Whether a word goes on from one text into the next, as in "return l" and "og_probs"."""
    return re.search(r"\w\Z", left) is not None and re.match(r"\w", right) is not None


def _name(question: Question, wrong: WrongAnswer | None) -> AnswerName:
    return question.name, wrong.name if wrong else ""
