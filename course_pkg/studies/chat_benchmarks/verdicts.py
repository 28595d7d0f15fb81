"""Reading a judge's written verdict: [[A]], [[B]], [[C]] for a tie, or a grade such as [[7]].

A text without a verdict, or with two that contradict each other, is a failure: None. Whoever reads
verdicts counts the failures. FastChat takes the first of [[A]], [[B]], [[C]] that occurs anywhere,
so that "not [[A]] but [[B]]" is A there; here it is a failure.

Source: Zheng et al. 2023, appendix A (the format). Chapter: evaluation/chat-benchmarks.
"""

import re

from course_pkg.common.arguments import require_string

PREFERENCES = {"A": 1.0, "B": 0.0, "C": 0.5}
BEST_GRADE = 10


def parse_verdict(text: str) -> float | None:
    """How much answer A is preferred: 1, 0, or 0.5 for a tie; None if the text does not say.

    >>> [parse_verdict(text) for text in ("B is vague. [[A]]", "[[C]]", "A", "not [[A]] but [[B]]")]
    [1.0, 0.5, None, None]
    """
    found = set(re.findall(r"\[\[([ABC])\]\]", require_string(text, "text")))
    return PREFERENCES[found.pop()] if len(found) == 1 else None


def parse_grade(text: str) -> float | None:
    """The grade from 1 to 10 in [[ ]]; None if there is none, or more than one.

    >>> [parse_grade(text) for text in ("Good. [[8]]", "[[7.5]]", "[[11]]", "8", "[[3]] or [[4]]")]
    [8.0, 7.5, None, None, None]
    """
    found = {float(grade) for grade in re.findall(r"\[\[(\d+(?:\.\d+)?)\]\]", text)}
    if len(found) != 1:
        return None
    grade = found.pop()
    return grade if 1 <= grade <= BEST_GRADE else None
