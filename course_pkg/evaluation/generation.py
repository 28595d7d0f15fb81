"""Questions with free answers: what the model wrote, what was taken from it, and what that scores.

A result keeps all three, because each step can go wrong by itself. Source: Biderman et al. 2024,
"Lessons from the Trenches" (arXiv 2405.14782), section 4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_list, require_string, text_list
from course_pkg.evaluation.answer_extraction import Extraction, Rule, extract, known_rules
from course_pkg.evaluation.answer_match import exact_match, f1
from course_pkg.evaluation.greedy import Generation, generate_greedy

Metric = Callable[[str, str], float]  # answer, reference → score
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


@dataclass(frozen=True)
class OpenQuestion:
    """A prompt, and the answers that are right."""

    prompt: str
    references: tuple[str, ...]
    id: str = ""


@dataclass(frozen=True)
class ScoredAnswer:
    """What a model wrote, and how it was scored; what the rules don't find (None) scores 0.

    quasi and f1 are None if "quasi" leaves nothing of a reference. metrics: the best of references.
    """

    question: OpenQuestion
    generation: Generation
    extraction: Extraction | None
    normalization: str
    exact: bool
    quasi: bool | None
    f1: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationResult:
    """All answers, in the order of the questions."""

    answers: tuple[ScoredAnswer, ...]

    def correct(self) -> list[bool]:
        """Whether each answer matches exactly: for intervals and paired comparisons."""
        return [answer.exact for answer in self.answers]

    @property
    def accuracy(self) -> float:
        return self.correct().count(True) / len(self.answers)

    @property
    def unfinished(self) -> float:
        """The share of texts that ended because of their length: raise max_new_tokens."""
        cut = [answer.generation.finish == "length" for answer in self.answers]
        return cut.count(True) / len(cut)


def answer_questions(
    model: nn.Module,
    tokenizer: Tokenizer,
    questions: Sequence[OpenQuestion],
    *,
    rules: Sequence[str | Rule] = ("whole text",),
    **options,
) -> GenerationResult:
    """Generate greedily, extract and score. options: those of `generate_greedy`."""
    require_list(questions, "questions", "put the questions into [ ]")
    known_rules(rules)  # before minutes of generation
    prompts = [question.prompt for question in questions]
    written = generate_greedy(model, tokenizer, prompts, **options)
    return score_answers(questions, written, rules=rules)


def score_answers(
    questions: Sequence[OpenQuestion],
    generations: Sequence[Generation | str],
    *,
    rules: Sequence[str | Rule] = ("whole text",),
    normalization: str = "strip",
    metrics: Mapping[str, Metric] = NO_METRICS,
) -> GenerationResult:
    """Score texts that were generated here or elsewhere, one per question.

    metrics: functions of an answer and a reference, by name.
    """
    if len(questions) != len(generations) or not questions:
        raise ValueError(
            f"{len(questions)} questions and {len(generations)} texts: give one text for each "
            "question, and at least one question"
        )
    scored = []
    for number, (question, written) in enumerate(zip(questions, generations, strict=True)):
        if isinstance(written, str):
            written = Generation(written, (), "end")
        try:
            scored.append(_score(question, written, rules, normalization, metrics))
        except (TypeError, ValueError) as error:
            raise type(error)(f"question {number} ({question.id!r}): {error}") from None
    return GenerationResult(tuple(scored))


def _score(
    question: OpenQuestion,
    written: Generation,
    rules: Sequence[str | Rule],
    normalization: str,
    metrics: Mapping[str, Metric],
) -> ScoredAnswer:
    references = text_list(question.references, "reference")
    extraction = extract(require_string(written.text, "a generated text"), rules)
    answer = "" if extraction is None else extraction.answer
    try:
        quasi, words = exact_match(answer, references, "quasi"), f1(answer, references)
    except ValueError:  # a reference such as "A" has no words after "quasi"
        quasi = words = None
    return ScoredAnswer(
        question,
        written,
        extraction,
        normalization,
        exact=exact_match(answer, references, normalization) and extraction is not None,
        quasi=quasi,
        f1=words,
        metrics={
            name: max(metric(answer, reference) for reference in references)
            for name, metric in metrics.items()
        },
    )
