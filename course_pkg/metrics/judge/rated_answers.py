"""Twelve answers with two ratings each, written for this course, to test a judge on.

They are in course_pkg/data/rated, where README.md of the data folder describes them.

Chapter: metrics/judge-tests.
"""

import json
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class RatedAnswer:
    """An answer to a question, and two ratings of it from 1 to 5.

    kind: how the answer was made: "good", "short" (right, but incomplete), "false" (well written)
    or "shuffled" (words in random order).
    """

    id: str
    kind: str
    question: str
    answer: str
    ratings: tuple[int, int]

    @property
    def mean(self) -> float:
        """The mean of the two ratings."""
        return sum(self.ratings) / len(self.ratings)


def load_rated_answers() -> list[RatedAnswer]:
    """Four answers, one of each kind, to each of three questions, in the order of the file.

    The ratings are the author's own and were given before a judge ran.

    >>> answer = load_rated_answers()[2]
    >>> answer.kind, answer.ratings, answer.mean
    ('shuffled', (1, 2), 1.5)
    """
    file = resources.files("course_pkg") / "data" / "rated" / "test.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [RatedAnswer(**{**row, "ratings": tuple(row["ratings"])}) for row in rows]
