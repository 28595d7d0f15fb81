"""Perturbations of sentences, which show what changes a metric notices.

A paraphrase keeps the meaning and changes the words; a negation keeps the words and reverses the
meaning. Both were written by hand, see `course_pkg.pages.datasets`. Chapter: metrics/comparison.
"""

import random

from course_pkg.common.arguments import require_choice
from course_pkg.pages.datasets import Sentence

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

    >>> perturb([Sentence("a", "The cat sat here.", "A cat was here.", "No cat.")], "truncated")
    ['The cat']
    """
    require_choice(perturbation, "perturbation", PERTURBATIONS)
    generator = random.Random(seed)
    changed = []
    for sentence, following in zip(sentences, sentences[1:] + sentences[:1], strict=True):
        words = sentence.text.removesuffix(".").split()
        versions = {
            "identical": sentence.text,
            "paraphrased": sentence.paraphrase,
            "negated": sentence.negation,
            "reordered": " ".join(generator.sample(words, len(words))) + ".",
            "truncated": " ".join(words[: len(words) // 2]),
            "repeated": f"{sentence.text} {sentence.text}",
            "another sentence": following.text,
        }
        changed.append(versions[perturbation])
    return changed
