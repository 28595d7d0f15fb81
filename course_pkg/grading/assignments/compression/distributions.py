"""`compression`: distributions of a teacher and its students, and their divergences.

Chapter: exercises.
"""

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.studies.compression.distillation import forward_kl, reverse_kl

GAP = 0.01  # of divergences, by which the best student is better than the next
RARE = 1e-4  # a probability that a divergence hardly notices unless the other one is 0


def logarithms(*distributions: list[float]) -> list[Tensor]:
    """What the course's divergences take as logits."""
    return [torch.tensor(each, dtype=torch.float64).log() for each in distributions]


def divergences(teacher: list[float], students: list[list[float]]) -> list[list[float]]:
    """The forward divergences of all students, and the reverse ones."""
    pairs = [logarithms(student, teacher) for student in students]
    return [[kind(*pair).item() for pair in pairs] for kind in (forward_kl, reverse_kl)]


def distribution(rng: Random, tokens: int, zeros: tuple[int, ...] = ()) -> list[float]:
    """Multiples of 1/20, from 1/20 on; 0 at the given tokens."""
    cuts = sorted(rng.sample(range(1, 20), tokens - len(zeros) - 1))
    parts = [(b - a) / 20 for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    for token in sorted(zeros):
        parts.insert(token, 0.0)
    return parts


def pair(rng: Random, size: int, betas: tuple[float, ...]) -> dict[str, Any]:
    """Two different distributions without zeros."""
    teacher = student = distribution(rng, 3 + size)
    while student == teacher:
        student = distribution(rng, 3 + size)
    return {"teacher": teacher, "student": student, "beta": betas[size % len(betas)]}


def pair_with_zeros(rng: Random, size: int) -> dict[str, Any]:
    """Each has a zero of its own, and perhaps one in common; equal weights hide who has which."""
    tokens = 3 + size
    own, other, common = rng.sample(range(tokens), 3)
    shared = (common,) if size > 0 else ()
    teacher, student = (distribution(rng, tokens, (zero, *shared)) for zero in (own, other))
    return {"teacher": teacher, "student": student, "beta": 0.5}


def students(rng: Random, size: int) -> dict[str, Any]:
    """Both directions choose differently, and so does the cross entropy with the teacher."""
    while True:
        teacher = distribution(rng, 4)
        every = [distribution(rng, 4) for _ in range(3 + size)]
        forward, reverse = divergences(teacher, every)
        entropies = [-(torch.tensor(each).double() @ logarithms(teacher)[0]) for each in every]
        chosen = {values.index(min(values)) for values in (forward, reverse, entropies)}
        gaps = [sorted(values)[1] - min(values) for values in (forward, reverse)]
        if len(chosen) == 3 and min(gaps) > GAP:
            return {"teacher": teacher, "students": every}


def students_with_zeros(rng: Random, size: int) -> dict[str, Any]:
    """Two students are near the teacher: one rules out a token, and one allows one too many.

    The third allows what the teacher allows, but prefers what the teacher finds improbable. The two
    tokens are so improbable that a small number in place of 0 hides them: if one of the two
    students is less near, it would choose the other in both directions.
    """
    tokens = 4 + size
    never, out = rng.sample(range(tokens), 2)
    without = distribution(rng, tokens, (never, out))
    allowed = [token for token in range(tokens) if token not in (never, out)]
    rare = min(allowed, key=without.__getitem__)
    teacher = [RARE if i == out else (1 - RARE) * p for i, p in enumerate(without)]
    more = [RARE if i == never else (1 - RARE) * p for i, p in enumerate(teacher)]
    far = [0.9 if i == rare else 0.1 / (tokens - 2) for i in range(tokens)]
    far[never] = 0.0
    if size == 1:
        more = toward(more, far)
    elif size == 2:
        without = toward(without, far)
    every = [without, more, far]
    rng.shuffle(every)
    return {"teacher": teacher, "students": every}


def toward(near: list[float], far: list[float]) -> list[float]:
    """A mixture of the two, 0 where the first is 0."""
    mixed = [0.8 * a + 0.2 * b if a > 0 else 0.0 for a, b in zip(near, far, strict=True)]
    return [p / sum(mixed) for p in mixed]
