"""Labels as words: how probable each is after the prompt, and after a prompt without content.

Source: Zhao et al. 2021, "Calibrate Before Use" (arXiv 2102.09690), section 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.studies.benchmarks.suites import SuiteItem, SuitePrompt


@dataclass(frozen=True)
class LabelScores:
    """Log-probabilities of all labels' words, in nats: (n, K); -inf where an item lacks an option.

    Attributes:
        given: after the prompt with the item's texts.
        empty: after the prompt with "N/A" for them.
    """

    given: np.ndarray
    empty: np.ndarray

    def scores(self, calibrated: bool = False) -> np.ndarray:
        """What the labels are chosen by, (n, K): given, or calibrated: given - empty."""
        if not calibrated:
            return self.given
        present = np.isfinite(self.given)
        difference = np.full_like(self.given, -np.inf)
        return np.subtract(self.given, self.empty, out=difference, where=present)

    def choices(self, calibrated: bool = False) -> np.ndarray:
        """The label with the highest score, (n,); of equal ones, the first.

        >>> scores = LabelScores(np.log([[0.3, 0.1]]), np.log([[0.6, 0.1]]))
        >>> scores.choices().tolist(), scores.choices(calibrated=True).tolist()
        ([0], [1])
        """
        return self.scores(calibrated).argmax(axis=1)

    def expectation(self, calibrated: bool = False) -> np.ndarray:
        """Σ_k k p_k, (n,), where p is the softmax of the scores: for labels that are numbers.

        >>> LabelScores(np.log([[0.1, 0.1, 0.2]]), np.zeros((1, 3))).expectation().tolist()
        [1.25]
        """
        scores = self.scores(calibrated)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights @ np.arange(scores.shape[1]) / weights.sum(axis=1)


def score_labels(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: SuitePrompt,
    items: Sequence[SuiteItem],
    examples: Sequence[SuiteItem] = (),
) -> LabelScores:
    """Score the labels' words for all items, with and without the items' texts."""
    if not items:
        raise ValueError("items is empty: give at least one")
    solved = [item.fields | {"answer": prompt.options(item)[item.label]} for item in examples]
    questions = []
    for item in items:
        for fields in (item.fields, prompt.empty(item)):
            text = prompt.template.render(fields, solved)
            questions.append(ChoiceQuestion(text.text, prompt.options(item), None, text.delimiter))
    # Equal questions are scored once: an empty input is the same for all items with the same words.
    different = list(dict.fromkeys(questions))
    scored = dict(
        zip(different, score_questions(model, tokenizer, different).questions, strict=True)
    )
    most = max(len(question.options) for question in questions)
    scores = np.full((len(questions), most), -np.inf)
    for row, question in enumerate(questions):
        values = [option.log_prob for option in scored[question].options]
        scores[row, : len(values)] = values
    return LabelScores(scores[0::2], scores[1::2])
