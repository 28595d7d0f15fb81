"""Three ways to score the same lettered questions, side by side, as MMLU was scored by three codes.

Source: "What's going on with the Open LLM Leaderboard?" (Hugging Face's blog, June 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_list
from course_pkg.evaluation.generation import GenerationResult, OpenQuestion, answer_questions
from course_pkg.evaluation.items import LETTERS
from course_pkg.evaluation.multiple_choice import (
    ChoiceQuestion,
    MultipleChoiceResult,
    Normalization,
    score_questions,
)
from course_pkg.evaluation.prompt_template import Fields, PromptTemplate

LETTERED = PromptTemplate("{question}\n{options}\nAnswer:")
LETTER_RULES = ("letter alone", "letter first", "answer is letter")


@dataclass(frozen=True)
class LetteredQuestion:
    """A question, its options, and the index of the right one."""

    question: str
    options: tuple[str, ...]
    answer: int
    id: str = ""

    def __post_init__(self) -> None:
        require_list(self.options, "options", "put the options into ( )")
        if not 2 <= len(self.options) <= len(LETTERS):
            raise ValueError(f"{self.id} has {len(self.options)} options: give 2 to {len(LETTERS)}")
        if not 0 <= self.answer < len(self.options):
            raise ValueError(f"{self.id} has answer {self.answer}, but {len(self.options)} options")

    @property
    def lines(self) -> tuple[str, ...]:
        """The options with their letters: the full answers."""
        return tuple(f"{LETTERS[i]}. {option}" for i, option in enumerate(self.options))

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of the options."""
        return tuple(LETTERS[: len(self.options)])

    def fields(self, answers: Sequence[str]) -> Fields:
        """What fills the template."""
        lines = "\n".join(self.lines)
        return {"question": self.question, "options": lines, "answer": answers[self.answer]}


@dataclass(frozen=True)
class ThreeWays:
    """The same questions, scored in three ways."""

    letters: MultipleChoiceResult
    generation: GenerationResult
    full_answers: MultipleChoiceResult

    def correct(self, normalization: Normalization = "sum") -> dict[str, list[bool]]:
        """Whether each question was answered right, by way."""
        return {
            "letters": self.letters.correct(),
            "generation": self.generation.correct(),
            "full answers": self.full_answers.correct(normalization),
        }

    def accuracy(self, normalization: Normalization = "sum") -> dict[str, float]:
        """The share of right answers, by way."""
        columns = self.correct(normalization).items()
        return {way: column.count(True) / len(column) for way, column in columns}


def three_ways(
    model: nn.Module,
    tokenizer: Tokenizer,
    questions: Sequence[LetteredQuestion],
    examples: Sequence[LetteredQuestion] = (),
    *,
    chat: bool = False,
    max_new_tokens: int = 8,
) -> ThreeWays:
    """Score questions by letters, by generation, and by full answers.

    Args:
        chat: write prompts with the tokenizer's chat template.
    """
    chat_tokenizer = tokenizer if chat else None

    def prompts(form: str) -> list[ChoiceQuestion]:
        """Each question with its prompt and the answers in this form, "letters" or "lines"."""
        solved = [example.fields(getattr(example, form)) for example in examples]
        asked = []
        for question in questions:
            answers = getattr(question, form)
            prompt = LETTERED.render(question.fields(answers), solved, chat=chat_tokenizer)
            asked.append(
                ChoiceQuestion(prompt.text, answers, question.answer, prompt.delimiter, question.id)
            )
        return asked

    lettered = prompts("letters")
    open_questions = [
        OpenQuestion(question.context, (question.options[question.answer],), question.id)
        for question in lettered
    ]
    return ThreeWays(
        score_questions(model, tokenizer, lettered),
        answer_questions(
            model,
            tokenizer,
            open_questions,
            rules=LETTER_RULES,
            stop=["\n"],
            max_new_tokens=max_new_tokens,
        ),
        score_questions(model, tokenizer, prompts("lines")),
    )
