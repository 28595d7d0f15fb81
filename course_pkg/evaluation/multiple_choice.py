"""Multiple-choice questions, scored by the log-probabilities of their options after the context::

    sum          Σ log p                            lm-eval's acc; short options win
    token        Σ log p / tokens                   depends on the tokenizer
    character    Σ log p / characters               lm-eval's acc_norm
    byte         Σ log p / bytes in UTF-8           lm-eval's acc_bytes
    pmi          Σ log p − Σ log p(after a premise) what the question adds; acc_mutual_info

Lengths are those of an option's text, without a delimiter. Sources: Brown et al. 2020 (GPT-3),
section 2.4; Gao 2021, EleutherAI's blog; Holtzman et al. 2021, "Surface Form Competition".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.evaluation.continuation_scores import (
    ContinuationScore,
    Progress,
    score_continuations,
    silent,
)
from course_pkg.evaluation.option_boundary import EncodedOption, encode_options

Normalization = Literal["sum", "token", "character", "byte", "pmi"]
NORMALIZATIONS = ("sum", "token", "character", "byte", "pmi")


@dataclass(frozen=True)
class ChoiceQuestion:
    """A context, its options, and the index of the right one; a chat needs the delimiter ""."""

    context: str
    options: tuple[str, ...]
    answer: int | None = None
    delimiter: str = " "
    id: str = ""


@dataclass(frozen=True)
class ScoredOption:
    """An option's log-probabilities, token by token, in nats.

    Attributes:
        tokens: the text of each scored token, to look at.
        greedy: the model would write this option.
        unconditional: the log-probability after the premise alone.
    """

    text: str
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]
    greedy: bool
    merged: str | None = None
    unconditional: float | None = None

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)

    def score(self, normalization: Normalization = "sum") -> float:
        """The option's score, in nats per unit.

        >>> option = ScoredOption("né", ("n", "é"), (-2.0, -4.0), False, unconditional=-10.0)
        >>> [option.score(name) for name in NORMALIZATIONS]
        [-6.0, -3.0, -3.0, -2.0, 4.0]
        """
        require_choice(normalization, "normalization", NORMALIZATIONS)
        if normalization == "pmi":
            if self.unconditional is None:
                raise ValueError("no premise was scored: give `premise` to `score_questions`")
            return self.log_prob - self.unconditional
        units = {
            "sum": 1,
            "token": len(self.log_probs),
            "character": len(self.text),
            "byte": len(self.text.encode()),
        }
        return self.log_prob / units[normalization]


@dataclass(frozen=True)
class ScoredQuestion:
    """A question with the scores of its options."""

    question: ChoiceQuestion
    options: tuple[ScoredOption, ...]

    def choice(self, normalization: Normalization = "sum") -> int:
        """The index of the option with the highest score; of equal ones, the first."""
        scores = [option.score(normalization) for option in self.options]
        return scores.index(max(scores))

    def correct(self, normalization: Normalization = "sum") -> bool:
        return self.choice(normalization) == self._answer()

    def probabilities(self, normalization: Normalization = "sum") -> tuple[float, ...]:
        """The softmax of the scores: what the model believes if one of the options is right."""
        scores = [option.score(normalization) for option in self.options]
        weights = [math.exp(score - max(scores)) for score in scores]
        return tuple(weight / math.fsum(weights) for weight in weights)

    @property
    def answer_probability(self) -> float:
        """The right option's probability among all texts; too low after a token that joins both."""
        return math.exp(self.options[self._answer()].log_prob)

    @property
    def listed_probability(self) -> float:
        """The probability that the model's text begins with an option, if none begins another."""
        return math.fsum(math.exp(option.log_prob) for option in self.options)

    @property
    def writes_an_option(self) -> bool:
        return any(option.greedy for option in self.options)

    def _answer(self) -> int:
        if self.question.answer is None:
            raise ValueError(f"question {self.question.id!r} has no answer to compare with")
        return self.question.answer


@dataclass(frozen=True)
class MultipleChoiceResult:
    """All questions with their scores, in the order given."""

    questions: tuple[ScoredQuestion, ...]

    def correct(self, normalization: Normalization = "sum") -> list[bool]:
        """Whether each question was answered right: for intervals and paired comparisons."""
        return [question.correct(normalization) for question in self.questions]

    def accuracy(self, normalization: Normalization = "sum") -> float:
        correct = self.correct(normalization)
        return correct.count(True) / len(correct)

    def single_answer_accuracy(self, threshold: float = 0.5) -> float:
        """The share of questions whose right option has more than this `answer_probability`."""
        above = [question.answer_probability > threshold for question in self.questions]
        return above.count(True) / len(above)


def score_questions(
    model: nn.Module,
    tokenizer: Tokenizer,
    questions: Sequence[ChoiceQuestion],
    *,
    premise: str | None = None,
    progress: Progress = silent,
) -> MultipleChoiceResult:
    """Score the options of all questions.

    Args:
        model: a Decoder, or a causal model of transformers.
        premise: a context without the question, such as "Answer:", for the scores by mutual
            information; "" is lm-eval's, where only the BOS precedes the option.
    """
    require_list(questions, "questions", "put the questions into [ ]")
    if not questions:
        raise ValueError("questions is empty: give at least one")
    encoded = []
    for number, question in enumerate(questions):
        try:
            encoded.append(_encode(tokenizer, question, premise))
        except (TypeError, ValueError) as error:
            raise type(error)(f"question {number} ({question.id!r}): {error}") from None
    flat = [option for options in encoded for option in options]
    scores = iter(
        score_continuations(
            model,
            [option.ids for option in flat],
            [option.start for option in flat],
            progress=progress,
        )
    )
    results = []
    for question, options in zip(questions, encoded, strict=True):
        count = len(question.options)
        question_scores = [next(scores) for _ in options]
        alone = [score.total for score in question_scores[count:]] or [None] * count
        scored = [
            _scored(tokenizer, *row)
            for row in zip(
                question.options, options[:count], question_scores[:count], alone, strict=True
            )
        ]
        results.append(ScoredQuestion(question, tuple(scored)))
    return MultipleChoiceResult(tuple(results))


def _scored(
    tokenizer: Tokenizer,
    text: str,
    encoded: EncodedOption,
    score: ContinuationScore,
    unconditional: float | None,
) -> ScoredOption:
    tokens = tuple(tokenizer.decode([token]) for token in encoded.ids[encoded.start :])
    return ScoredOption(text, tokens, score.log_probs, score.greedy, encoded.merged, unconditional)


def _encode(
    tokenizer: Tokenizer, question: ChoiceQuestion, premise: str | None
) -> list[EncodedOption]:
    """The question's options after its context, then after the premise."""
    options = question.options
    delimiter = question.delimiter
    encoded = encode_options(tokenizer, question.context, options, delimiter=delimiter)
    if question.answer is not None and not 0 <= question.answer < len(options):
        raise ValueError(f"the answer is {question.answer}, but there are {len(options)} options")
    if premise is not None:
        encoded += encode_options(tokenizer, premise, options, delimiter=delimiter)
    return encoded
