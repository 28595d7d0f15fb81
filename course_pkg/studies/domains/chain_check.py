"""What is wrong with a chain of thought: the first step that differs, and the step that is missing.

Final accuracy says how often a model is wrong. A chain also says where. `first_fault` compares a
generated chain with the gold one, step by step, and names the first difference: a wrong step, too
few steps, too many steps, or steps that are right with a wrong answer. `check_equations` needs no
gold chain: it recomputes every equation.

Steps are sentences that end in a period; white space doesn't count. A chain may be right in other
words or in another order, which `first_fault` calls a wrong step, so it is for tasks whose chain
has one form, such as the generators of this folder.

Chapter: evaluation/domains.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from course_pkg.common.arguments import require_string
from course_pkg.studies.domains.reasoning_item import ReasoningItem

FAULTS = ("none", "wrong step", "too few steps", "too many steps", "wrong answer")
EQUATION = re.compile(r"(\d+(?:\.\d+)?)\s*([-+*/])\s*(\d+(?:\.\d+)?)\s*=\s*(-?\d+(?:\.\d+)?)")
ANSWER = re.compile(r"\b[Tt]he answer is\b")


@dataclass(frozen=True)
class Fault:
    """The first fault of a chain: one of FAULTS, and the step where it is, counted from 1."""

    name: str
    step: int


def first_fault(item: ReasoningItem, text: str) -> Fault:
    """The first fault of a text that should be `item.reasoned`.

    A text without "The answer is" has a wrong answer, unless a step is wrong before that.

    >>> item = ReasoningItem("sum", "1 + 2 + 3?", "1 + 2 = 3. 3 + 3 = 6.", "6", 2)
    >>> first_fault(item, "1 + 2 = 3. 3 + 3 = 7. The answer is 7.")
    Fault(name='wrong step', step=2)
    >>> first_fault(item, "1 + 2 = 3. The answer is 3.")
    Fault(name='too few steps', step=2)
    """
    require_string(text, "text")
    wanted = _steps(item.chain)
    chain, *rest = ANSWER.split(text, maxsplit=1)
    given = _steps(chain)
    for number, (right, written) in enumerate(zip(wanted, given, strict=False), start=1):
        if written != right:
            return Fault("wrong step", number)
    if len(given) < len(wanted):
        return Fault("too few steps", len(given) + 1)
    if len(given) > len(wanted):
        return Fault("too many steps", len(wanted) + 1)
    answer = "".join(rest[0].split()).rstrip(".") if rest else ""
    right_answer = answer == "".join(item.answer.split())
    return Fault("none" if right_answer else "wrong answer", len(wanted))


def check_equations(text: str) -> list[bool]:
    """Whether each equation "a op b = c" of a text is right, in order.

    op: +, -, * or /. Numbers are computed exactly, so 1 / 3 = 0.33 is wrong; so is a division by 0.

    >>> check_equations("12 / 3 = 4. 4 * 5 = 25. So it is 25.")
    [True, False]
    """
    found = []
    for left, sign, right, result in EQUATION.findall(require_string(text, "text")):
        a, b, c = Fraction(left), Fraction(right), Fraction(result)
        if sign == "/":
            found.append(b != 0 and a == b * c)
        else:
            found.append({"+": a + b, "-": a - b, "*": a * b}[sign] == c)
    return found


def _steps(chain: str) -> list[str]:
    """The sentences of a chain, without white space."""
    parts = ("".join(part.split()) for part in re.split(r"\.(?:\s|\Z)", chain))
    return [part for part in parts if part]
