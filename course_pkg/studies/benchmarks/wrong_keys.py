"""What wrong keys in a benchmark do to a score, and to the difference of two models.

A question has K options, and its key is wrong with probability e. Then the key is one of the other
K - 1, and a model that errs may hit it by chance. If wrong keys and errors are spread evenly over
the options, and do not depend on how hard the question is, a model with the true accuracy a shows

    observed = a (1 - e) + (1 - a) e / (K - 1)

So a perfect model shows 1 - e, a guessing one 1 / K as before, and every difference shrinks by the
factor 1 - e K / (K - 1). What this module leaves out: questions that are unclear or have several
right answers, errors that are frequent where questions are hard, and models that have seen the
keys. Such a model can show more than 1 - e.

Source: the law of total probability; Gema et al. 2024, "Are We Done with MMLU?" (arXiv 2406.04127),
for kinds of errors and their share. Chapter: evaluation/benchmarks.
"""

from dataclasses import dataclass

from course_pkg.common.arguments import require_integer, require_number


@dataclass(frozen=True)
class PairOfScores:
    """The accuracies of two models, and the share of questions that exactly one gets right."""

    baseline: float
    system: float
    disagreement: float

    def __post_init__(self) -> None:
        for name in ("baseline", "system", "disagreement"):
            _share(getattr(self, name), name)
        least = abs(self.difference)
        most = min(self.baseline + self.system, 2 - self.baseline - self.system)
        if not least - 1e-12 <= self.disagreement <= most + 1e-12:
            raise ValueError(
                f"disagreement is {self.disagreement}, but for these accuracies it is from "
                f"{least:.4g} to {most:.4g}"
            )

    @property
    def difference(self) -> float:
        """system - baseline."""
        return self.system - self.baseline


def accuracy_with_wrong_keys(accuracy: float, wrong: float, options: int = 4) -> float:
    """The accuracy that a benchmark with wrong keys shows, in [0, 1].

    accuracy: the true one. wrong: the share of wrong keys. options: per question, at least 2.
    Raises ValueError for shares outside [0, 1] or fewer options.

    >>> [round(accuracy_with_wrong_keys(a, 0.06), 4) for a in (1.0, 0.9, 0.25)]
    [0.94, 0.848, 0.25]
    """
    _share(accuracy, "accuracy")
    _share(wrong, "wrong")
    require_integer(options, "options", 2)
    return accuracy * (1 - wrong) + (1 - accuracy) * wrong / (options - 1)


def pair_with_wrong_keys(pair: PairOfScores, wrong: float, options: int = 4) -> PairOfScores:
    """What a benchmark with wrong keys shows of two models, for `power.paired_variance`.

    Where both models err, they choose their wrong options independently; models that err alike
    disagree less. Arguments and errors as for `accuracy_with_wrong_keys`.

    >>> seen = pair_with_wrong_keys(PairOfScores(0.97, 0.98, 0.02), 0.06)
    >>> round(seen.difference, 4), round(seen.disagreement, 4)
    (0.0092, 0.0196)
    """
    others = require_integer(options, "options", 2) - 1
    baseline = accuracy_with_wrong_keys(pair.baseline, wrong, options)
    system = accuracy_with_wrong_keys(pair.system, wrong, options)
    both_err = 1 - (pair.baseline + pair.system + pair.disagreement) / 2
    # With a wrong key, exactly one hits it: the one that errs, or one of the two that do.
    hit = pair.disagreement / others + both_err * 2 * (others - 1) / others**2
    return PairOfScores(baseline, system, pair.disagreement * (1 - wrong) + wrong * hit)


def _share(value: float, name: str) -> None:
    if not 0 <= require_number(value, name) <= 1:
        raise ValueError(f"{name} must be a share in [0, 1], got {value}")
