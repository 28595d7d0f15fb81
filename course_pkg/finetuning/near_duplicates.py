"""Texts that are almost the same: shared character n-grams, and the pairs above a threshold.

The measure compares spelling: it does not find a paraphrase, and it does not see that a "not"
reverses the meaning. Sources: Broder 1997, "On the Resemblance and Containment of Documents"; Lee
et al. 2022, "Deduplicating Training Data Makes Language Models Better".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_between, require_integer, require_string

SIZE = 5  # characters


@dataclass(frozen=True)
class SimilarPair:
    """The indices of two texts, the smaller first, and their resemblance in [0, 1]."""

    first: int
    second: int
    resemblance: float


def character_ngrams(text: str, size: int = SIZE) -> set[str]:
    """The different runs of `size` characters, in lower case, each white space one space."""
    require_integer(size, "size")
    plain = " ".join(require_string(text, "text").lower().split())
    return {plain[start : start + size] for start in range(max(1, len(plain) - size + 1))}


def resemblance(first: str, second: str, size: int = SIZE) -> float:
    """Jaccard similarity of two texts: their shared n-grams over all their n-grams, in [0, 1].

    Source: Broder 1997, section 2, on words there and on characters here.
    """
    a = character_ngrams(first, size)
    b = character_ngrams(second, size)
    return len(a & b) / len(a | b)


def near_duplicates(
    texts: Sequence[str], threshold: float = 0.4, size: int = SIZE
) -> list[SimilarPair]:
    """All pairs whose resemblance is above a threshold in [0, 1), the most similar first.

    Sorted by the number of n-grams, a text is compared only with those that can be similar enough:
    the shared part is at most the smaller set over the larger. The time still grows with the square
    of the number of texts; for millions, libraries compare short hashes (MinHash) instead.

    >>> near_duplicates(["Merge the adapter.", "Name a fruit.", "Merge the adapters."])
    [SimilarPair(first=0, second=2, resemblance=0.8125)]
    """
    require_between(threshold, "threshold", 0, 1, closed=True)
    sets = [character_ngrams(text, size) for text in texts]
    order = sorted(range(len(sets)), key=lambda index: len(sets[index]))
    pairs = []
    for place, index in enumerate(order):
        own = sets[index]
        for other in order[place + 1 :]:
            its = sets[other]
            if len(own) <= threshold * len(its):
                break
            shared = len(own & its)
            if (score := shared / (len(own) + len(its) - shared)) > threshold:
                pairs.append(SimilarPair(min(index, other), max(index, other), score))
    return sorted(pairs, key=lambda pair: (-pair.resemblance, pair.first, pair.second))
