"""Skip-bigrams: pairs of words in their order, with other words allowed between them.

A text of n tokens has n (n - 1) / 2 pairs, so `skip_bigram_matches` goes column by column through
the matrix (first word, second word) and stores no pairs. Source: Lin 2004, section 5.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from course_pkg.common.arguments import require_list
from course_pkg.metrics.ngrams import clipped_matches

_MOST_CELLS = 4_000_000_000  # words times length; takes about a minute


def skip_bigrams(
    tokens: Sequence[Hashable], max_gap: int | None = None
) -> list[tuple[Hashable, Hashable]]:
    """List all pairs of tokens in the order of the text, with at most max_gap between them."""
    return list(_pairs(tokens, max_gap))


def skip_bigram_total(length: int, max_gap: int | None = None) -> int:
    """Compute how many skip-bigrams a text of `length` tokens has, including repeated ones."""
    reach = _reach(length, max_gap)
    return reach * length - reach * (reach + 1) // 2


def skip_bigram_matches(
    hypothesis: Sequence[Hashable], reference: Sequence[Hashable], max_gap: int | None = None
) -> int:
    """Count the skip-bigrams that two texts share, each as often as in the text with fewer."""
    shared = set(hypothesis) & set(reference)
    longest = max(len(hypothesis), len(reference))
    reach = _reach(longest, max_gap)
    if reach <= max(8, len(shared) // 40):  # listing a pair costs 40 times a cell of a column
        return clipped_matches(
            Counter(_pairs(hypothesis, max_gap)), Counter(_pairs(reference, max_gap))
        )
    if len(shared) * longest > _MOST_CELLS:
        raise ValueError(
            f"texts of {longest:,} tokens that share {len(shared):,} words have too many "
            "skip-bigrams to count without a limit; set max_gap (4 is usual)"
        )
    import numpy as np  # only here: short texts and small gaps are counted without it

    numbers = {token: number for number, token in enumerate(shared)}
    columns = zip(
        _columns(hypothesis, numbers, max_gap), _columns(reference, numbers, max_gap), strict=True
    )
    return int(sum(np.minimum(*pair).sum() for pair in columns))


def _columns(
    tokens: Sequence[Hashable], numbers: dict[Hashable, int], max_gap: int | None
) -> Iterator[Any]:
    """For each second word an array: how often every word precedes it within reach."""
    import numpy as np

    kinds = np.array([numbers.get(token, len(numbers)) for token in tokens], dtype=np.int64)
    starts = np.arange(len(kinds))
    ends = np.minimum(starts + _reach(len(kinds), max_gap), len(kinds) - 1)
    for number in range(len(numbers)):
        seen = np.cumsum(kinds == number)  # how many of this word up to each position
        counts = np.bincount(kinds, weights=seen[ends] - seen, minlength=len(numbers) + 1)
        yield counts[:-1].astype(np.int64)


def _pairs(tokens: Sequence[Hashable], max_gap: int | None) -> Iterator[tuple[Hashable, Hashable]]:
    require_list(tokens, "tokens", "tokenize the text first")
    reach = _reach(len(tokens), max_gap)
    for i, first in enumerate(tokens):
        for second in tokens[i + 1 : i + 1 + reach]:
            yield first, second


def _reach(length: int, max_gap: int | None) -> int:
    if max_gap is None:
        return max(length - 1, 0)
    if isinstance(max_gap, bool) or not isinstance(max_gap, int):
        raise TypeError(f"max_gap must be an integer of at least 0, or None, got {max_gap!r}")
    if max_gap < 0:
        raise ValueError(f"max_gap must be at least 0, got {max_gap}; None sets no limit")
    return min(max_gap + 1, max(length - 1, 0))
