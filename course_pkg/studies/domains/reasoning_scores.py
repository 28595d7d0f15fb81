"""Prompts, scores and faults of chains of thought: direct answers against reasoned ones.

A chain that is right in other words counts as a wrong step. Source: Wei et al. 2022, section 3.1.
Chapter: evaluation/domains.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from course_pkg.common.arguments import require_choice, require_list, require_string
from course_pkg.evaluation.answer_extraction import Rule, extract
from course_pkg.evaluation.answer_match import exact_match
from course_pkg.studies.domains.reasoning_items import ReasoningItem

Style = Literal["direct", "reasoned"]
STYLES = ("direct", "reasoned")
# Up to the end of the sentence or the line; a period inside a number belongs to it.
STATED = Rule("stated answer", r"\b[Aa]nswer is:?\s+([^\n]*?)(?:\.(?!\d)|\n|\Z)", "last")


def reasoning_prompt(
    item: ReasoningItem, examples: Sequence[ReasoningItem] = (), style: Style = "direct"
) -> str:
    """The text that a model continues: examples, "direct" or "reasoned", and then the question."""
    require_choice(style, "style", STYLES)
    require_list(examples, "examples", "put the items into [ ]")
    if any(example.question == item.question for example in examples):
        raise ValueError(f"the question {item.question!r:.60} is also an example: leave it out")
    parts = [
        f"Question: {example.question}\nAnswer: {getattr(example, style)}" for example in examples
    ]
    return "\n\n".join([*parts, f"Question: {item.question}\nAnswer:"])


def score_reasoning(items: Sequence[ReasoningItem], texts: Sequence[str]) -> list[int]:
    """1 for each text whose last "The answer is …" is the item's, else 0; case doesn't count."""
    require_list(items, "items", "put the items into [ ]")
    if len(items) != len(texts):
        raise ValueError(f"{len(items)} items and {len(texts)} texts: give one text for each item")
    return [int(_is_right(item, text)) for item, text in zip(items, texts, strict=True)]


def _is_right(item: ReasoningItem, text: str) -> bool:
    number = item.answer.isdigit()
    stated = extract(text, [STATED, "last number"] if number else [STATED])
    if stated is None:
        return False
    if not number:
        return exact_match(stated.answer.lower(), item.answer.lower(), "strip")
    digits = extract(stated.answer, ["last number"])
    return digits is not None and exact_match(digits.answer, item.answer, "number")


FAULTS = ("none", "wrong step", "too few steps", "too many steps", "wrong answer")
EQUATION = re.compile(r"(\d+(?:\.\d+)?)\s*([-+*/])\s*(\d+(?:\.\d+)?)\s*=\s*(-?\d+(?:\.\d+)?)")
ANSWER = re.compile(r"\b[Tt]he answer is\b")


@dataclass(frozen=True)
class Fault:
    """The first fault of a chain: one of FAULTS, and the step where it is, counted from 1."""

    name: str
    step: int


def first_fault(item: ReasoningItem, text: str) -> Fault:
    """The first fault of a text that should be `item.reasoned`; a text without an answer is wrong.

    >>> item = ReasoningItem("sum", "1 + 2 + 3?", "1 + 2 = 3. 3 + 3 = 6.", "6", 2)
    >>> first_fault(item, "1 + 2 = 3. 3 + 3 = 7. The answer is 7.")
    Fault(name='wrong step', step=2)
    """
    require_string(text, "text")
    wanted = _steps(item.chain)
    chain, *rest = ANSWER.split(text, maxsplit=1)
    steps = _steps(chain)
    for number, (right, written) in enumerate(zip(wanted, steps, strict=False), start=1):
        if written != right:
            return Fault("wrong step", number)
    if len(steps) < len(wanted):
        return Fault("too few steps", len(steps) + 1)
    if len(steps) > len(wanted):
        return Fault("too many steps", len(wanted) + 1)
    answer = "".join(rest[0].split()).rstrip(".") if rest else ""
    right_answer = answer == "".join(item.answer.split())
    return Fault("none" if right_answer else "wrong answer", len(wanted))


def check_equations(text: str) -> list[bool]:
    """Whether each equation "a op b = c" of a text is right, in order, computed exactly.

    >>> check_equations("12 / 3 = 4. 4 * 5 = 25. So it is 25.")
    [True, False]
    """
    verdicts = []
    for left, sign, right, result in EQUATION.findall(require_string(text, "text")):
        a, b, c = Fraction(left), Fraction(right), Fraction(result)
        if sign == "/":
            verdicts.append(b != 0 and a == b * c)
        else:
            verdicts.append({"+": a + b, "-": a - b, "*": a * b}[sign] == c)
    return verdicts


def _steps(chain: str) -> list[str]:
    """The sentences of a chain, without white space."""
    parts = ("".join(part.split()) for part in re.split(r"\.(?:\s|\Z)", chain))
    return [part for part in parts if part]
