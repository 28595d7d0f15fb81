"""Made-up texts for the draws of `bleu`: lists of words, edited so that a property shows.

Chapter: exercises.
"""

import numpy as np

_WORDS = (
    "a and bird blue boat came cold door down far field from green hill home in into its lake "
    "late light long moon night of old over rain red river road sang sea slow snow song star "
    "stone sun tall tree two under warm wind wood"
)
WORDS = tuple(_WORDS.split())


def words(rng: np.random.Generator, count: int, but: tuple[str, ...] = ()) -> list[str]:
    """That many distinct words, none of them among `but`."""
    return rng.permutation([word for word in WORDS if word not in but])[:count].tolist()


def text(rng: np.random.Generator, vocabulary: list[str], count: int) -> list[str]:
    """That many words of the vocabulary, with repetitions."""
    return [str(word) for word in rng.choice(vocabulary, size=count)]


def replaced(rng: np.random.Generator, tokens: list[str], at: list[int]) -> list[str]:
    """The text with new words at those places."""
    new = iter(words(rng, len(at), tuple(tokens)))
    return [next(new) if i in at else token for i, token in enumerate(tokens)]
