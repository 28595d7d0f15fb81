"""Judging conversations: two answerers side by side in both orders, or one answer by a grade.

Source: Zheng et al. 2023, sections 3.1, 3.4 and 3.5, and appendix A (the format of verdicts).
Chapter: evaluation/chat-benchmarks.
"""

import re
from collections.abc import Callable, Sequence

from course_pkg.common.arguments import require_string
from course_pkg.studies.chat_benchmarks.comparisons import Comparison
from course_pkg.studies.chat_benchmarks.held_conversations import HeldConversation
from course_pkg.studies.judge.bias import prefer_first
from course_pkg.studies.judge.geval import Judge, JudgeError, JudgeTask, g_eval

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
        raise ValueError(
            f"the conversations are on {first.question.id!r} and {second.question.id!r}: compare "
            "answers to the same question"
        )
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
        raise ValueError(
            f"{len(first)} and {len(second)} conversations: give both answerers' for the same "
            "questions, in the same order"
        )
    comparisons = []
    for pair in zip(first, second, strict=True):
        comparisons += compare_conversations(judge, *pair)
    return comparisons


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
