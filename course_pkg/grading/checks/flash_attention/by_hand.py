"""`flash-attention`: the case of the numbers worked by hand, and their right values.

Chapter: exercises.
"""

import math
from random import Random
from typing import Any

Inputs = dict[str, Any]


def by_hand(rng: Random | None) -> Inputs:
    """Four scores, of which two after the first are a new maximum, and four values."""
    if rng is None:
        return {"scores": [1.0, 3.0, 2.0, 3.5], "values": [2, -1, 4, 1]}
    scores, lower = [rng.randint(1, 20) / 10], rng.randint(1, 3)  # a maximum of 0 hides mistakes
    for i in range(1, 4):
        difference = rng.randint(3, 25) / 10
        scores.append(round(max(scores) + (-difference if i == lower else difference), 1))
    values = rng.sample([n for n in range(-9, 10) if n], 4)
    return {"scores": scores, "values": values}


def by_hand_maxima_expected(case: Inputs) -> list[float]:
    """The running maximum."""
    return [max(case["scores"][:n]) for n in range(1, 5)]


def by_hand_factors_expected(case: Inputs) -> list[float]:
    """exp(old maximum - new maximum) at the second, third and fourth score."""
    maxima = by_hand_maxima_expected(case)
    return [math.exp(maxima[i - 1] - maxima[i]) for i in range(1, 4)]


def by_hand_sums_expected(case: Inputs) -> list[float]:
    """The sum of exp(score - maximum so far), over the scores so far."""
    maxima = by_hand_maxima_expected(case)
    return [sum(math.exp(score - maxima[n]) for score in case["scores"][: n + 1]) for n in range(4)]


def by_hand_result_expected(case: Inputs) -> tuple[float, float]:
    """The mean of the values with the weights of the softmax, and the log-sum-exp."""
    weights = [math.exp(score) for score in case["scores"]]
    products = [weight * value for weight, value in zip(weights, case["values"], strict=True)]
    return sum(products) / sum(weights), math.log(sum(weights))
