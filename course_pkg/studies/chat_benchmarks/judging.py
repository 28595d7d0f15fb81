"""Judging conversations: two answerers side by side in both orders, or one answer by a grade.

A comparison asks twice, with the answers swapped, because judges favor a position. Two rules make
one outcome of the two verdicts:

    "agree"    1 if both orders prefer the first answerer, 0 if both prefer the second, else 0.5
    "average"  the mean of the two preferences

For verdicts of 0 and 1 they are the same number. They differ if a judge can also say "tie", or
gives a probability. The second turn is judged with the first one in view.

The prompt of a comparison and the judges are those of `course_pkg.studies.judge`.
Source: Zheng et al. 2023, sections 3.1 (both kinds), 3.4 (swapping) and 3.5 (turns in one prompt).
Chapter: evaluation/chat-benchmarks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from course_pkg.common.arguments import require_choice
from course_pkg.studies.chat_benchmarks.conversations import Conversation
from course_pkg.studies.chat_benchmarks.matches import Comparison
from course_pkg.studies.chat_benchmarks.verdicts import BEST_GRADE, parse_grade, parse_verdict
from course_pkg.studies.judge.bias import pairwise_prompt, prefer_first
from course_pkg.studies.judge.geval import Judge, JudgeError, g_eval
from course_pkg.studies.judge.prompt import JudgeTask, build_prompt

Method = Literal["probabilities", "text"]
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
    first: Conversation,
    second: Conversation,
    *,
    method: Method = "probabilities",
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
    found = []
    for turn in range(1, len(first.question.turns) + 1):
        asked = question_text(first, turn, references)
        texts = [answer_text(each, turn) for each in (first, second)]
        one_way = _prefer_a(judge, asked, texts[0], texts[1], method, seed)
        other_way = _prefer_a(judge, asked, texts[1], texts[0], method, seed)
        found.append(
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
    return found


def compare_all(
    judge: Judge,
    first: Sequence[Conversation],
    second: Sequence[Conversation],
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
    return [each for pair in zip(first, second, strict=True) for each in compare(*pair)]


def grade_conversation(
    judge: Judge,
    conversation: Conversation,
    *,
    method: Method = "probabilities",
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


def question_text(conversation: Conversation, turn: int, references: bool = False) -> str:
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


def answer_text(conversation: Conversation, turn: int) -> str:
    """What the judge sees as the answer: all answers so far. turn: from 1."""
    shown = [text if text.strip() else "(no answer)" for text in conversation.answers[:turn]]
    if turn == 1:
        return shown[0]
    return "\n\n".join(f"Turn {n}: {text}" for n, text in enumerate(shown, start=1))


def _prefer_a(
    judge: Judge, question: str, a: str, b: str, method: Method, seed: int
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
