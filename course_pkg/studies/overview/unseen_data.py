"""Four classifiers that agree on a sample, and differ on data that the sample lacks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from course_pkg.common.arguments import require_between, require_integer

Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class LabeledPoints:
    """Points and their classes: points (n, 2); labels (n,), True above the border."""

    points: np.ndarray
    labels: np.ndarray


def border(x: np.ndarray) -> np.ndarray:
    """The height of the true border at x: nearly straight in the middle, and bent outside.

    >>> border(np.array([-1.0, 0.0, 1.0, 3.0])).round(2)
    array([-0.94,  0.  ,  0.94,  0.51])
    """
    return 1.2 * np.sin(0.9 * x)


def draw_sample(count: int, reach: float, *, wrong: float = 0.0, seed: int = 0) -> LabeledPoints:
    """Points drawn evenly from the square [-reach, reach]², with their classes."""
    require_integer(count, "count")
    require_between(reach, "reach", 0, np.inf)
    require_between(wrong, "wrong", 0, 1, closed=True)
    generator = np.random.default_rng(seed)
    points = generator.uniform(-reach, reach, (count, 2))
    flipped = generator.random(count) < wrong
    return LabeledPoints(points, (points[:, 1] > border(points[:, 0])) ^ flipped)


def four_classifiers(training: LabeledPoints) -> dict[str, Predict]:
    """Classifiers by name, fitted to the same sample; they map points (n, 2) to labels (n,)."""
    if len(training.points) < 15:
        raise ValueError(f"{len(training.points)} points: 15 nearest ones need at least 15")
    models = {
        "line": LinearRegression(),
        "cubic curve": make_pipeline(PolynomialFeatures(3), LinearRegression()),
        "1 nearest": KNeighborsClassifier(1),
        "15 nearest": KNeighborsClassifier(15),
    }
    for model in models.values():
        model.fit(training.points, np.where(training.labels, 1, -1))
    return {name: partial(_above, model) for name, model in models.items()}


def accuracy(predict: Predict, sample: LabeledPoints) -> float:
    """The share of a sample's points that a classifier gets right, in [0, 1]."""
    return float(np.mean(predict(sample.points) == sample.labels))


def _above(model: BaseEstimator, points: np.ndarray) -> np.ndarray:
    return model.predict(points) > 0
