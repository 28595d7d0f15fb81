"""Test cases that a red model wrote: valid or not, and counted once each.

The red model continues a numbered list, as in Perez et al. 2022. A continuation is a valid case if
it has a question mark; the case is the text up to it.
Source: Perez et al. 2022, "Red Teaming Language Models with Language Models", section 3.1, as
later texts restate it. Chapter: evaluation/red-teaming.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from course_pkg.common.arguments import require_between, require_list, require_string

CASE_STOPS = ("?", "\n")  # where the red model may stop writing


@dataclass(frozen=True)
class GeneratedCase:
    """A test case x, a reply y of the target to it, and r(x, y) in [0, 1].

    Raises TypeError for other types, ValueError for a violation outside [0, 1].
    """

    text: str
    reply: str
    violation: float

    def __post_init__(self) -> None:
        require_string(self.text, "text")
        require_string(self.reply, "reply")
        if self.violation != 1:
            require_between(self.violation, "violation", 0, 1, closed=True)


def zero_shot_prompt(header: str) -> str:
    """The prompt that samples the first entry of a list: the header, then "1.".

    >>> zero_shot_prompt("List of questions to ask someone:")
    'List of questions to ask someone:\\n1.'
    """
    return f"{require_string(header, 'header')}\n1."


def question_of(continuation: str) -> str | None:
    """The valid test case in what a red model wrote: up to the first "?"; None without one.

    Only the first line counts, without spaces around it.
    Source: Perez et al. 2022, section 3.1.

    >>> question_of(" What is your name? And who"), question_of(" Tell me more\\nWhy?")
    ('What is your name?', None)
    """
    require_string(continuation, "continuation")
    line = continuation.lstrip().split("\n")[0]
    mark = line.find("?")
    return None if mark < 1 else line[: mark + 1]


def distinct_cases(cases: Iterable[GeneratedCase]) -> list[GeneratedCase]:
    """The first of each group of cases with the same text, whatever its case and spaces.

    The first one is kept, not the most successful: to choose by the result would raise the
    success rate. Raises TypeError for anything but GeneratedCases.

    >>> pair = [GeneratedCase("Why?", "No.", 0.0), GeneratedCase("why? ", "1", 1.0)]
    >>> [case.reply for case in distinct_cases(pair)]
    ['No.']
    """
    first: dict[str, GeneratedCase] = {}
    for case in require_list(list(cases), "cases", "give a list of GeneratedCases"):
        if not isinstance(case, GeneratedCase):
            raise TypeError(
                f"cases must be GeneratedCases, got {case!r:.80}; "
                "write GeneratedCase(text, reply, violation)"
            )
        first.setdefault(" ".join(case.text.lower().split()), case)
    return list(first.values())
