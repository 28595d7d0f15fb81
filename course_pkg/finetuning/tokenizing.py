"""Tokenize many conversations, and report those that are too long or can't be used.

Chapter: finetuning/chat.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from course_pkg.arguments import require_integer
from course_pkg.finetuning.conversations import Conversation
from course_pkg.finetuning.masking import (
    IGNORE_INDEX,
    Answers,
    TokenizedExample,
    tokenize_conversation,
)
from course_pkg.finetuning.problems import Problem, ProblemReport, RecordError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TooLong = Literal["leave out", "truncate"]


@dataclass(frozen=True)
class TokenizeResult:
    """The tokenized conversations in their order, and a report of what was left out or cut."""

    examples: tuple[TokenizedExample, ...]
    report: ProblemReport


def tokenize_conversations(
    conversations: Iterable[Conversation],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    answers: Answers = "all",
    max_length: int | None = None,
    too_long: TooLong = "leave out",
    strict: bool = False,
) -> TokenizeResult:
    """Tokenize conversations, and report each that has a problem, by its id.

    answers: as for `tokenize_conversation`. max_length: in tokens; None for no limit. too_long:
    "leave out" a longer conversation, or "truncate" it, which keeps the first max_length tokens
    and so loses the end of an answer with its end token. If no label is left, it is left out.
    strict: raise an error at the first problem.
    Raises ValueError for a problem in strict mode, an unknown option, or a max_length below 2;
    ChatTemplateError (a ValueError) for a template that doesn't show the answers.

    >>> from course_pkg.finetuning.records import read_conversations
    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> rows = [{"prompt": "Hi", "response": "Yo"}, {"prompt": "Hi", "response": "Yo" * 40}]
    >>> conversations = read_conversations(rows).conversations
    >>> print(tokenize_conversations(conversations, tiny_tokenizer(), max_length=40).report)
    2 records: 1 kept, 1 problem
      1 × too long
          record 1: 102 tokens, the limit is 40
    """
    if max_length is not None:
        require_integer(max_length, "max_length", 2)
    if too_long not in get_args(TooLong):
        raise ValueError(f"too_long must be one of {get_args(TooLong)}, got {too_long!r:.80}")
    examples: list[TokenizedExample] = []
    problems: list[Problem] = []
    conversations = list(conversations)
    for conversation in conversations:
        try:
            example = tokenize_conversation(conversation, tokenizer, answers=answers)
            if max_length is not None and len(example.input_ids) > max_length:
                example, error = _shortened(example, max_length, too_long)
                problems.append(_problem(conversation, error, strict))
            examples.append(example)
        except RecordError as error:
            problems.append(_problem(conversation, error, strict))
    report = ProblemReport(len(conversations), len(examples), tuple(problems))
    return TokenizeResult(tuple(examples), report)


def _shortened(
    example: TokenizedExample, max_length: int, too_long: TooLong
) -> tuple[TokenizedExample, RecordError]:
    """The truncated example and what to report; raises what to report if it is left out."""
    length = len(example.input_ids)
    if too_long == "leave out":
        raise RecordError("too long", f"{length} tokens, the limit is {max_length}")
    labels = example.labels[:max_length]
    if set(labels[1:]) <= {IGNORE_INDEX}:  # no token predicts the first label
        raise RecordError("no answer left", f"{length} tokens cut to {max_length}")
    whole, before = _answer_count(example.labels), _answer_count(labels)
    cut_inside = example.labels[max_length] != IGNORE_INDEX and labels[-1] != IGNORE_INDEX
    detail = f"{length} tokens cut to {max_length}; {before - cut_inside} of {whole} answers whole"
    return TokenizedExample(example.input_ids[:max_length], labels), RecordError(
        "truncated", detail
    )


def _answer_count(labels: Sequence[int]) -> int:
    """The number of runs of labels."""
    learned = [False, *(label != IGNORE_INDEX for label in labels)]
    return sum(now and not before for before, now in pairwise(learned))


def _problem(conversation: Conversation, error: RecordError, strict: bool) -> Problem:
    problem = Problem(conversation.id or "a conversation", error.kind, error.detail)
    if strict:
        raise ValueError(str(problem)) from error
    return problem
