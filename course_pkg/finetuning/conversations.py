"""Conversations: what a system, a user and an assistant say, in an order that a model can learn.

Every `Conversation` is valid: perhaps a system turn, then user and assistant in turn, and an answer
at the end. `records` reads conversations from files, and `masking` turns them into tokens.

Chapter: finetuning/instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from course_pkg.arguments import require_string
from course_pkg.finetuning.problems import RecordError

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One turn: who speaks, and the text, which is kept exactly as it is.

    Raises TypeError if the content is not a string, RecordError (a ValueError) for a role other
    than system, user and assistant, for blank text, and for text that UTF-8 can't encode.

    >>> Message("user", "Why does bread rise?").role
    'user'
    """

    role: Role
    content: str

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
            found = ascii(self.content[error.start])
            raise RecordError(
                "invalid text", f"{found} at character {error.start} is half of a surrogate pair"
            ) from None


@dataclass(frozen=True)
class Conversation:
    """Messages in a valid order: at most one system turn, first; then user, assistant, and so on.

    The last message is an answer. id: to find the conversation again, for example in a report.
    Raises RecordError (a ValueError) for another order, TypeError unless messages are Messages.

    >>> turns = (Message("user", "Hi"), Message("assistant", "Hello!"))
    >>> [message.content for message in Conversation(turns, id="greeting").answers]
    ['Hello!']
    """

    messages: tuple[Message, ...]
    id: str = ""

    def __post_init__(self) -> None:
        if wrong := [each for each in self.messages if not isinstance(each, Message)]:
            raise TypeError(
                f'messages must be Messages, got {wrong[0]!r:.80}; write Message("user", text)'
            )
        object.__setattr__(self, "messages", tuple(self.messages))
        _check_order([message.role for message in self.messages])

    @property
    def answers(self) -> tuple[Message, ...]:
        """The messages of the assistant."""
        return tuple(message for message in self.messages if message.role == "assistant")


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
            raise RecordError(
                "roles out of order",
                f"turn {position + 1} is by the {roles[position]}, expected the {expected}",
            )
    if roles[-1] != "assistant":
        raise RecordError("no final answer", f"the last turn is by the {roles[-1]}")
