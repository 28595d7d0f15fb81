"""Conversations about the questions of a chat benchmark, and how judges compare and grade them.

The items are original, in the shapes of MT-Bench and AlpacaEval. Source: Zheng et al. 2023,
sections 2.2, 3.1, 3.4 and 3.5, and appendix A.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_choice, require_string
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.studies.chat_benchmarks.comparisons import Comparison
from course_pkg.studies.judge.bias import prefer_first
from course_pkg.studies.judge.geval import Judge, JudgeError, JudgeTask, g_eval

SETS = ("two-turn", "single-turn")


@dataclass(frozen=True)
class ChatQuestion:
    """What a user writes, turn by turn, and answers. fixed: whether one can be right or wrong."""

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
            row["id"], row["category"], tuple(row["turns"]), tuple(row["references"]), row["fixed"]
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
    """Ask every question turn by turn; each later turn sees the answers before it."""
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
            raise ValueError(f"the writer gave {len(written)} answers to {len(asked)} chats")
        for row, text in zip(asked, written, strict=True):
            answers[row].append(require_string(text, "an answer"))
            chats[row].append({"role": "assistant", "content": text})
    return [
        HeldConversation(question, answerer, tuple(texts))
        for question, texts in zip(questions, answers, strict=True)
    ]


def reference_conversations(questions: Sequence[ChatQuestion]) -> list[HeldConversation]:
    """The course's own answers, as if somebody had given them."""
    return [HeldConversation(question, "reference", question.references) for question in questions]


def greedy_writer(
    model: nn.Module, tokenizer: Tokenizer, *, max_new_tokens: int = 64, system: str | None = None
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


PREFERENCES = {"A": 1.0, "B": 0.0, "C": 0.5}
GRADING = JudgeTask(
    "You will be given a question and an answer to it. Grade the answer from 1 to 10.",
    "Grade",
    "how helpful, relevant, correct and clear the answer is; 1 is useless, 10 is excellent.",
    tuple(range(1, 11)),
)


def parse_verdict(text: str) -> float | None:
    """How much answer A is preferred: 1, 0, or 0.5 for a tie; None if the text does not say.

    FastChat takes the first of [[A]], [[B]], [[C]] anywhere; here two that differ are a failure.

    >>> [parse_verdict(text) for text in ("B is vague. [[A]]", "[[C]]", "A", "not [[A]] but [[B]]")]
    [1.0, 0.5, None, None]
    """
    letters = set(re.findall(r"\[\[([ABC])\]\]", require_string(text, "text")))
    return PREFERENCES[letters.pop()] if len(letters) == 1 else None


def compare_conversations(
    judge: Judge, first: HeldConversation, second: HeldConversation
) -> list[Comparison]:
    """Judge two conversations on the same question, a comparison for each turn."""
    if first.question != second.question:
        raise ValueError("compare answers to the same question")
    comparisons = []
    for turn in range(1, len(first.question.turns) + 1):
        question = question_text(first, turn)
        texts = [answer_text(held, turn) for held in (first, second)]
        one_way = _prefer_a(judge, question, texts[0], texts[1])
        other_way = _prefer_a(judge, question, texts[1], texts[0])
        comparisons.append(
            Comparison(
                first.question.id,
                turn,
                first.answerer,
                second.answerer,
                one_way,
                None if other_way is None else 1 - other_way,
                len(first.answers[turn - 1]),
                len(second.answers[turn - 1]),
            )
        )
    return comparisons


def compare_all(
    judge: Judge, first: Sequence[HeldConversation], second: Sequence[HeldConversation]
) -> list[Comparison]:
    """Judge two answerers on all questions, in the order given."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} conversations: give equally many")
    pairs = zip(first, second, strict=True)
    return [turn for pair in pairs for turn in compare_conversations(judge, *pair)]


def grade_conversation(judge: Judge, conversation: HeldConversation) -> list[float | None]:
    """G-Eval's mean grade of each turn, from 1 to 10; None if no grade can be read."""
    grades: list[float | None] = []
    for turn in range(1, len(conversation.question.turns) + 1):
        texts = {
            "Question": question_text(conversation, turn),
            "Answer": answer_text(conversation, turn),
        }
        grades.append(_or_none(lambda shown=texts: g_eval(judge, GRADING, shown).score))
    return grades


def question_text(conversation: HeldConversation, turn: int) -> str:
    """What the judge sees as the question: all turns so far, counted from 1."""
    turns = conversation.question.turns[:turn]
    if turn == 1:
        return turns[0]
    return "\n\n".join(f"Turn {n}: {text}" for n, text in enumerate(turns, start=1))


def answer_text(conversation: HeldConversation, turn: int) -> str:
    """What the judge sees as the answer: all answers so far."""
    shown = [text if text.strip() else "(no answer)" for text in conversation.answers[:turn]]
    if turn == 1:
        return shown[0]
    return "\n\n".join(f"Turn {n}: {text}" for n, text in enumerate(shown, start=1))


def _prefer_a(judge: Judge, question: str, a: str, b: str) -> float | None:
    return _or_none(lambda: prefer_first(judge, question, a, b))


def _or_none(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except JudgeError:
        return None
