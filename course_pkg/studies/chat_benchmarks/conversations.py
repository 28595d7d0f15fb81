"""Questions of a chat benchmark, and the conversations about them: the second turn sees the first.

Two turns have the shape of MT-Bench: eight categories, and a second request that builds on the
first answer. One turn has the shape of AlpacaEval. The items are original; none is from there.

A *writer* answers a batch of chats: it takes lists of messages and returns one text for each. The
loop asks all first questions at once, puts each answer into its own chat, and then asks all second
questions. So a mistake in the first answer stays visible, as in a real conversation.

Sources: Zheng et al. 2023, section 2.2 and appendix (MT-Bench); Li et al. 2023, AlpacaEval.
Chapter: evaluation/chat-benchmarks.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_choice, require_list, require_string
from course_pkg.evaluation.greedy import generate_greedy

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


Chat = list[dict[str, str]]  # messages with "role" and "content"
Writer = Callable[[list[Chat]], list[str]]


@dataclass(frozen=True)
class HeldConversation:
    """A question, who answered, and one answer for each turn."""

    question: ChatQuestion
    answerer: str
    answers: tuple[str, ...]


def hold_conversations(
    write: Writer, questions: Sequence[ChatQuestion], answerer: str
) -> list[HeldConversation]:
    """Ask every question turn by turn; each later turn sees the answers before it.

    write: gives one answer to each chat of a batch. answerer: the name for the results. Raises
    ValueError if there is no question, or if the writer gives another number of answers.

    >>> question = ChatQuestion("q", "math", ("2 + 2?", "Plus 1?"), ("4", "5"), True)
    >>> def echo(chats):
    ...     return [f"{len(chat)} messages, last: {chat[-1]['content']}" for chat in chats]
    >>> hold_conversations(echo, [question], "echo")[0].answers
    ('1 messages, last: 2 + 2?', '3 messages, last: Plus 1?')
    """
    require_list(questions, "questions", "put the questions into [ ]")
    require_string(answerer, "answerer")
    if not questions:
        raise ValueError("questions is empty; give at least one ChatQuestion")
    chats: list[Chat] = [[] for _ in questions]
    answers: list[list[str]] = [[] for _ in questions]
    for turn in range(max(len(question.turns) for question in questions)):
        asked = [row for row, question in enumerate(questions) if turn < len(question.turns)]
        for row in asked:
            chats[row].append({"role": "user", "content": questions[row].turns[turn]})
        written = write([list(chats[row]) for row in asked])
        if len(written) != len(asked):
            raise ValueError(
                f"the writer gave {len(written)} answers to {len(asked)} chats: return one for each"
            )
        for row, text in zip(asked, written, strict=True):
            answers[row].append(require_string(text, "an answer"))
            chats[row].append({"role": "assistant", "content": text})
    return [
        HeldConversation(question, answerer, tuple(texts))
        for question, texts in zip(questions, answers, strict=True)
    ]


def reference_conversations(
    questions: Sequence[ChatQuestion], answerer: str = "reference"
) -> list[HeldConversation]:
    """The course's own answers, as if somebody had given them."""
    return [HeldConversation(question, answerer, question.references) for question in questions]


def greedy_writer(
    model: nn.Module,
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int = 64,
    system: str | None = None,
) -> Writer:
    """A writer that continues each chat greedily with a local model.

    system: a message that comes before every chat. Raises ValueError for a tokenizer without a chat
    template, and what `generate_greedy` raises.
    """
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template: use an instruct model")

    def write(chats: list[Chat]) -> list[str]:
        before = [] if system is None else [{"role": "system", "content": system}]
        prompts = [
            tokenizer.apply_chat_template(
                [*before, *chat], tokenize=False, add_generation_prompt=True
            )
            for chat in chats
        ]
        written = generate_greedy(model, tokenizer, prompts, max_new_tokens=max_new_tokens)
        return [answer.text for answer in written]

    return write
