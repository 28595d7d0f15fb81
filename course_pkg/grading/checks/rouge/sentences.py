"""The texts of `rouge` that are scored by hand: each student's own small case.

The numbers depend only on which words are equal, so every pattern below is chosen such that the
known slips (sets, unclipped counts, substrings, a β that is not squared …) each give a number of
their own, whatever words fill it and whatever is added at its ends.

Chapter: exercises.
"""

from typing import Any

PATTERNS = (  # the reference, the candidate, and another candidate that repeats and reorders
    ("the {a} is on the {b}", "{a} {b}", "the the is {a} {a} {b}"),
    (
        "every day the {a} with the {b} {v} only the {c}",
        "there the {b} {v} the {c}",
        "the {c} {c} the {v} only {a}",
    ),
    (
        "a {a} {v} the {b} while the {c} {w}",
        "a {a} the {c} {v}",
        "the the {b} {b} while {v} {a}",
    ),
    (
        "the {a} by the {b} {v} the {c} by the {a}",
        "the {a} {v} by the {c}",
        "by the {b} {b} the {a} {v} {c} {c}",
    ),
    (
        "late at night when the {a} {v} the {b} the {c} {w} the {b}",
        "then the {a} the {b} {w} when the {c}",
        "{w} {w} the {b} the {c} when {a} the",
    ),
)
NOUNS = (
    "bear bird boat cook dog farmer fox goat guard heron horse lamp miller nurse pilot poet "
    "river ship singer stone tailor tree wolf writer"
)
VERBS = "calls draws finds follows greets hears helps hides likes meets sees watches"
REFERENCE_ENDS = ("again", "nearby", "quietly", "outside")  # words that nothing else has
CANDIDATE_ENDS = ("often", "slowly", "twice", "today")
BETAS = (0.5, 1.5, 2.0, 3.0)


def by_hand(rng: Any) -> dict[str, Any]:
    """A reference, two candidates and a β to score on paper; texts are split at spaces.

    Without a generator it is the documents' case.

    >>> by_hand(None)["candidate"]
    'cat mat'
    """
    if rng is None:
        words, beta = {"a": "cat", "b": "mat"}, 1.2
        pattern, ends = PATTERNS[0], ([], [])
    else:
        pattern = PATTERNS[int(rng.integers(len(PATTERNS)))]
        nouns, verbs = (
            rng.permutation(NOUNS.split()).tolist(),
            rng.permutation(VERBS.split()).tolist(),
        )
        words = dict(zip("abcvw", nouns[:3] + verbs[:2], strict=True))
        ends = (
            rng.permutation(REFERENCE_ENDS)[: rng.integers(4)].tolist(),
            rng.permutation(CANDIDATE_ENDS)[: rng.integers(3)].tolist(),
        )
        beta = float(rng.choice(BETAS))
    return case(pattern, words, *ends, beta)


def case(
    pattern: tuple[str, str, str],
    words: dict[str, str],
    reference_ends: list[str],
    candidate_ends: list[str],
    beta: float,
) -> dict[str, Any]:
    """The case of a pattern that is filled with words."""
    reference, candidate, other = (text.format(**words) for text in pattern)
    return {
        "reference": " ".join([reference, *reference_ends]),
        "candidate": " ".join([candidate, *candidate_ends]),
        "other": other,
        "beta": beta,
    }
