"""Finding the answer in what a model wrote, by rules that have names.

A rule is a regular expression, and says whether its first or its last match counts. Rules are tried
in order, and the result names the one that matched, what it found and where, so that you can look
at what was scored. Half of the disagreements about generated answers are about extraction: a right
answer in another form scores 0, and a text that runs on into a second question ends in another
number.

What is found is not changed here; `answer_match` compares it under a named normalization.
Source: the filters of lm-eval 0.4.13's GSM8K task, "strict-match" and "flexible-extract"; the
latter's pattern also takes punctuation such as "..." for a number.
Chapter: evaluation/likelihood-and-generation.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.arguments import require_choice, require_list, require_string


@dataclass(frozen=True)
class Rule:
    """A named pattern. Its first group is the answer, or the whole match if it has none.

    which: the match that counts. Raises ValueError if the pattern is no regular expression.
    """

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

    def marked(self, text: str) -> str:
        """The text with the answer in double brackets, to look at.

        >>> extract("So it is 12 m long.", ["last number"]).marked("So it is 12 m long.")
        'So it is [[12]] m long.'
        """
        return f"{text[: self.start]}[[{text[self.start : self.end]}]]{text[self.end :]}"


# A sign counts if nothing stands before it: "3-5" is a range, not 3 and −5.
NUMBER = r"(?:(?<![\w)])[-−])?(?<![A-Za-z_\d])\$?\d+(?:,\d{3})*(?:\.\d+)?"
RULES = {
    rule.name: rule
    for rule in (
        Rule("whole text", r"(?s)\A\s*(.*?)\s*\Z"),
        Rule("first line", r"\A\s*(\S[^\n]*?)[^\S\n]*(?:\n|\Z)"),
        Rule("letter alone", r"\A\s*\(?([A-Z])\)?\.?[^\S\n]*(?:\n|\Z)"),
        Rule("letter first", r"\A\s*\(?([A-Z])(?:\)|[.:])(?:\s|\Z)"),
        Rule("answer is letter", r"\b[Aa]nswer(?: is)?:?\s*\(?([A-Z])\b(?![a-z'])", "last"),
        Rule("after ####", r"####[^\S\n]*([^\n]*\S)", "first"),
        Rule("answer is", r"\b[Aa]nswer(?: is|:| is:)\s+([^\n]*?)\.?[^\S\n]*(?:\n|\Z)", "last"),
        Rule("boxed", r"\\boxed\{([^{}]*)\}", "last"),
        Rule("first number", NUMBER, "first"),
        Rule("last number", NUMBER, "last"),
    )
}


def extract(text: str, rules: Sequence[str | Rule]) -> Extraction | None:
    """The answer by the first rule that matches; None if none does.

    rules: names in RULES, or rules of your own. Raises ValueError for an unknown name or no rule.

    >>> extract("3 boxes of 4 make 12.", ["after ####", "last number"])
    Extraction(answer='12', rule='last number', start=18, end=20)
    >>> extract("No idea.", ["last number"]) is None
    True
    """
    require_string(text, "text")
    for rule in known_rules(rules):
        matches = list(re.finditer(rule.pattern, text))
        if matches:
            match = matches[0 if rule.which == "first" else -1]
            group = 1 if match.re.groups else 0
            return Extraction(match[group], rule.name, match.start(group), match.end(group))
    return None


def known_rules(rules: Sequence[str | Rule]) -> list[Rule]:
    """The rules with these names. Raises ValueError for an unknown name or no rule."""
    require_list(rules, "rules", "put the names into [ ]")
    if not rules:
        raise ValueError(f"rules is empty: give some of {', '.join(RULES)}")
    return [
        rule if isinstance(rule, Rule) else RULES[require_choice(rule, "a rule", RULES)]
        for rule in rules
    ]
