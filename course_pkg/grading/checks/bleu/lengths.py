"""`bleu/closest-length` and `bleu/brevity-penalty`: which length counts, and what it costs.

Chapter: exercises.
"""

from typing import Any

import numpy as np

from course_pkg.metrics.bleu.score import bleu_from_counts, sentence_bleu

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question
from . import methods

Inputs = dict[str, Any]


def closest(inputs: Inputs) -> int:
    """The reference length that BLEU takes, by texts of those lengths."""
    texts = ["word " * length for length in inputs["reference_lengths"]]
    hypothesis = "word " * inputs["hypothesis_length"]
    return sentence_bleu(hypothesis, texts, tokenize="whitespace").reference_length


def draw_closest(rng: np.random.Generator, size: int) -> Inputs:
    """Five or more distinct lengths, no two equally close; one of the third case's is c itself.

    Then one length alone, and lengths that are all shorter, or all longer.
    """
    c = int(rng.integers(12, 30))
    if size > 2:
        side = (int(rng.choice([-1, 1])), -1, 1)[size - 3]
        far = rng.permutation(np.arange(2, 10))[: 1 if size == 3 else 4].tolist()
        lengths = [c + side * distance for distance in far]
        return {"hypothesis_length": c, "reference_lengths": lengths}
    far = rng.permutation(np.arange(2, 10))[: 3 + size].tolist()
    signs = [1, -1, *rng.choice([-1, 1], size=1 + size).tolist()]
    lengths = [c + sign * distance for sign, distance in zip(signs, far, strict=True)]
    lengths.append(c + 10)  # so that neither the first nor the closest is the longest
    lengths.insert(int(rng.integers(1, len(lengths))), c + (1, -1, 0)[size])
    return {"hypothesis_length": c, "reference_lengths": lengths}


def draw_ties(rng: np.random.Generator, size: int) -> Inputs:
    """Two lengths equally close, of which the shorter is the shortest and stands in the middle."""
    d = int(rng.integers(1, 4)) + size
    c = d + int(rng.integers(3, 20))
    lengths = [c + 4 * d, c + d, c - d, c + d, c + 6 * d]
    return {"hypothesis_length": c, "reference_lengths": lengths, "leave_unchanged": True}


def _length(rule: str) -> Any:
    return lambda i: methods.reference_length(i["hypothesis_length"], i["reference_lengths"], rule)


CLOSEST = Question(
    name="closest-length",
    expected=closest,
    compare=number(),
    properties=(
        Property(
            "closest",
            1,
            "the reference length that is closest to the hypothesis's counts",
            "The distance is abs(length - hypothesis_length). One length may be all there is, and "
            "all may be longer, or shorter.",
            draw_closest,
            cases=6,
        ),
        Property(
            "ties",
            1,
            "of two lengths that are equally close the shorter counts",
            "min with the key (abs(length - hypothesis_length), length) compares the distance "
            "first, and then the length; it leaves the list as it is.",
            draw_ties,
        ),
    ),
    misconceptions=(
        Misconception(
            "shortest",
            "you took the shortest reference; the one with the closest length counts",
            _length("shortest"),
            ("closest",),
            sometimes_right=True,
        ),
        Misconception(
            "longest",
            "you took the longest reference; the one with the closest length counts",
            _length("longest"),
            ("closest", "ties"),
            sometimes_right=True,
        ),
        Misconception(
            "mean",
            "you took the mean of the lengths; the closest one counts",
            _length("mean"),
            ("closest", "ties"),
            sometimes_right=True,
        ),
        Misconception(
            "first",
            "you took the first reference; the one with the closest length counts",
            _length("first"),
            ("closest", "ties"),
            sometimes_right=True,
        ),
        Misconception(
            "not-the-shorter",
            "of two equally close lengths you took the longer, perhaps because it stands first; it "
            "is the shorter one, wherever it stands",
            _length("first-tie"),
            ("ties",),
        ),
    ),
)


def penalty(inputs: Inputs) -> float:
    """The reference's brevity penalty for two lengths."""
    lengths = inputs["hypothesis_length"], inputs["reference_length"]
    return bleu_from_counts([1], [1], *lengths).brevity_penalty


def draw_shorter(rng: np.random.Generator, size: int) -> Inputs:
    """c < r, and in the second case c < r/2."""
    c = int(rng.integers(3 + 5 * size, 12 + 9 * size))
    r = c + int(rng.integers(1, c)) + c * (size == 1)
    return {"hypothesis_length": c, "reference_length": r}


def draw_longer(rng: np.random.Generator, size: int) -> Inputs:
    """c > r, and c = r in the last case."""
    r = int(rng.integers(3 + 5 * size, 12 + 9 * size))
    longer = int(rng.integers(1, r)) * (size < 3)
    return {"hypothesis_length": r + longer, "reference_length": r}


def draw_empty(rng: np.random.Generator, size: int) -> Inputs:
    """c = 0."""
    return {"hypothesis_length": 0, "reference_length": int(rng.integers(1 + size, 30))}


def _penalty(rule: str) -> Any:
    return lambda i: methods.penalty(i["hypothesis_length"], i["reference_length"], rule)


PENALTY = Question(
    name="brevity-penalty",
    expected=penalty,
    compare=number(rtol=1e-6),
    properties=(
        Property(
            "shorter",
            1,
            "a hypothesis that is shorter than its reference is multiplied by exp(1 − r/c)",
            "c is the hypothesis's length, r the reference's; r/c is then above 1.",
            draw_shorter,
        ),
        Property(
            "longer",
            1,
            "a hypothesis that is longer than its reference, or as long, has the penalty 1",
            "exp(1 − r/c) is above 1 if c > r: what is too long must gain nothing, and it loses "
            "precision already. For c = r it is 1.",
            draw_longer,
            cases=4,
        ),
        Property(
            "empty",
            1,
            "an empty hypothesis has the penalty 0, and divides by nothing",
            "Ask for length 0 before you divide: exp(1 − r/c) goes to 0 as c goes to 0.",
            draw_empty,
            cases=2,
        ),
    ),
    misconceptions=(
        Misconception(
            "always",
            "you applied exp(1 − r/c) although c > r; that is a reward above 1",
            _penalty("always"),
            ("longer",),
            sometimes_right=True,
        ),
        Misconception(
            "inverted",
            "you took exp(1 − c/r); it is exp(1 − r/c)",
            _penalty("inverted"),
            ("shorter", "empty"),
        ),
        Misconception(
            "ratio", "you took c/r; the penalty is exp(1 − r/c)", _penalty("ratio"), ("shorter",)
        ),
        Misconception(
            "longer",
            "you punished what is too long; the penalty is for what is too short",
            _penalty("longer"),
            ("longer",),
            sometimes_right=True,
        ),
        Misconception(
            "none", "you gave no penalty to a short text", _penalty("none"), ("shorter", "empty")
        ),
    ),
)
