"""Finding the answer in what a model wrote, by rules that have names.

What a reasoning model thinks first, up to </think>, is not looked at. Source: the filters of
lm-eval 0.4.13's GSM8K task.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import require_choice, require_list, require_string


@dataclass(frozen=True)
class Rule:
    """A named pattern. Its first group is the answer, or the whole match if it has none."""

    name: str
    pattern: str
    which: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        require_choice(self.which, "which", ("first", "last"))
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"the pattern of rule {self.name!r} is no regular expression: {error}"
            ) from None


@dataclass(frozen=True)
class Extraction:
    """An answer that a rule found: text[start:end]."""

    answer: str
    rule: str
    start: int
    end: int


# A sign counts if nothing stands before it: "3-5" is a range, not 3 and −5.
NUMBER = (
    r"(?:(?<![\w)])[-−])?(?<![A-Za-z_\d])\$?"
    r"(?:\d+(?:,\d{3})*(?:\.\d+)?|(?<!\.)\.\d+)(?:[eE][-+−]?\d+)?"
)
_IS = r"\b(?:[Aa]nswer|ANSWER)(?: is:?|:)(?:\*\*)?"
_IN_BRACES = r"[^{}]*+"
for _ in range(5):  # braces inside each other
    _IN_BRACES = rf"(?:[^{{}}]++|\{{{_IN_BRACES}\}})*+"
# Each takes a time in proportion to the text, whatever it is: hence the possessive quantifiers.
RULES = {
    rule.name: rule
    for rule in (
        Rule("whole text", r"(?s)\A\s*+(\S(?:.*\S)?|)"),
        Rule("first line", r"\A\s*+(\S(?:[^\n]*\S)?)"),
        Rule("letter alone", r"\A\s*\*{0,2}\(?([A-Z])\)?\.?\*{0,2}[^\S\n]*(?:\n|\Z)"),
        Rule("letter first", r"\A\s*\*{0,2}\(?([A-Z])(?:\)|[.:])\*{0,2}(?:\s|\Z)"),
        Rule(
            "answer is letter",
            r"\b(?:[Aa]nswer|ANSWER)(?: is)?:?(?:\*\*)?\s*+(?:\*\*)?\(?([A-Z])\b(?![a-z'])",
            "last",
        ),
        Rule("after ####", r"####[^\S\n]*+([^\n]*\S)", "first"),
        # To the end of the line, or to where the answer is said once more.
        Rule("answer is", rf"{_IS}\s++(?:\*\*)?((?:(?!{_IS})[^\n])*(?<=[^\s.*]))", "last"),
        Rule("boxed", rf"\\boxed\{{({_IN_BRACES})\}}", "last"),
        Rule("first number", NUMBER, "first"),
        Rule("last number", NUMBER, "last"),
    )
}
THOUGHT = ("<think>", "</think>")


def extract(text: str, rules: Sequence[str | Rule]) -> Extraction | None:
    """The answer by the first rule that matches; None if none does.

    >>> extract("3 boxes of 4 make 12.", ["after ####", "last number"])
    Extraction(answer='12', rule='last number', start=18, end=20)
    """
    require_string(text, "text")
    known = known_rules(rules)
    begin = answer_start(text)
    answer = text[begin:]
    for rule in known if begin is not None else ():
        last_match: re.Match[str] | None = None
        for match in re.finditer(rule.pattern, answer):
            last_match = match
            if rule.which == "first":
                break
        if last_match is not None:
            group = 1 if last_match.re.groups else 0
            start, end = (begin + place for place in last_match.span(group))
            return Extraction(last_match[group], rule.name, start, end)
    return None


def answer_start(text: str) -> int | None:
    """Where the answer begins, after a thought that a template may have begun; None within one."""
    begin, end = THOUGHT
    if end in text:
        return text.rindex(end) + len(end)
    return None if text.lstrip().startswith(begin) else 0


def known_rules(rules: Sequence[str | Rule]) -> list[Rule]:
    """The rules with these names; ValueError for an unknown name or no rule."""
    require_list(rules, "rules", "put the names into [ ]")
    if not rules:
        raise ValueError(f"rules is empty: give some of {', '.join(RULES)}")
    return [
        rule if isinstance(rule, Rule) else RULES[require_choice(rule, "a rule", RULES)]
        for rule in rules
    ]
