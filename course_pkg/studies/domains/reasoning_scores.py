"""Prompts and scores for items with a chain of thought: direct answers against reasoned ones.

Both ways see the same questions and, in the prompt, the same examples. They differ in what stands
after "Answer:" in an example: "The answer is yn." or the chain first. A text is scored by its last
"The answer is …", or by its last number if the answer is one; nothing is taken from a text without.

Source: Wei et al. 2022, "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models",
section 3.1 and appendix, for the prompts. Chapter: evaluation/domains.
"""

from collections.abc import Sequence
from typing import Literal

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.evaluation.answer_extraction import Rule, extract
from course_pkg.evaluation.answer_match import exact_match
from course_pkg.studies.domains.reasoning_item import ReasoningItem

Style = Literal["direct", "reasoned"]
STYLES = ("direct", "reasoned")
# Up to the end of the sentence or the line; a period inside a number belongs to it.
STATED = Rule("stated answer", r"\b[Aa]nswer is:?\s+([^\n]*?)(?:\.(?!\d)|\n|\Z)", "last")


def reasoning_prompt(
    item: ReasoningItem, examples: Sequence[ReasoningItem] = (), style: Style = "direct"
) -> str:
    """The text that a model continues: the examples with their answers, and then the question.

    style: how the examples answer, "direct" or "reasoned". Raises ValueError for another style, or
    if the item is among the examples.

    >>> shown = ReasoningItem("sum", "1 + 2 + 3?", "1 + 2 = 3. 3 + 3 = 6.", "6", 2)
    >>> asked = ReasoningItem("sum", "2 + 2 + 2?", "2 + 2 = 4. 4 + 2 = 6.", "6", 2)
    >>> print(reasoning_prompt(asked, [shown], "reasoned"))
    Question: 1 + 2 + 3?
    Answer: 1 + 2 = 3. 3 + 3 = 6. The answer is 6.
    <BLANKLINE>
    Question: 2 + 2 + 2?
    Answer:
    """
    require_choice(style, "style", STYLES)
    require_list(examples, "examples", "put the items into [ ]")
    if any(example.question == item.question for example in examples):
        raise ValueError(f"the question {item.question!r:.60} is also an example: leave it out")
    parts = [f"Question: {each.question}\nAnswer: {getattr(each, style)}" for each in examples]
    return "\n\n".join([*parts, f"Question: {item.question}\nAnswer:"])


def score_reasoning(items: Sequence[ReasoningItem], texts: Sequence[str]) -> list[int]:
    """1 for each text with the item's answer, else 0: for intervals and paired comparisons.

    Case doesn't count. Raises ValueError for another number of texts.

    >>> item = ReasoningItem("flip", "Is it heads up?", "Amy: tails.", "no", 1)
    >>> score_reasoning([item] * 3, ["Amy: tails. The answer is no.", "The answer is yes.", "No."])
    [1, 0, 0]
    """
    require_list(items, "items", "put the items into [ ]")
    if len(items) != len(texts):
        raise ValueError(f"{len(items)} items and {len(texts)} texts: give one text for each item")
    return [int(_is_right(item, text)) for item, text in zip(items, texts, strict=True)]


def _is_right(item: ReasoningItem, text: str) -> bool:
    number = item.answer.isdigit()
    found = extract(text, [STATED, "last number"] if number else [STATED])
    if found is None:
        return False
    if not number:
        return exact_match(found.answer.lower(), item.answer.lower(), "strip")
    digits = extract(found.answer, ["last number"])
    return digits is not None and exact_match(digits.answer, item.answer, "number")
