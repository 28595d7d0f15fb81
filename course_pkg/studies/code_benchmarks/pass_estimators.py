"""pass@k: the probability that at least one of k samples of a model passes a problem's tests.

Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_pkg.common.arguments import require_integer
from course_pkg.evaluation.statistics import Interval, mean_interval

if TYPE_CHECKING:  # imported by the interval alone
    import numpy as np


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The unbiased estimate of pass@k for one problem: 1 - C(n - c, k) / C(n, k).

    Args:
        samples: how many were drawn, n.
        correct: how many of them passed, c.

    >>> round(pass_at_k(200, 5, 100), 4), pass_at_k(4, 3, 2)
    (0.9703, 1.0)
    """
    _check(samples, correct, k)
    wrong = samples - correct
    if wrong < k:
        return 1.0  # any k samples include one that passed
    return 1.0 - math.prod(1.0 - k / i for i in range(wrong + 1, samples + 1))


def biased_pass_at_k(samples: int, correct: int, k: int) -> float:
    """1 - (1 - c/n)^k, as if samples were drawn with replacement: too low on average."""
    _check(samples, correct, k)
    return 1.0 - (1.0 - correct / samples) ** k


def pass_at_k_interval(
    samples: "int | Sequence[int] | np.ndarray", correct: "Sequence[int] | np.ndarray", k: int
) -> Interval:
    """The mean of pass@k over problems, with its confidence interval over problems.

    >>> print(pass_at_k_interval(10, [0, 0, 3, 10, 1, 0, 7, 0], 1))
    0.263 [0.038, 0.525]
    """
    import numpy as np

    from course_pkg.studies.likelihood_and_generation.intervals import bootstrap_interval

    correct, counts = np.asarray(correct).tolist(), np.asarray(samples).tolist()
    if not isinstance(counts, list):
        counts = [counts] * len(correct)
    if len(counts) != len(correct):
        raise ValueError(f"{len(counts)} numbers of samples, but {len(correct)} of correct ones")
    scores = np.array([pass_at_k(n, c, k) for n, c in zip(counts, correct, strict=True)])
    if np.all((scores == 0) | (scores == 1)):
        return mean_interval(scores.tolist())
    return bootstrap_interval(lambda drawn: float(scores[drawn].mean()), len(scores))


def _check(samples: int, correct: int, k: int) -> None:
    require_integer(samples, "samples")
    require_integer(correct, "correct", 0)
    require_integer(k, "k")
    if correct > samples:
        raise ValueError(f"{correct} of {samples} samples passed: correct can't exceed samples")
    if k > samples:
        raise ValueError(f"k is {k}, but there are {samples} samples: draw at least k of each")
