"""Judging conversations: two answerers side by side in both orders, or one answer by a grade.

A comparison asks twice, with the answers swapped, because judges favor a position. The second turn
is judged with the first one in view. The prompt of a comparison and the judges are those of
`course_pkg.studies.judge`.

A judge may also write its verdict: [[A]], [[B]], [[C]] for a tie, or a grade such as [[7]]. A text
without a verdict, or with two that contradict each other, is a failure: None. Whoever reads
verdicts counts the failures. FastChat takes the first of [[A]], [[B]], [[C]] that occurs anywhere,
so that "not [[A]] but [[B]]" is A there; here it is a failure.

Source: Zheng et al. 2023, sections 3.1 (both kinds), 3.4 (swapping) and 3.5 (turns in one prompt),
and appendix A (the format of verdicts). Chapter: evaluation/chat-benchmarks.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from course_pkg.common.arguments import require_choice, require_string
from course_pkg.studies.chat_benchmarks.comparisons import Comparison
from course_pkg.studies.chat_benchmarks.conversations import HeldConversation
from course_pkg.studies.judge.bias import pairwise_prompt, prefer_first
from course_pkg.studies.judge.geval import Judge, JudgeError, JudgeTask, build_prompt, g_eval

PREFERENCES = {"A": 1.0, "B": 0.0, "C": 0.5}
BEST_GRADE = 10


def parse_verdict(text: str) -> float | None:
    """How much answer A is preferred: 1, 0, or 0.5 for a tie; None if the text does not say.

    >>> [parse_verdict(text) for text in ("B is vague. [[A]]", "[[C]]", "A", "not [[A]] but [[B]]")]
    [1.0, 0.5, None, None]
    """
    letters = set(re.findall(r"\[\[([ABC])\]\]", require_string(text, "text")))
    return PREFERENCES[letters.pop()] if len(letters) == 1 else None


def parse_grade(text: str) -> float | None:
    """The grade from 1 to 10 in [[ ]]; None if there is none, or more than one.

    >>> [parse_grade(text) for text in ("Good. [[8]]", "[[7.5]]", "[[11]]", "8", "[[3]] or [[4]]")]
    [8.0, 7.5, None, None, None]
    """
    grades = {float(grade) for grade in re.findall(r"\[\[(\d+(?:\.\d+)?)\]\]", text)}
    if len(grades) != 1:
        return None
    grade = grades.pop()
    return grade if 1 <= grade <= BEST_GRADE else None


JudgingMethod = Literal["probabilities", "text"]
MOST_TOKENS = 512  # of a written verdict with its reasons
WRITTEN_VERDICT = (
    "Explain in a few sentences which answer is better. Then write [[A]] if answer A is better, "
    "[[B]] if answer B is better, or [[C]] for a tie."
)
WRITTEN_GRADE = "Explain in a few sentences. Then write the grade as [[grade]], such as [[5]]."
GRADING = JudgeTask(
    "You will be given a question and an answer to it. Grade the answer from 1 to 10.",
    "Grade",
    "how helpful, relevant, correct and clear the answer is; 1 is useless, 10 is excellent.",
    tuple(range(1, BEST_GRADE + 1)),
)


def compare_conversations(
    judge: Judge,
    first: HeldConversation,
    second: HeldConversation,
    *,
    method: JudgingMethod = "probabilities",
    references: bool = False,
    seed: int = 0,
) -> list[Comparison]:
    """Judge two conversations on the same question, one comparison for each turn.

    method: "probabilities" reads those of "A" and "B" after the prompt; "text" lets the judge write
    and looks for [[A]], [[B]] or [[C]]. references: show the course's answer to the judge, where it
    is the right one. A verdict that can't be read is None. Raises ValueError for two questions.
    """
    require_choice(method, "method", ("probabilities", "text"))
    if first.question != second.question:
        raise ValueError(
            f"the conversations are on {first.question.id!r} and {second.question.id!r}: compare "
            "answers to the same question"
        )
    comparisons = []
    for turn in range(1, len(first.question.turns) + 1):
        asked = question_text(first, turn, references)
        texts = [answer_text(held, turn) for held in (first, second)]
        one_way = _prefer_a(judge, asked, texts[0], texts[1], method, seed)
        other_way = _prefer_a(judge, asked, texts[1], texts[0], method, seed)
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
    judge: Judge,
    first: Sequence[HeldConversation],
    second: Sequence[HeldConversation],
    **options,
) -> list[Comparison]:
    """Judge two answerers on all questions, in the order given. options: as above.

    Raises ValueError if the numbers of conversations differ.
    """
    if len(first) != len(second):
        raise ValueError(
            f"{len(first)} and {len(second)} conversations: give both answerers' for the same "
            "questions, in the same order"
        )
    compare = partial(compare_conversations, judge, **options)
    return [comparison for pair in zip(first, second, strict=True) for comparison in compare(*pair)]


def grade_conversation(
    judge: Judge,
    conversation: HeldConversation,
    *,
    method: JudgingMethod = "probabilities",
    references: bool = False,
    seed: int = 0,
) -> list[float | None]:
    """Grade each turn from 1 to 10 without a second answer; None if no grade can be read.

    method: "probabilities" is G-Eval's mean grade, "text" reads [[grade]] from what is written.
    """
    require_choice(method, "method", ("probabilities", "text"))
    grades: list[float | None] = []
    for turn in range(1, len(conversation.question.turns) + 1):
        texts = {
            "Question": question_text(conversation, turn, references),
            "Answer": answer_text(conversation, turn),
        }
        if method == "text":
            prompt = f"{build_prompt(GRADING, texts)}\n{WRITTEN_GRADE}"
            grades.append(parse_grade(_written(judge, prompt, seed)))
        else:
            grades.append(_or_none(lambda shown=texts: g_eval(judge, GRADING, shown).score))
    return grades


def question_text(conversation: HeldConversation, turn: int, references: bool = False) -> str:
    """What the judge sees as the question: all turns so far, and the right answer if wanted.

    turn: from 1.
    """
    question = conversation.question
    if turn == 1:
        parts = [question.turns[0]]
    else:
        parts = [f"Turn {n}: {text}" for n, text in enumerate(question.turns[:turn], start=1)]
    if references and question.fixed:
        parts.append(f"A correct answer to the last question: {question.references[turn - 1]}")
    return "\n\n".join(parts)


def answer_text(conversation: HeldConversation, turn: int) -> str:
    """What the judge sees as the answer: all answers so far. turn: from 1."""
    shown = [text if text.strip() else "(no answer)" for text in conversation.answers[:turn]]
    if turn == 1:
        return shown[0]
    return "\n\n".join(f"Turn {n}: {text}" for n, text in enumerate(shown, start=1))


def _prefer_a(
    judge: Judge, question: str, a: str, b: str, method: JudgingMethod, seed: int
) -> float | None:
    if method == "probabilities":
        return _or_none(lambda: prefer_first(judge, question, a, b, seed=seed))
    shown, _, _ = pairwise_prompt(question, a, b).rpartition("\n\n")  # without "A or B only"
    return parse_verdict(_written(judge, f"{shown}\n\n{WRITTEN_VERDICT}", seed))


def _written(judge: Judge, prompt: str, seed: int) -> str:
    [text] = judge.write(prompt, "", n=1, max_tokens=MOST_TOKENS, temperature=0.0, seed=seed)
    return text


def _or_none(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except JudgeError:
        return None
