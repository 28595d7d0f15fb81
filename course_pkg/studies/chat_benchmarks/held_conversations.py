"""Questions of a chat benchmark, and conversations about them: the second turn sees the first.

The items are original, in the shapes of MT-Bench (Zheng et al. 2023, section 2.2) and AlpacaEval.
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
    """What a user writes, turn by turn, and an answer to each. fixed: an answer can be right or
    wrong.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    references: tuple[str, ...]
    fixed: bool


def load_chat_questions(name: str = "two-turn") -> list[ChatQuestion]:
    """The questions of one of the course's chat sets: "two-turn" (24) or "single-turn" (24)."""
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

    Args:
        write: gives one answer to each chat of a batch.
        answerer: the name for the results.
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
    """A writer that continues each chat greedily with a local model, after a system message."""
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
