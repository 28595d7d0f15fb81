"""Conversations that a model can learn from, and reports of the records that hold none.

Every `Conversation` is valid. Reading and tokenizing (`records`, `masking`) leave out what they
can't use, and report the place, the kind of problem and the detail.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from course_pkg.common.arguments import require_string

Role = Literal["system", "user", "assistant"]
SHOWN = 3  # problems of each kind that a printed report lists


class RecordError(ValueError):
    """One record can't be used: the kind of problem, and what was found."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Problem:
    """One problem: where it is ("line 4", "record 3"), its kind, and what was found."""

    where: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.detail}"


@dataclass(frozen=True)
class ProblemReport:
    """The number of records seen and kept, and every problem in their order."""

    total: int
    kept: int
    problems: tuple[Problem, ...] = ()

    def counts(self) -> dict[str, int]:
        """The number of problems of each kind, the most frequent first."""
        return dict(Counter(problem.kind for problem in self.problems).most_common())

    def __str__(self) -> str:
        records = _counted(self.total, "record")
        lines = [f"{records}: {self.kept} kept, {_counted(len(self.problems), 'problem')}"]
        for kind, count in self.counts().items():
            lines.append(f"  {count} × {kind}")
            alike = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"      {problem.where}: {problem.detail}" for problem in alike[:SHOWN]]
            if count > SHOWN:
                lines.append(f"      and {count - SHOWN} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class Message:
    """One turn: who speaks, and the text, which is kept exactly as it is.

    Attributes:
        learned: whether an answer is trained on; other turns never are.
    """

    role: Role
    content: str
    learned: bool = True

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            expected = ", ".join(get_args(Role))
            raise RecordError("unknown role", f"{self.role!r:.80}; the roles are {expected}")
        if not require_string(self.content, "content").strip():
            kind = "empty answer" if self.role == "assistant" else "blank text"
            raise RecordError(kind, f"the {self.role}'s text is {self.content!r:.80}")
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            half = ascii(self.content[error.start])
            raise RecordError(
                "invalid text", f"{half} at character {error.start} is half of a surrogate pair"
            ) from None


@dataclass(frozen=True)
class Conversation:
    """Messages in a valid order: at most one system turn, first; then user, assistant, and so on.

    The last message is an answer, and at least one is learned. The id finds it again in a report.
    """

    messages: tuple[Message, ...]
    id: str = ""

    def __post_init__(self) -> None:
        if wrong := [message for message in self.messages if not isinstance(message, Message)]:
            raise TypeError(
                f'messages must be Messages, got {wrong[0]!r:.80}; write Message("user", text)'
            )
        object.__setattr__(self, "messages", tuple(self.messages))
        _check_order([message.role for message in self.messages])
        if not any(answer.learned for answer in self.answers):
            raise RecordError("nothing to learn", "every answer is marked as not to be learned")

    @property
    def answers(self) -> tuple[Message, ...]:
        return tuple(message for message in self.messages if message.role == "assistant")

    @property
    def until_learned(self) -> tuple[Message, ...]:
        """The messages up to the last answer that is learned."""
        learned = [m.role == "assistant" and m.learned for m in self.messages]
        return self.messages[: len(learned) - learned[::-1].index(True)]


def _check_order(roles: Sequence[Role]) -> None:
    if not roles:
        raise RecordError("no messages", "the conversation has no turn")
    if roles.count("system") > 1:
        second = roles.index("system", roles.index("system") + 1) + 1
        raise RecordError("second system turn", f"turn {second} is the second system turn")
    first = 1 if roles[0] == "system" else 0
    for position in range(first, len(roles)):
        expected = ("user", "assistant")[(position - first) % 2]
        if roles[position] != expected:
            greeting = position == first and roles[position] == "assistant"
            advice = "; put its greeting into a system turn, or leave it out" if greeting else ""
            raise RecordError(
                "roles out of order",
                f"turn {position + 1} is by the {roles[position]}, expected the {expected}{advice}",
            )
    if roles[-1] != "assistant":
        raise RecordError("no final answer", f"the last turn is by the {roles[-1]}")


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
