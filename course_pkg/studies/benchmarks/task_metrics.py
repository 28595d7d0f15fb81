"""The metrics of GLUE and SuperGLUE, as fast as a bootstrap of thousands of draws needs them.

scikit-learn and scipy compute the same; their checks of each call take longer than the counting.
What would be 0/0 is 0: F1 without positives, and a correlation with a constant column.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy.stats import rankdata

from course_pkg.common.arguments import require_choice
from course_pkg.evaluation.answer_match import exact_match, f1
from course_pkg.evaluation.statistics import group_numbers, score_array
from course_pkg.studies.likelihood_and_generation.intervals import Statistic

TEXT_METRICS = ("text F1", "text match")


def accuracy(gold: Sequence[int], said: Sequence[int]) -> float:
    """The share of labels that are right, in [0, 1].

    Args:
        gold, said: (n,) numbers of labels.
    """
    right, guess = _labels(gold, said)
    return float((right == guess).mean())


def binary_f1(gold: Sequence[int], said: Sequence[int]) -> float:
    """F1 of label 1, in [0, 1]; 0 if neither column has it.

    >>> round(binary_f1([0, 1, 1, 0], [1, 1, 1, 1]), 3)  # always yes
    0.667
    """
    right, guess = _labels(gold, said)
    return _f1(right, guess, 1)


def macro_f1(gold: Sequence[int], said: Sequence[int]) -> float:
    """The mean of the F1 of all labels that either column has."""
    right, guess = _labels(gold, said)
    return float(np.mean([_f1(right, guess, label) for label in np.union1d(right, guess)]))


def matthews_correlation(gold: Sequence[int], said: Sequence[int]) -> float:
    """Matthews' correlation of two columns of labels 0 and 1, in [-1, 1]; 0 if one is constant.

    (TP TN - FP FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)). Source: Matthews 1975.
    """
    right, guess = _labels(gold, said)
    if max(right.max(), guess.max()) > 1:
        raise ValueError("Matthews' correlation is for two labels: give 0 and 1 only")
    return pearson(right, guess)


def pearson(gold: Sequence[float], said: Sequence[float]) -> float:
    """Pearson's correlation of two columns of numbers, in [-1, 1]; 0 if one is constant."""
    x = score_array(gold, "gold")
    y = score_array(said, "said")
    if len(x) != len(y):
        raise ValueError(f"{len(x)} numbers in gold, {len(y)} in said: give one of each per item")
    x = x - x.mean()
    y = y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def spearman(gold: Sequence[float], said: Sequence[float]) -> float:
    """Spearman's correlation: Pearson's of the ranks; equal numbers share their mean rank."""
    return pearson(rankdata(score_array(gold, "gold")), rankdata(score_array(said, "said")))


LABEL_METRICS = {
    "accuracy": accuracy,
    "matched accuracy": accuracy,
    "mismatched accuracy": accuracy,
    "F1": binary_f1,
    "macro F1": macro_f1,
    "Matthews": matthews_correlation,
    "Pearson": pearson,
    "Spearman": spearman,
}


def metric_statistics(
    metrics: Sequence[str],
    gold: Sequence,
    said: Sequence,
    questions: Sequence[Hashable] | None = None,
) -> dict[str, Statistic]:
    """For each metric a function of drawn indices, (drawn,), as `bootstrap_interval` takes it.

    Args:
        metrics: keys of `LABEL_METRICS`, "exact match" (MultiRC), "text F1" or "text match"
            (ReCoRD).
        gold, said: (n,) labels, numbers for correlations, or texts.
        questions: for "exact match", the question that each answer belongs to, (n,).
    """
    statistics = {}
    for name in metrics:
        require_choice(name, "metric", (*LABEL_METRICS, "exact match", *TEXT_METRICS))
        if name == "exact match":
            statistics[name] = _exact_questions(gold, said, questions)
        elif name in TEXT_METRICS:
            values = np.array([_text_score(name, *pair) for pair in zip(gold, said, strict=True)])
            statistics[name] = _mean_of(values, np.ones(len(values)))
        else:
            statistics[name] = _on_drawn(name, np.asarray(gold), np.asarray(said))
    return statistics


def _on_drawn(name: str, gold: np.ndarray, said: np.ndarray) -> Statistic:
    return lambda drawn: LABEL_METRICS[name](gold[drawn], said[drawn])


def _mean_of(values: np.ndarray, weights: np.ndarray) -> Statistic:
    return lambda drawn: float(values[drawn] @ weights[drawn] / weights[drawn].sum())


def _exact_questions(
    gold: Sequence[int], said: Sequence[int], questions: Sequence[Hashable] | None
) -> Statistic:
    """An answer's weight is 1 / (answers of its question): a question drawn twice counts twice."""
    if questions is None:
        raise ValueError("exact match is per question: give the question of each answer")
    right, guess = _labels(gold, said)
    number = group_numbers(questions, len(right))
    size = np.bincount(number)
    exact = np.bincount(number, right == guess) == size
    return _mean_of(exact[number].astype(float), 1 / size[number])


def _text_score(name: str, gold: str, said: str) -> float:
    return f1(said, gold) if name == "text F1" else float(exact_match(said, gold, "quasi"))


def _labels(gold: Sequence[int], said: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    right = np.asarray(gold)
    guess = np.asarray(said)
    for column, name in ((right, "gold"), (guess, "said")):
        if column.ndim != 1 or not len(column) or not np.issubdtype(column.dtype, np.integer):
            raise ValueError(f"{name} must be a list of label numbers 0, 1, …, got {column!r:.60}")
    if len(right) != len(guess):
        raise ValueError(f"{len(right)} labels in gold, {len(guess)} in said: give one per item")
    return right, guess


def _f1(right: np.ndarray, guess: np.ndarray, label: int) -> float:
    both = int(((right == label) & (guess == label)).sum())
    either = int((right == label).sum() + (guess == label).sum())
    return 2 * both / either if either else 0.0
