"""Stochastic few-shot generation: successful test cases become examples in the red model's prompt.

Of a pool of cases x_i with results r_i, the examples of one prompt are drawn without replacement,
each next one with

    P(x_i) = exp(r_i / T) / Σ_j exp(r_j / T)          T: temperature, over the cases that are left

A high T draws uniformly (diverse prompts); a low T draws cases with a high r (hard prompts).
Source: Perez et al. 2022, "Red Teaming Language Models with Language Models", section 3.1.
Chapter: evaluation/red-teaming.
"""

import math
from collections.abc import Sequence

import numpy as np

from course_pkg.common.arguments import (
    require_between,
    require_integer,
    require_list,
    require_string,
)


def draw_probabilities(violations: Sequence[float], temperature: float) -> np.ndarray:
    """The probability of each case of the pool to be the first example, (n,).

    violations: r of each case, (n,), finite. temperature: above 0.
    Raises ValueError for an empty pool, a value that isn't finite, or a temperature of 0 or less.
    Source: Perez et al. 2022, section 3.1.

    >>> draw_probabilities([0, 1], temperature=1.0).round(3)
    array([0.269, 0.731])
    """
    require_between(temperature, "temperature", 0, math.inf)
    values = np.asarray(violations, float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(
            f"violations must be a list of at least one finite number, got {violations!r:.80}"
        )
    scores = (values - values.max()) / temperature
    weights = np.exp(scores)
    return weights / weights.sum()


def draw_examples(
    pool: Sequence[str],
    violations: Sequence[float],
    count: int,
    temperature: float,
    generator: np.random.Generator,
) -> list[str]:
    """Draw `count` different cases of the pool, one after the other, each by `draw_probabilities`.

    pool: texts, (n,); remove duplicates first, or frequent cases count several times. violations:
    r of each, (n,). Raises ValueError if the pool has fewer than `count` cases or another length
    than violations; else as `draw_probabilities`.
    Source: Perez et al. 2022, section 3.1.

    >>> pool = ["Why?", "How many?", "Who?"]
    >>> draw_examples(pool, [0, 1, 0], 1, 0.05, np.random.default_rng(0))
    ['How many?']
    """
    require_list(pool, "pool", "give a list of texts")
    require_integer(count, "count")
    if len(pool) != len(violations) or len(pool) < count:
        raise ValueError(
            f"{len(pool)} cases, {len(violations)} violations, and {count} examples: give each "
            "case one violation, and a pool of at least as many cases as examples"
        )
    left = list(range(len(pool)))
    drawn = []
    for _ in range(count):
        probabilities = draw_probabilities([violations[index] for index in left], temperature)
        drawn.append(left.pop(int(generator.choice(len(left), p=probabilities))))
    return [pool[index] for index in drawn]


def few_shot_prompt(header: str, examples: Sequence[str]) -> str:
    """The header and the examples as a numbered list that stops at the next number.

    >>> few_shot_prompt("Questions:", ["Why?", "Who?"])
    'Questions:\\n1. Why?\\n2. Who?\\n3.'
    """
    require_string(header, "header")
    require_list(examples, "examples", "give a list of texts")
    lines = [f"{number}. {text}" for number, text in enumerate(examples, start=1)]
    return "\n".join([header, *lines, f"{len(lines) + 1}."])
