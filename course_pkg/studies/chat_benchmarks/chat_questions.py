"""Questions of a chat benchmark: one or two turns, each with an answer written for the course.

Two turns have the shape of MT-Bench: eight categories, and a second request that builds on the
first answer. One turn has the shape of AlpacaEval. The items are original; none is from there.

Sources: Zheng et al. 2023, section 2.2 and appendix (MT-Bench's categories); Li et al. 2023,
AlpacaEval. Chapter: evaluation/chat-benchmarks.
"""

import json
from dataclasses import dataclass
from importlib import resources

from course_pkg.common.arguments import require_choice

SETS = ("two-turn", "single-turn")


@dataclass(frozen=True)
class ChatQuestion:
    """What a user writes, turn by turn, and an answer to each turn.

    category: one of MT-Bench's eight, or a kind of instruction. references: answers written for the
    course. fixed: whether an answer can be right or wrong; a text to invent can't.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    references: tuple[str, ...]
    fixed: bool


def load_chat_questions(name: str = "two-turn") -> list[ChatQuestion]:
    """The questions of one of the course's chat sets: "two-turn" (24) or "single-turn" (24).

    Raises ValueError for another name.

    >>> questions = load_chat_questions("two-turn")
    >>> len(questions), len({question.category for question in questions})
    (24, 8)
    >>> questions[9].turns[1], questions[9].references[1]
    ('Now it stops for 6 minutes on the way. When does it arrive?', 'It arrives at 10:51.')
    """
    require_choice(name, "name", SETS)
    path = resources.files("course_pkg") / "data" / "evaluation" / f"chat-{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        ChatQuestion(
            row["id"],
            row["category"],
            tuple(row["turns"]),
            tuple(row["references"]),
            row["fixed"],
        )
        for row in rows
    ]
