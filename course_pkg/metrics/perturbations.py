"""Perturbations of sentences, which show what changes a metric notices.

A paraphrase keeps the meaning and changes the words; a negation keeps the words and reverses the
meaning. Both were written by hand, see `course_pkg.datasets`. The other perturbations are computed
here; a seed makes them repeatable.

Chapter: metrics/comparison.
"""

import random

from course_pkg.arguments import require_choice
from course_pkg.datasets import Sentence

PERTURBATIONS = (
    "identical",
    "paraphrased",
    "negated",
    "reordered",
    "truncated",
    "repeated",
    "another sentence",
)


def perturb(sentences: list[Sentence], perturbation: str, seed: int = 0) -> list[str]:
    """Apply one of the `PERTURBATIONS` to every sentence; the order stays the same.

    "reordered" shuffles the words and keeps the period; "truncated" keeps the first half of the
    words; "repeated" writes the sentence twice; "another sentence" takes the next one in the list.
    seed: for the shuffling. Raises ValueError for an unknown perturbation.

    >>> one = Sentence("a", "The cat sat here.", "A cat was here.", "No cat sat here.")
    >>> perturb([one], "truncated"), perturb([one], "repeated")
    (['The cat'], ['The cat sat here. The cat sat here.'])
    """
    require_choice(perturbation, "perturbation", PERTURBATIONS)
    generator = random.Random(seed)
    following = [sentence.text for sentence in sentences[1:] + sentences[:1]]
    return [
        _apply(sentence, perturbation, generator, other)
        for sentence, other in zip(sentences, following, strict=True)
    ]


def _apply(sentence: Sentence, perturbation: str, generator: random.Random, other: str) -> str:
    words = sentence.text.removesuffix(".").split()
    match perturbation:
        case "identical":
            return sentence.text
        case "paraphrased":
            return sentence.paraphrase
        case "negated":
            return sentence.negation
        case "reordered":
            return " ".join(generator.sample(words, len(words))) + "."
        case "truncated":
            return " ".join(words[: len(words) // 2])
        case "repeated":
            return f"{sentence.text} {sentence.text}"
        case _:
            return other
