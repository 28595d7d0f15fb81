"""Sentences, and changes to them that show what a metric notices: paraphrase, negation and others.

A paraphrase keeps the meaning and changes the words; a negation keeps the words and reverses the
meaning. Both were written by hand for this course. The other changes are made here, from a seed.
This module scores nothing.

Chapter: metrics/comparison.
"""

import json
import random
from dataclasses import dataclass
from importlib import resources

PERTURBATIONS = (
    "identical",
    "paraphrased",
    "negated",
    "reordered",
    "truncated",
    "repeated",
    "another sentence",
)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its hand-written paraphrase and negation."""

    id: str
    text: str
    paraphrase: str
    negation: str


def load_sentences() -> list[Sentence]:
    """The course's twelve sentences, each with a paraphrase and a negation.

    >>> len(load_sentences())
    12
    """
    file = resources.files("course_pkg") / "data" / "perturbations" / "test.jsonl"
    return [Sentence(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def perturb(sentences: list[Sentence], perturbation: str, seed: int = 0) -> list[str]:
    """Every sentence after one of the `PERTURBATIONS`, in the given order.

    "reordered" shuffles the words and keeps the period; "truncated" keeps the first half of the
    words; "repeated" says the sentence twice; "another sentence" takes the next one of the list.
    seed: of the shuffling. Raises ValueError for an unknown perturbation.

    >>> one = Sentence("a", "The cat sat here.", "A cat was here.", "No cat sat here.")
    >>> perturb([one], "truncated"), perturb([one], "repeated")
    (['The cat'], ['The cat sat here. The cat sat here.'])
    """
    if perturbation not in PERTURBATIONS:
        raise ValueError(
            f"no perturbation is called {perturbation!r}; there are: {', '.join(PERTURBATIONS)}"
        )
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
